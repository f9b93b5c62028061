"""When speculation is taken off, and how it comes back: on simulated losses."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.planning import guard as guarding
from slipstream.planning.guard import Guard
from slipstream.planning.thresholds import THRESHOLDS


def drive(
    guard: Guard, loss: Callable[[int], float] | float, steps: int, noise: float = 0.0, seed: int = 0
) -> list[int]:
    """Steps of an engine that speculates whenever it may; how long each pause was."""
    rng, pauses = np.random.default_rng(seed), [0]
    for step in range(steps):
        true = loss(step) if callable(loss) else loss
        if guard.allows:
            guard.judge(max(1 + true + noise * rng.normal(), 0.01), 1.0, 1.0)
            if not guard.allows:
                pauses.append(0)
        else:
            pauses[-1] += 1
            guard.rest()
    return pauses[1:]


@pytest.mark.parametrize(("loss", "noise", "within"), [(0.3, 0.0, 16), (0.3, 0.3, 60), (0.05, 0.05, 90)])
def test_a_loss_takes_it_off(loss: float, noise: float, within: int) -> None:
    for seed in range(20):
        guard = Guard()
        drive(guard, loss, within, noise, seed)
        assert guard.pauses >= 1
    quick = Guard()
    drive(quick, 5.0, 15)
    assert quick.allows, "never on a few steps"
    assert quick.loss == pytest.approx(5.0)


@pytest.mark.parametrize("loss", [-0.5, -0.1, 0.0, THRESHOLDS.tolerated_loss])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_gain_does_not_nor_does_break_even(loss: float, noise: float) -> None:
    guards = [Guard() for _ in range(10)]
    for seed, guard in enumerate(guards):
        drive(guard, loss, 2000, noise, seed)
        if loss < THRESHOLDS.tolerated_loss:
            assert guard.loss == pytest.approx(loss, abs=0.05 if noise else 0.001)
    pauses = sum(guard.pauses for guard in guards)
    assert pauses == 0 if loss < 0 or not noise else pauses <= (10 if loss else 5)


def test_noise_alone_hardly_ever_does() -> None:
    """200,000 steps of engines that break even, each step off by a half: next to no time in pauses."""
    paused, pauses = 0, 0
    for seed in range(40):
        guard = Guard()
        paused += sum(drive(guard, 0.0, 5000, 0.5, seed))
        pauses += guard.pauses
    assert pauses <= 16  # 0.22 each were seen
    assert paused < 0.01 * 200_000


def test_without_confidence_noise_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "THRESHOLDS", replace(THRESHOLDS, confidence=0.5))
    assert sum(len(drive(Guard(), 0.0, 5000, 0.5, seed)) for seed in range(10)) > 20


def test_pauses_double_and_are_bounded() -> None:
    pauses = drive(Guard(), 0.3, 40_000)
    expected = [
        min(THRESHOLDS.first_pause * 2**number, THRESHOLDS.max_pause) for number in range(len(pauses))
    ]
    assert pauses[:-1] == expected[:-1]
    assert len(pauses) > 8
    assert THRESHOLDS.max_pause in pauses


def test_it_costs_little_where_it_always_loses() -> None:
    """The probes between pauses, at 30%: of 40,000 steps, a share that does not matter."""
    steps = 40_000
    pauses = drive(Guard(), 0.3, steps, 0.2)
    probing = steps - sum(pauses)
    assert probing * 0.3 < 0.01 * steps


@pytest.mark.parametrize("half_period", [5, 20, 50, 100, 200, 400])
def test_it_does_not_flap(half_period: int) -> None:
    """The true loss crosses the threshold a thousand times, once every `half_period` steps."""
    guard, steps = Guard(), 1000 * half_period

    def loss(step: int) -> float:
        return THRESHOLDS.tolerated_loss + (0.05 if step // half_period % 2 else -0.05)

    pauses = drive(guard, loss, steps, 0.05)
    assert guard.pauses == len(pauses)
    # Between two pauses in a row lie `min_judged_steps`, and each is twice as long as the one before; before
    # short ones come back there are `guard_memory` of which the guard thinks well.
    fewest = min(
        (
            THRESHOLDS.first_pause * (2**in_a_row - 1)
            + THRESHOLDS.min_judged_steps * in_a_row
            + THRESHOLDS.guard_memory
        )
        / in_a_row
        for in_a_row in range(1, 8)
    )
    assert guard.pauses <= 8 + steps / fewest, "whatever the loss does"


@pytest.mark.parametrize("half_period", [20, 50, 100])
def test_doubling_makes_pauses_fewer(half_period: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the loss changes faster than short pauses come back; more slowly, it hardly matters."""

    def pauses() -> int:
        guard = Guard()
        drive(
            guard,
            lambda step: THRESHOLDS.tolerated_loss + (0.05 if step // half_period % 2 else -0.05),
            1000 * half_period,
            0.05,
        )
        return guard.pauses

    doubling = pauses()
    no_backoff = replace(THRESHOLDS, max_pause=THRESHOLDS.first_pause)
    monkeypatch.setattr(guarding, "THRESHOLDS", no_backoff)
    assert doubling < pauses() / 2


def test_it_probes_its_way_back() -> None:
    guard = Guard()
    drive(guard, 0.3, THRESHOLDS.min_judged_steps)
    assert not guard.allows
    for _ in range(THRESHOLDS.first_pause):
        assert not guard.allows
        guard.rest()
    assert guard.allows
    assert guard.loss == 0.0, "what was before the pause is not held against it"
    drive(guard, -0.3, 1000)
    assert guard.pauses == 1


def test_after_gaining_the_pauses_are_short_again() -> None:
    guard = Guard()
    assert drive(guard, 0.3, 600)[:3] == [
        THRESHOLDS.first_pause,
        2 * THRESHOLDS.first_pause,
        4 * THRESHOLDS.first_pause,
    ]
    while not guard.allows:
        guard.rest()
    drive(guard, -0.3, THRESHOLDS.guard_memory // 2, 0.05)
    assert (
        drive(guard, 0.6, THRESHOLDS.guard_memory // 2 + 16 * THRESHOLDS.first_pause)[0]
        == 16 * THRESHOLDS.first_pause
    ), "too soon"
    while not guard.allows:
        guard.rest()
    drive(guard, -0.3, THRESHOLDS.guard_memory + 1, 0.05)
    while guard.allows:
        guard.judge(1.6, 1.0, 1.0)
    left = 0
    while not guard.allows:
        guard.rest()
        left += 1
    assert left == THRESHOLDS.first_pause


def test_steps_without_drafts_are_nothing_to_a_guard_that_allows() -> None:
    guard = Guard()
    for _ in range(1000):
        guard.rest()
    assert guard.allows
    drive(guard, 0.3, THRESHOLDS.min_judged_steps)
    assert not guard.allows


@given(
    st.lists(
        st.one_of(st.none(), st.tuples(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3), st.floats(0, 9))),
        min_size=1,
        max_size=200,
    )
)
def test_whatever_comes_the_loss_is_a_number(steps: list[tuple[float, float, float] | None]) -> None:
    guard = Guard()
    for step in steps:
        if step:
            guard.judge(*step)
        else:
            guard.rest()
        assert math.isfinite(guard.loss)


@pytest.mark.parametrize(("seconds", "chance"), [(1.2, 0.15), (2.0, 0.5)])
def test_a_gain_that_comes_in_few_steps(seconds: float, chance: float) -> None:
    """One request, four drafts: all are right or none. 33% and 50% more tokens per second than bare."""
    rng, guard, bare = np.random.default_rng(0), Guard(), 1.0
    for _ in range(2000):
        guard.judge(seconds, bare, 5 if rng.random() < chance else 1)
    assert guard.pauses == 0


def test_a_step_that_wrote_nothing() -> None:
    guard = Guard()
    guard.judge(1.0, 1.0, 0.0)
    assert guard.loss == 1.0


def test_a_gain_is_certain_at_two_standard_errors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some 200 steps of breaking even, with a noise of a tenth of a step, pauses mostly begin small
    again; not if certainty took four standard errors."""

    def begin_small_again(confidence: float) -> int:
        monkeypatch.setattr(guarding, "THRESHOLDS", replace(THRESHOLDS, confidence=confidence))
        guards = [Guard() for _ in range(20)]
        for seed, guard in enumerate(guards):
            drive(guard, 1.0, 3 * THRESHOLDS.first_pause)
            while not guard.allows:
                guard.rest()
            drive(guard, 0.0, THRESHOLDS.guard_memory + 8, 0.1, seed)
        return sum(guard._pause == THRESHOLDS.first_pause for guard in guards)

    assert begin_small_again(2.0) >= 12
    assert begin_small_again(4.0) <= 8
