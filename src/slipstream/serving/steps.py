"""What the engine's steps were, from the lines that `engine.worker.step_times` or `engine.core.step_times`
writes."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

from slipstream.serving.time_slicing import ActiveClock


@dataclass(frozen=True)
class StepRecord:
    decoding: int
    prefilling: int
    tokens: int
    generated: int
    offered: Sequence[int]
    accepted: Sequence[int]
    begun: float
    """Moments of `time.perf_counter`."""
    ended: float
    drafted: Sequence[tuple[float, float]]
    """From when to when drafts were made: by vLLM's runner in this step, by our scheduler just before it."""


class StepFile:
    """The growing file of one server; `new()` gives the steps since it was last asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def new(self) -> list[StepRecord]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return [StepRecord(**json.loads(line)) for line in whole.splitlines()]


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step in its server's own time."""

    wall: float
    """From the end of the step before to the end of this one, so that waiting for a new request belongs to
    its prefill. The first step of all has nothing before it."""
    target: float
    drafting: float


def step_times(steps: Sequence[StepRecord], own: ActiveClock) -> list[StepTimes]:
    times = []
    before = steps[0].begun if steps else 0.0
    for step in steps:
        drafting = [(start, own.between(start, end)) for start, end in step.drafted]
        within = sum(seconds for start, seconds in drafting if start >= step.begun)
        times.append(
            StepTimes(
                wall=own.between(before, step.ended),
                target=own.between(step.begun, step.ended) - within,
                drafting=sum(seconds for _, seconds in drafting),
            )
        )
        before = step.ended
    return times


@dataclass(frozen=True)
class StepTotals:
    """Sums over steps; sums of sums are right, averages of averages are not."""

    steps: int = 0
    request_steps: int = 0
    """Decoding requests, summed over steps: the number of times that a request had a target pass."""
    decode_steps: int = 0
    """Steps without any prefill, and their seconds:"""
    wall: float = 0.0
    target: float = 0.0
    drafting: float = 0.0
    prefill_wall: float = 0.0
    """Seconds of the steps with a prefill in them."""
    offered: list[int] = field(default_factory=list)
    """Requests whose draft token j was verified: the denominator of position j."""
    accepted: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, steps: Sequence[StepRecord], own: ActiveClock) -> Self:
        timed = list(zip(steps, step_times(steps, own), strict=True))
        decode = [(step, times) for step, times in timed if not step.prefilling]
        return cls(
            steps=len(steps),
            request_steps=sum(step.decoding for step in steps),
            decode_steps=len(decode),
            wall=sum(times.wall for _, times in decode),
            target=sum(times.target for _, times in decode),
            drafting=sum(times.drafting for _, times in decode),
            prefill_wall=sum(times.wall for step, times in timed if step.prefilling),
            offered=_add(step.offered for step in steps),
            accepted=_add(step.accepted for step in steps),
        )

    @classmethod
    def sum(cls, parts: Iterable[Mapping[str, Any]]) -> Self:
        parts = list(parts)
        numbers = {
            name: sum(part[name] for part in parts)
            for name in cls.__dataclass_fields__ if name not in ("offered", "accepted")
        }  # fmt: skip
        return cls(
            **numbers,
            offered=_add(part["offered"] for part in parts),
            accepted=_add(part["accepted"] for part in parts),
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _add(rows: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*rows, fillvalue=0)]
