"""From rounds to results: one entry per workload, load and arm."""

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.bench.statistics import Interval, mean_ratio, percentiles
from slipstream.serving.steps import StepTotals

Round = Mapping[str, Any]


def throughput(round_: Round, arm: str) -> float:
    """Return the generated tokens a second."""
    measured = round_["arms"][arm]
    return float(measured["tokens"] / measured["seconds"])


def ratios(rounds: Sequence[Round], bare: str, arm: str) -> list[float]:
    """Return the tokens a second relative to `bare`, round by round."""
    return [throughput(r, arm) / throughput(r, bare) for r in rounds]


def speedup(rounds: Sequence[Round], bare: str, arm: str) -> Interval:
    return mean_ratio(ratios(rounds, bare, arm))


def analyse(
    rounds: Mapping[tuple[str, str], Sequence[Round]], arms: Sequence[str], precision: float
) -> list[dict[str, Any]]:
    """Return all cells with two rounds or more: one says nothing of how far it can be trusted. The first arm
    is what the others are compared with."""
    return [
        _cell(workload, load, arm, arms[0], of_cell, precision)
        for (workload, load), of_cell in rounds.items()
        for arm in arms
        if len(of_cell) > 1
    ]


def _cell(
    workload: str, load: str, arm: str, bare: str, rounds: Sequence[Round], precision: float
) -> dict[str, Any]:
    measured = [r["arms"][arm] for r in rounds]
    requests = [
        (ttft, latency, tokens)
        for m in measured
        for ttft, latency, tokens in zip(m["ttft"], m["latency"], m["output_tokens"], strict=True)
        if tokens > 0
    ]
    entry: dict[str, Any] = {
        "workload": workload,
        "load": load,
        "arm": arm,
        "rounds": len(rounds),
        "requests": len(requests),
        "failed": sum(m["failed"] for m in measured),
        "prompt_tokens": sum(sum(m["prompt_tokens"]) for m in measured),
        "tokens": sum(m["tokens"] for m in measured),
        "seconds": sum(m["seconds"] for m in measured),
        "tokens_per_second": mean_ratio([throughput(r, arm) for r in rounds]).as_dict(),
        "ttft_seconds": percentiles([ttft for ttft, _, _ in requests]),
        "joining_ttft_seconds": percentiles([ttft for m in measured for ttft in _of_joining(m)]),
        "tpot_seconds": percentiles([(end - ttft) / (n - 1) for ttft, end, n in requests if n > 1]),
        "latency_seconds": percentiles([end for _, end, _ in requests]),
    }
    if arm != bare:
        ratio = speedup(rounds, bare, arm)
        entry["speedup"] = ratio.as_dict()
        entry["uncertain"] = ratio.half_width > precision
        if all("texts" in r for r in rounds):
            entry["texts"] = {
                "compared": sum(r["texts"][arm]["compared"] for r in rounds),
                "equal": sum(r["texts"][arm]["equal"] for r in rounds),
                "gaps": [gap for r in rounds for gap in r["texts"][arm]["gaps"]],
            }
    if all(m["steps"] for m in measured):
        steps = StepTotals.sum(m["steps"] for m in measured)
        entry["steps"] = step_split(steps)
        if sum(steps.offered):
            entry["acceptance"] = acceptance(steps)
    elif drafts := sum(m["counters"]["num_drafts"] for m in measured):
        drafted = sum(m["counters"]["draft_tokens"] for m in measured)
        accepted = sum(m["counters"]["accepted_tokens"] for m in measured)
        entry["acceptance"] = {
            "draft_tokens": drafted,
            "accepted_tokens": accepted,
            "rate": accepted / drafted,
            "length": 1 + accepted / drafts,
        }
    return entry


def _of_joining(measured: Mapping[str, Any]) -> list[float]:
    """Return the times to first token of requests that came while others were being written."""
    joined = measured.get("joined", ())  # rounds of older versions do not say
    rows = zip(measured["ttft"], measured["output_tokens"], joined, strict=False)
    return [ttft for ttft, tokens, came_later in rows if came_later and tokens > 0]


def step_split(steps: StepTotals) -> dict[str, Any]:
    """Return the seconds of a step without prefill, by part, and the counts of all steps."""
    n = max(steps.decode_steps, 1)
    return {
        "count": steps.steps,
        "decode_count": steps.decode_steps,
        "decode_requests": steps.request_steps,
        "seconds": steps.wall / n,
        "target": steps.target / n,
        "drafting": steps.drafting / n,
        "rest": (steps.wall - steps.target - steps.drafting) / n,
        "prefill_share": steps.prefill_wall / max(steps.prefill_wall + steps.wall, 1e-9),
    }


def acceptance(steps: StepTotals) -> dict[str, Any]:
    """Return `by_position[j]`: of the draft tokens verified at j, the share that was kept, each with its own
    denominator. `length` counts the recovered or bonus token, over target passes that had drafts;
    `length_all` over all of them, drafts or none."""
    drafted, accepted = sum(steps.offered), sum(steps.accepted)
    passes = max(steps.request_steps, 1)
    return {
        "draft_tokens": drafted,
        "accepted_tokens": accepted,
        "rate": accepted / drafted,
        "length": 1 + accepted / steps.offered[0],
        "length_all": 1 + accepted / passes,
        "drafted_share": steps.offered[0] / passes,
        "by_position": [a / o if o else 0.0 for a, o in zip(steps.accepted, steps.offered, strict=True)],
        "offered": [o / passes for o in steps.offered],
        "survival": [a / passes for a in steps.accepted],
    }
