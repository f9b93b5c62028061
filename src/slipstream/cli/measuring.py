"""What the measuring commands share: their option values and their progress bar."""

import math
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from slipstream.bench.rounds import Watcher
from slipstream.errors import ConfigError
from slipstream.ops.host import require_vllm
from slipstream.serving.arms import refuse_speculation

UNITS = {"s": 1, "m": 60, "h": 3600}


def check_command(model: str, flags: Sequence[str]) -> None:
    """Check before anything is started that vLLM is there, MODEL is one, and the flags are for all arms."""
    require_vllm()
    if model.startswith("-"):
        raise ConfigError("no model is given; write MODEL before the options")
    refuse_speculation(flags)


def numbers(option: str, text: str) -> list[float]:
    """Read numbers such as `1,4,16`."""
    try:
        values = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        values = [-1.0]
    if any(not 0 < value < math.inf for value in values):
        raise ConfigError(f"{option} {text}: write positive numbers with commas, as 1,4,16")
    return values


def counts(option: str, text: str) -> list[int]:
    """Read counts such as `1,4,16`; each is kept once, in rising order."""
    values = numbers(option, text)
    if any(value != int(value) for value in values):
        raise ConfigError(f"{option} {text}: write whole numbers with commas, as 1,4,16")
    return sorted({int(value) for value in values})


def seconds(option: str, text: str) -> float:
    """Read a duration such as `90s`, `20m` or `1.5h`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", text.strip())
    if not match:
        raise ConfigError(f"{option} {text}: write a number with s, m or h, as 20m")
    return float(match[1]) * UNITS[match[2]]


class _Drawn(Watcher):
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=None)

    def doing(self, what: str) -> None:
        self._progress.update(self._task, description=what)
        if not self._progress.console.is_terminal:
            self._progress.console.print(what)

    def finished(self, rounds: int, of: int) -> None:
        self._progress.update(self._task, total=of, completed=rounds)


@contextmanager
def watched() -> Iterator[Watcher]:
    """Yield a progress bar with the time left, on stderr; plain lines if that is not a terminal."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )  # fmt: skip
    with Progress(*columns, console=Console(file=sys.stderr)) as progress:
        yield _Drawn(progress)
