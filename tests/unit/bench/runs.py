"""Rounds as a run writes them, with any speeds, for tests of what is made of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.serving.steps import StepRecord, StepTotals
from slipstream.serving.time_slicing import ActiveClock


def steps(k: int) -> dict[str, Any]:
    offered, accepted = ([1] * k, [1] + [0] * (k - 1)) if k else ([], [])
    drafted = [(0.018, 0.019)] if k else []
    one = StepRecord(1, 0, 1 + k, 1 + (1 if k else 0), offered, accepted, 0.0, 0.02, drafted)
    return StepTotals.of([one] * 4, ActiveClock()).as_dict()


def measured(speed: float, k: int = 0) -> dict[str, Any]:
    return {
        "seconds": 10 / speed, "tokens": 10, "failed": 0, "prompt_tokens": [7], "output_tokens": [10],
        "ttft": [0.1], "latency": [1.0],
        "counters": {"num_drafts": 0, "draft_tokens": 0, "accepted_tokens": 0},
        "steps": steps(k),
    }  # fmt: skip


def rounds(
    workload: str,
    load: str,
    speeds: Mapping[str, Sequence[float]],
    equal: int = 1,
    gaps: Sequence[float] = (),
) -> list[dict[str, Any]]:
    count = len(next(iter(speeds.values())))
    bare, *others = speeds
    return [
        {
            "workload": workload,
            "load": load,
            "round": i,
            "arms": {arm: measured(some[i], 0 if arm == bare else 3) for arm, some in speeds.items()},
            "texts": {arm: {"compared": 1, "equal": equal, "gaps": list(gaps)} for arm in others},
        }
        for i in range(count)
    ]


def description(arms: Sequence[str], workloads: Sequence[str], concurrency: Sequence[int]) -> dict[str, Any]:
    session = {
        "command": "slipstream bench ./model", "date": "2026-11-15T00:00:00Z", "slipstream": "0.1.0",
        "git": "abc", "vllm": "0.32.0", "torch": "2", "python": "3.11", "platform": "cpu",
        "processor": "<CPU>", "cores": 2, "memory_gib": 24.0, "gpus": [], "environment": {},
    }  # fmt: skip
    return {
        "plan": {
            "model": "./model",
            "arms": [{"name": a, "speculate": "off", "environment": {}, "flags": []} for a in arms],
            "workloads": [{"name": w, "requests": 24, "fingerprint": "f"} for w in workloads],
            "loads": [{"concurrency": c, "rate": None} for c in concurrency],
            "rounds": 6, "requests_per_round": 1, "waves": 1, "max_tokens": 48, "temperature": 0.0,
            "ignore_eos": False, "flags": ["--enforce-eager"],
        },
        "sessions": [session],
    }  # fmt: skip
