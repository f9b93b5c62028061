"""What a benchmark will do: written down first, so that a run can be resumed and repeated."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.fingerprint import fingerprint
from slipstream.serving.arms import Arm
from slipstream.workloads.loading import Workload

OPEN_LOOP_SECONDS = 10


@dataclass(frozen=True)
class Load:
    """Closed loop with `concurrency` requests in flight, or open loop at `rate` requests a second."""

    concurrency: int | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        return f"{self.concurrency} at once" if self.concurrency else f"{self.rate:g}/s"

    def requests_per_round(self, asked: int | None, waves: int = 1) -> int:
        """Return how many are asked for; by default, and in a closed loop at least, `waves` per request in
        flight, and in an open loop what arrives in ten seconds."""
        if self.concurrency:
            return max(asked or 0, waves * self.concurrency)
        return asked or math.ceil(OPEN_LOOP_SECONDS * (self.rate or 0))


@dataclass(frozen=True)
class Cell:
    """One workload under one load; all arms are measured in it, in turn."""

    workload: Workload
    load: Load

    @property
    def key(self) -> tuple[str, str]:
        return self.workload.name, self.load.name


@dataclass(frozen=True)
class BenchmarkPlan:
    model: str
    arms: Sequence[Arm]
    workloads: Sequence[Workload]
    loads: Sequence[Load]
    rounds: int
    requests_per_round: int | None
    waves: int
    """Requests per round for each one in flight."""
    max_tokens: int
    temperature: float
    ignore_eos: bool
    flags: Sequence[str]
    """For `slipstream serve`, the same for all arms."""

    @property
    def cells(self) -> list[Cell]:
        return [Cell(workload, load) for workload in self.workloads for load in self.loads]

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "arms": [arm.as_dict() for arm in self.arms],
            "workloads": [
                {"name": w.name, "requests": len(w.requests), "fingerprint": w.fingerprint}
                for w in self.workloads
            ],
            "loads": [{"concurrency": load.concurrency, "rate": load.rate} for load in self.loads],
            "rounds": self.rounds,
            "requests_per_round": self.requests_per_round,
            "waves": self.waves,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "ignore_eos": self.ignore_eos,
            "flags": list(self.flags),
        }

    @property
    def fingerprint(self) -> str:
        """Return a fingerprint of what makes rounds comparable; more rounds, loads or workloads may be
        added to a run later."""
        comparable = {
            key: value for key, value in self.as_dict().items() if key not in ("rounds", "workloads", "loads")
        }
        return fingerprint(comparable)

    def order(self, round_number: int) -> list[Arm]:
        """Return the order of the arms. Who goes first changes from round to round, and every other round
        goes backwards: what drifts while a round lasts is not always to the advantage of the same arm."""
        shift = (round_number // 2) % len(self.arms)
        arms = [*self.arms[shift:], *self.arms[:shift]]
        return arms[::-1] if round_number % 2 else arms
