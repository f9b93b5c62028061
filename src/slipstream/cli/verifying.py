"""What `verify` shows while it runs: a progress bar, what the check will be able to find, each result."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from slipstream.verify.distribution import FALSE_ALARM, Planned
from slipstream.verify.run import Watcher


class _Drawn(Watcher):
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=None)

    def doing(self, what: str, steps: int = 0) -> None:
        self._progress.reset(self._task, total=steps or None, description=what)
        if not self._progress.console.is_terminal:
            self._progress.console.print(what)

    def advanced(self, steps: int = 1) -> None:
        self._progress.advance(self._task, steps)

    def planned(self, cells: Sequence[Planned]) -> None:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for column in ("sampling", "draws", "categories", "finds a TV of"):
            table.add_column(column, justify="left" if column == "sampling" else "right")
        for cell in cells:
            table.add_row(cell.name, str(cell.draws), str(cell.categories), f"{cell.finds:.3f}")
        self._progress.console.print(
            "Before the draws: each cell finds a difference of this total variation, whatever its direction, "
            f"with probability 0.9; one false alarm in {1 / FALSE_ALARM:,.0f} such checks.",
            highlight=False,
        )
        self._progress.console.print(table)

    def found(self, part: str, result: Any) -> None:
        name = getattr(result, "name", part)
        bad = result.verdict == "differs"
        self._progress.console.print(f"{name}: {result.verdict}", style="red" if bad else "", highlight=False)


@contextmanager
def watched() -> Iterator[Watcher]:
    """On stderr; plain lines if that is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as progress:
        yield _Drawn(progress)
