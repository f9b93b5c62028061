"""What `verify` shows while it runs: a progress bar, what the check will be able to find, each result."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.table import Table

from slipstream.cli.bar import Bar, on_stderr
from slipstream.verify.checks import Watcher
from slipstream.verify.distribution import FALSE_ALARM, Planned


class _Drawn(Bar, Watcher):
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
    with on_stderr() as progress:
        yield _Drawn(progress)
