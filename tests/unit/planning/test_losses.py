"""Steps with drafts that are much dearer than believed: speculation stops losing, however they come."""

import numpy as np
import pytest

from slipstream.planning.planner import Planner, StepOutcome, StepState
from slipstream.planning.step_cost import PassProfile, Step, StepCost

PROFILE = PassProfile((1, 8, 16, 17, 32, 64, 128), (0.02, 0.021, 0.022, 0.027, 0.03, 0.05, 0.09))
STEPS = 6000


def speed(factor: float, every: int, prefill: int = 0, requests: int = 4) -> float:
    """Tokens per second against the bare engine, where a step with drafts takes `factor` times what the
    profile says, and drafts are offered in every `every`-th step."""
    rng, planner = np.random.default_rng(0), Planner(StepCost(PROFILE))
    seconds = bare = 0.0
    tokens = 0
    for number in range(STEPS):
        offered = {}
        if number % every == 0 and not planner.paused(Step(requests)):
            offered = {f"{r}": [0.6 ** (j + 1) for j in range(4)] for r in range(requests)}
        lengths = planner.plan(StepState(Step(requests, 0, prefill, 1000)), offered).lengths
        drafts, written = sum(lengths.values()), requests
        for length in lengths.values():
            accepted = 0
            while accepted < length and rng.random() < 0.6:
                accepted += 1
            written += accepted
        took = PROFILE(requests + drafts + prefill) * float(np.exp(rng.normal(0, 0.03)))
        took *= factor if drafts else 1
        planner.record(StepOutcome(Step(requests, drafts, prefill, 1000), took, 0.0, written))
        seconds += took
        tokens += written
        bare += PROFILE(requests + prefill)
    return tokens / seconds / (requests * STEPS / bare)


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("factor", [2.0, 2.9, 3.5, 6.0])
def test_no_loss_however_dear_a_step_with_drafts_is(factor: float, every: int) -> None:
    """Also if it takes over three times what is expected, which is what a step takes that hung."""
    assert speed(factor, every) > 0.96


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("factor", [1.5, 2.0, 2.5, 2.9])
def test_no_loss_if_every_step_has_prompts(factor: float, every: int) -> None:
    assert speed(factor, every, prefill=32) > 0.97


def paused_share(pinned: int, alpha: float, requests: int = 8, steps: int = 4000) -> float:
    """The share of steps in which speculation is paused, if `pinned` requests insist on eight draft tokens of
    which none is right, and the drafts of the others pay."""
    rng, planner = np.random.default_rng(1), Planner(StepCost(PROFILE))
    pins = {f"pinned {r}": 8 for r in range(pinned)}
    others = [f"{r}" for r in range(requests - pinned)]
    paused = 0
    for _ in range(steps):
        paused += planner.paused(Step(requests))
        offered = dict.fromkeys(pins, [0.0001] * 8)
        if not planner.paused(Step(requests)):
            offered |= {r: [alpha ** (j + 1) for j in range(8)] for r in others}
        lengths = planner.plan(StepState(Step(requests, 0, 0, 4000), pins), offered).lengths
        drafts, written = sum(lengths.values()), requests
        for request in others:
            accepted = 0
            while accepted < lengths.get(request, 0) and rng.random() < alpha:
                accepted += 1
            written += accepted
        took = PROFILE(requests + drafts) * 1.05 * float(np.exp(rng.normal(0, 0.03)))
        planner.record(StepOutcome(Step(requests, drafts, 0, 4000), took, 0.0, written, 8 * pinned))
    return paused / steps


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("pinned", [0, 1, 2, 4])
def test_one_client_does_not_switch_it_off_for_all(pinned: int, alpha: float) -> None:
    assert paused_share(pinned, alpha) < 0.05


def test_without_knowing_of_pins_it_would() -> None:
    """What the number of pinned drafts is told for."""
    planner = Planner(StepCost(PROFILE))
    for _ in range(200):
        drafts = planner.plan(StepState(Step(8), {"pinned": 8}), {"pinned": [0.0001] * 8}).verified
        planner.record(StepOutcome(Step(8, drafts), PROFILE(8 + drafts) * 1.05, 0.0, 8))
    assert planner.guard(Step(8)).pauses
