"""The cost of a step on this machine, from bare vLLM and from a server whose drafts are always wrong.

K changes with every step (`WrongDraftsInTurn`), so that all K are measured within half a second of each
other: what disturbs the machine for longer disturbs them alike, and their ratios stay true.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from slipstream.bench.rounds import send_in_turns
from slipstream.engine.load_generator import Request, Traffic
from slipstream.errors import SetupError
from slipstream.planning.cost import CostCurve
from slipstream.serving.arms import Arm
from slipstream.serving.servers import Server
from slipstream.serving.steps import StepRecord, step_times

CYCLES = 8  # times that every K is seen for a number of requests


def probe_arm(most_drafts: int, v2: bool = False) -> Arm:
    """Return the arm whose drafts are wrong: made in the worker on the V1 model runner, as vLLM's own n-gram
    drafts are, and in the scheduler on V2, as all lookup drafts are there."""
    speculate: dict[str, Any] = {"mode": "fixed", "num_draft_tokens": most_drafts}
    if v2:
        speculate["plugins"] = {"slipstream.drafting.probe.WrongDraftsInTurn": {"most": most_drafts}}
    else:
        speculate["custom_class"] = "slipstream.engine.worker.probes.WrongDraftsInTurn"
    return Arm("probe", json.dumps(speculate))


def measure_cost(
    bare: Server,
    probe: Server,
    model: str,
    requests: Sequence[Request],
    loads: Sequence[int],
    most_drafts: int,
    tell: Callable[[str], None],
) -> CostCurve:
    """Return seconds of a step for every number of requests in `loads`: of `bare`, and of `probe` with 0 to
    `most_drafts` draft tokens each. The two take turns."""
    rows, bare_steps = [], []
    prefills: list[tuple[int, float]] = []
    for load in loads:
        tell(f"cost of a step, {load} at once")
        tokens = CYCLES * (most_drafts + 1) + 8
        chosen = [requests[i % len(requests)] for i in range(load)]
        traffic = {
            server.arm.name: Traffic(
                server.url,
                model,
                [replace(r, max_tokens=tokens) for r in chosen],
                concurrency=load,
                body={"temperature": 0},
                salt=f"cost-{load}",
                ignore_eos=True,
            )
            for server in (bare, probe)
        }
        bare.steps.new()
        probe.steps.new()
        _, own_time = send_in_turns(traffic, {server.arm.name: server for server in (bare, probe)})
        steps, bare_walls = bare.steps.new(), []
        for step, times in zip(steps, step_times(steps, own_time[bare.arm.name]), strict=True):
            if step.prefilling and not step.decoding:
                prefills.append((step.tokens, times.wall))
            elif step.decoding == load and not step.prefilling:
                bare_walls.append(times.wall)
        steps = probe.steps.new()
        walls = [times.wall for times in step_times(steps, own_time[probe.arm.name])]
        rows.append(cost_row(steps, walls, load, most_drafts))
        bare_steps.append(float(np.median(bare_walls)))
    fixed, per_token = _fit_prefill(prefills)
    return CostCurve(
        tuple(loads), tuple(range(most_drafts + 1)), tuple(rows), tuple(bare_steps), fixed, per_token
    )


def cost_row(
    steps: Sequence[StepRecord], walls: Sequence[float], load: int, most_drafts: int
) -> tuple[float, ...]:
    """Return seconds for K = 0..most_drafts with `load` requests, rising with K.

    Every K is taken relative to its own cycle of K = 0..most_drafts, the level is the median cycle's.
    """
    from scipy.optimize import isotonic_regression

    relative: dict[int, list[float]] = defaultdict(list)
    levels = []
    cycle: list[tuple[int, float]] = []
    for step, wall in zip(steps, walls, strict=True):
        k = len(step.offered)
        whole = not step.prefilling and step.decoding == load and set(step.offered) <= {load}
        if not whole or (cycle and k != (cycle[-1][0] + 1) % (most_drafts + 1)):
            cycle = []
        if not whole:
            continue
        cycle.append((k, wall))
        if len(cycle) == most_drafts + 1:
            level = float(np.mean([wall for _, wall in cycle]))
            levels.append(level)
            for k, wall in cycle:
                relative[k].append(wall / level)
            cycle = []
    if len(levels) < 2:
        raise SetupError(
            f"the cost of a step with {load} requests at once could not be measured: they never ran "
            "together. The KV cache may hold fewer, or --max-num-seqs be smaller; use a smaller --concurrency"
        )
    ratios = [float(np.median(relative[k])) for k in range(most_drafts + 1)]
    rising = isotonic_regression(ratios).x
    return tuple(float(np.median(levels) * ratio) for ratio in rising)


def _fit_prefill(prefills: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return (seconds of a step with prompts, seconds per prompt token), robust against single slow steps."""
    from scipy.stats import theilslopes

    tokens = np.array([t for t, _ in prefills], dtype=float)
    seconds = np.array([s for _, s in prefills])
    if len(prefills) < 2 or np.ptp(tokens) == 0:
        return 0.0, float(np.median(seconds / tokens)) if len(prefills) else 0.0
    slope, intercept, *_ = theilslopes(seconds, tokens)
    return max(float(intercept), 0.0), max(float(slope), 0.0)
