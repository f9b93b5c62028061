"""The progress bar of `verify` and `train`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """One line that says what is going on, and how far it is."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=None)

    def doing(self, what: str, steps: float = 0) -> None:
        self._progress.reset(self._task, total=steps or None, description=what)
        if not self._progress.console.is_terminal:
            self._progress.console.print(what)

    def advanced(self, steps: float = 1) -> None:
        self._progress.advance(self._task, steps)


@contextmanager
def on_stderr() -> Iterator[Progress]:
    """Yield a progress bar on stderr; plain lines if that is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as progress:
        yield progress
