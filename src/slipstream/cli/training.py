"""What `train` shows while it runs, and in the end."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from slipstream.cli.bar import Bar, on_stderr
from slipstream.training.card import ARMS, what_it_lacks
from slipstream.training.pipeline import Watcher
from slipstream.training.trainer import State


class _Drawn(Bar, Watcher):
    _shown = 0

    def trained(self, state: State, progress: float) -> None:
        self._progress.update(self._task, completed=min(progress, 1.0))
        for point in state.history[self._shown :]:
            survival = ", ".join(f"{value:.2f}" for value in point.survival)
            self._progress.console.print(
                f"{point.minutes:5.1f} min  loss {point.loss:.3f}  {point.length:.3f} tokens per step held "
                f"out ({survival}), predicted {point.speedup:.2f}x",
                highlight=False,
            )
        self._shown = len(state.history)


@contextmanager
def watched() -> Iterator[Watcher]:
    with on_stderr() as progress:
        yield _Drawn(progress)


def show(result: Mapping[str, Any], folder: Path) -> None:
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title="Tokens per step, held out")
    table.add_column("texts")
    for arm in ARMS:
        table.add_column(arm, justify="right")
    for row in result["held_out"]:
        table.add_row(row["texts"], *(f"{row['acceptance'][arm]['length']:.2f}" for arm in ARMS))
    console.print(table)
    console.print(f"\nAt all temperatures: {what_it_lacks(result)}.")
    console.print(f"\nslipstream serve {result['recipe']['target']} --drafter {folder}", style="bold")
