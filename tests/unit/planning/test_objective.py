"""What a token is worth by the objective, and whom the planner drafts for because of it."""

from collections.abc import Mapping

import numpy as np
import pytest

from slipstream.planning.objective import Bounds, Objective, Traffic, makespan_worth, priority_worth
from slipstream.planning.planner import Outlook, Plan, Planner, Queue, StepOutcome, StepState
from slipstream.planning.step_cost import PassProfile, Step, StepCost

FIXED, PER_TOKEN = 0.040, 0.010  # seconds of a pass: verifying is dear


def step_seconds(requests: int) -> np.ndarray:
    """Of 0, 1, ... requests."""
    return np.array([0.0, *(FIXED + PER_TOKEN * count for count in range(1, requests + 1))])


def planner_for(objective: Objective, bounds: Bounds | None = None) -> Planner:
    profile = PassProfile((1, 101), (FIXED + PER_TOKEN, FIXED + 101 * PER_TOKEN))
    return Planner(StepCost(profile), objective=objective, bounds=bounds or Bounds())


def worth(left: list[float], pace: list[float], end_rate: float = 0.0) -> list[float]:
    found = makespan_worth(np.array(left), np.array(pace), end_rate, step_seconds(len(left)))
    return [float(value) for value in found]


def test_who_ends_early_saves_only_its_own_share() -> None:
    """Each of the first three is missing from steps that the last needs anyway."""
    early, middle, _, last = worth([10, 20, 30, 90], [1.0] * 4)
    share = PER_TOKEN / (step_seconds(4)[4] / 4)
    assert [early, middle] == pytest.approx([share] * 2)
    assert last == 1


def test_who_is_fast_is_early() -> None:
    """The limits are the same, but the first is expected to write three tokens in a step."""
    fast, *slow = worth([64] * 4, [3.0, 1.0, 1.0, 1.0])
    share = PER_TOKEN / (step_seconds(4)[4] / 4)
    assert fast == pytest.approx(share)
    assert slow == pytest.approx([share] * 3), "one of three that end together gains nothing alone"


def test_all_must_be_faster_for_the_batch_to_be() -> None:
    """Where all can be drafted for alike, it is throughput; where none can, nothing is needed."""
    assert worth([64] * 32, [2.0] * 32) == pytest.approx([1.0] * 32)
    assert worth([64] * 32, [1.0] * 32) == pytest.approx([PER_TOKEN / (step_seconds(32)[32] / 32)] * 32)


def test_who_could_be_much_faster_than_the_slowest_needs_some_of_its_drafts() -> None:
    """The slowest need 40 steps; who writes four tokens a step needs a fifth of its drafts for that."""
    fast, *slow = worth([60] * 16, [4.0] + [1.5] * 15)
    assert slow == pytest.approx([1.0] * 15)
    share = PER_TOKEN / (step_seconds(16)[16] / 16)
    assert fast == pytest.approx(share + (1 - share) * (60 / 40 - 1) / 3)


def test_nobody_knows_who_ends_last_where_texts_end_by_themselves() -> None:
    """Limits of 1,000, and texts of 50 tokens: what is left by the limit says nothing."""
    left = [1000.0 - 10 * number for number in range(32)]
    by_limit, by_chance = worth(left, [1.0] * 32), worth(left, [1.0] * 32, end_rate=1 / 50)
    average = step_seconds(32)[32] / 32
    assert by_limit[4:] == pytest.approx([PER_TOKEN / average] * 28)
    assert by_chance == pytest.approx([1.0] * 32, abs=1e-5)


def state(left: Mapping[str, int], queue: Queue | None = None, prefill: int = 0) -> StepState:
    outlook = {request: Outlook(tokens, 1.0) for request, tokens in left.items()}
    return StepState(Step(len(left), 0, prefill), {}, outlook, queue=queue or Queue())


def plan_for(planner: Planner, state_: StepState, survival: float = 0.75) -> dict[str, int]:
    plan = planner.plan(state_, {request: [survival] for request in state_.outlook})
    assert isinstance(plan, Plan)
    return {request: length for request, length in plan.lengths.items() if length}


LEFT = {**{f"r{number}": 10 for number in range(7)}, "late": 90}


def test_a_draining_batch_drafts_for_the_last() -> None:
    assert len(plan_for(planner_for(Objective.THROUGHPUT), state(LEFT))) == 8
    assert set(plan_for(planner_for(Objective.MAKESPAN), state(LEFT))) <= {"late"}


def test_with_requests_waiting_it_is_throughput() -> None:
    planner = planner_for(Objective.MAKESPAN)
    assert len(plan_for(planner, state(LEFT, Queue(waiting=1)))) == 8


def test_with_requests_that_follow_each_other_it_is_throughput() -> None:
    planner = planner_for(Objective.MAKESPAN)
    for _ in range(100):
        planner.finish(10, at_limit=True)
        planner.arrive(others_run=True)
    assert planner.traffic.refill > 0.9
    assert len(plan_for(planner, state(LEFT))) == 8


def test_requests_that_start_count_for_latency() -> None:
    """With three quarters of a token for 10 ms, of 120: it pays for eight requests, not with eight more that
    wait for the step."""
    planner = planner_for(Objective.LATENCY)
    assert len(plan_for(planner, state(LEFT))) == 8
    assert not plan_for(planner, state(LEFT, Queue(starting=8)))
    assert len(plan_for(planner_for(Objective.THROUGHPUT), state(LEFT, Queue(starting=8)))) == 8


def test_newcomers_wait_little_longer_for_latency() -> None:
    """A newcomer waits for the step under way and for its prompt: 120 + 600 ms. Drafts may add 4%."""
    planner = planner_for(Objective.LATENCY)
    for _ in range(30):
        planner.record(StepOutcome(Step(8), 0.12, 0.0, 8))
        planner.arrive(others_run=True)
        planner.record(StepOutcome(Step(8, 0, 48), 0.6, 0.0, 8))
    plan = planner.plan(state(LEFT), {request: [0.9, 0.9] for request in LEFT})
    assert plan.verified == 2
    assert plan.seconds < 0.12 + 0.04 * 0.72 + 1e-6
    for _ in range(1000):
        planner.record(StepOutcome(Step(8), 0.12, 0.0, 8))
    plan = planner.plan(state(LEFT), {request: [0.9, 0.9] for request in LEFT})
    assert plan.verified == 16, "nobody has come for a long time"


@pytest.mark.parametrize("bounds", [Bounds(per_token=0.145), Bounds(first_token=0.145)])
def test_bounds_are_kept(bounds: Bounds) -> None:
    """A step of 8 takes 120 ms."""
    offers = {request: [0.99, 0.98] for request in LEFT}
    free = planner_for(Objective.THROUGHPUT).plan(state(LEFT), offers)
    bound = planner_for(Objective.THROUGHPUT, bounds).plan(state(LEFT), offers)
    assert free.seconds > 0.145
    assert bound.verified == 2
    assert bound.seconds < 0.145


def test_a_bound_that_cannot_be_kept_binds_nothing() -> None:
    offers = {request: [0.99, 0.98] for request in LEFT}
    planner = planner_for(Objective.THROUGHPUT, Bounds(per_token=0.1))
    assert planner.plan(state(LEFT), offers).verified == 16


def test_urgent_requests_come_first() -> None:
    planner = planner_for(Objective.LATENCY)
    outlook = {request: Outlook(50, 1.0) for request in LEFT}
    mixed = StepState(Step(8), {}, outlook, dict.fromkeys(list(LEFT)[4:], 2))
    lengths = planner.plan(mixed, {request: [0.8] for request in LEFT}).lengths
    assert [lengths[request] for request in LEFT] == [1] * 4 + [0] * 4
    assert priority_worth(0) == 1
    assert priority_worth(-1) == 2
    assert priority_worth(10**6) == priority_worth(5)


def test_traffic() -> None:
    traffic = Traffic()
    assert traffic.refill == traffic.end_rate == 0
    for _ in range(50):
        traffic.finish(100, at_limit=False)
    assert traffic.end_rate == pytest.approx(1 / 100)
    assert traffic.refill == 0
    for _ in range(50):
        traffic.finish(100, at_limit=True)
        traffic.arrive(others_run=True)
    assert traffic.end_rate < 0.001
    assert 0.9 < traffic.refill <= 1


def test_a_batch_that_comes_one_by_one_follows_nobody() -> None:
    """vLLM begins with the first request of a batch while the others are still being sent."""
    traffic = Traffic()
    for _ in range(3):
        traffic.arrive(others_run=False)
        for _ in range(31):
            traffic.arrive(others_run=True)
        for _ in range(32):
            traffic.finish(64, at_limit=True)
        assert traffic.refill == 0


def test_the_guard_judges_by_worth() -> None:
    """The same tokens for the same time: they pay where a token is worth as much as any, and lose where it is
    worth half."""
    planners = {worth: planner_for(Objective.MAKESPAN) for worth in (1.0, 0.4)}
    for worth, planner in planners.items():
        for _ in range(10):
            planner.record(StepOutcome(Step(8), 0.12, 0.0, 8))
        for _ in range(60):
            planner.record(StepOutcome(Step(8, 8), 0.2, 0.0, 16, 0, 0, 8.0, worth))
    assert not planners[1.0].paused(Step(8))
    assert planners[0.4].paused(Step(8))


def test_a_drafter_is_planned_for_requests_whose_tokens_are_worth_more_than_one() -> None:
    urgent = StepState(Step(2), {}, {}, {"a": -4})
    plan = planner_for(Objective.LATENCY).plan_drafter(urgent, {}, {"a": [0.9, 0.8], "b": [0.9, 0.8]})
    assert plan.passes == 2
    assert plan.tokens["a"] == 2
