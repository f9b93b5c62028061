"""What steps take: learnt from noisy times, with a truth to compare with."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from slipstream.planning import step_cost as costing
from slipstream.planning.step_cost import GUESS, SCALE, PassProfile, Step, StepCost
from slipstream.planning.thresholds import THRESHOLDS

Truth = Callable[[Step], float]

PROFILE = PassProfile((1, 8, 64, 512), (0.010, 0.011, 0.020, 0.120))
DRAFTS = (0, 1, 2, 4, 8, 16, 32)

STEPS = st.builds(
    Step, st.integers(0, 2000), st.integers(0, 16_000), st.integers(0, 100_000), st.integers(0, 10**7)
)
SECONDS = st.one_of(
    st.floats(1e-6, 100.0), st.sampled_from([0.0, -1.0, math.nan, math.inf, -math.inf, 1e-300, 1e300])
)
PROFILES = st.lists(
    st.tuples(st.integers(1, 10_000), st.floats(1e-6, 10.0)), min_size=1, max_size=8, unique_by=lambda p: p[0]
).map(lambda points: PassProfile(*zip(*sorted(points), strict=True)))


def truth(step: Step) -> float:
    """Another shape than the profile's: drafts are dearer than other tokens, and all has a price."""
    return 0.004 + 1.3 * float(PROFILE(step.requests + step.prefill)) + 0.0005 * step.drafts


def teach(
    cost: StepCost, real: Truth, steps: int, requests: int = 4, seed: int = 0, outliers: float = 0.05
) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        step = Step(requests, int(rng.choice(DRAFTS)))
        noise = math.exp(rng.normal(0, 0.05)) * (10 if rng.random() < outliers else 1)
        cost.learn(step, real(step) * noise)


def ratios(seconds: Truth, requests: int = 4) -> list[float]:
    bare = seconds(Step(requests))
    return [seconds(Step(requests, drafts)) / bare for drafts in DRAFTS]


def worst(cost: StepCost, real: Truth, requests: int = 4) -> float:
    """How far the ratios to the bare step are off."""
    pairs = zip(ratios(cost.seconds, requests), ratios(real, requests), strict=True)
    return max(abs(found / true - 1) for found, true in pairs)


# ---- whatever happens ----


@given(PROFILES, st.lists(st.tuples(STEPS, SECONDS), max_size=30), STEPS, st.integers(0, 300))
def test_seconds_are_positive_and_never_fall_with_drafts(
    profile: PassProfile, seen: list[tuple[Step, float]], step: Step, most: int
) -> None:
    cost = StepCost(profile)
    for before, seconds in seen:
        cost.learn(before, seconds)
    for asked in (step, *(before for before, _ in seen)):
        assert cost.seconds(asked) > 0
        assert math.isfinite(cost.seconds(asked))
        by_drafts = cost.by_drafts(asked, most)
        assert by_drafts.shape == (most + 1,)
        assert np.isfinite(by_drafts).all()
        assert (by_drafts > 0).all()
        assert (np.diff(by_drafts) >= 0).all()
        assert by_drafts[0] <= cost.bare(asked) * (1 + 1e-9)


def test_times_that_are_none_are_not_learnt() -> None:
    cost = StepCost(PROFILE)
    for seconds in (0.0, -1.0, math.nan, math.inf):
        cost.learn(Step(4), seconds)
    assert cost.steps == cost.steps_seen(Step(4)) == 0
    assert cost.seconds(Step(4)) == float(PROFILE(4))


# ---- the truth ----


@pytest.mark.parametrize("requests", [1, 4, 32])
@pytest.mark.parametrize("seed", range(3))
def test_the_truth_is_found(requests: int, seed: int) -> None:
    cost = StepCost(PROFILE)
    assert worst(cost, truth, requests) > 0.1, "the profile alone is no good here"
    teach(cost, truth, 100 * len(DRAFTS), requests, seed)
    assert worst(cost, truth, requests) < 0.06
    for drafts in DRAFTS:
        step = Step(requests, drafts)
        assert cost.seconds(step) == pytest.approx(truth(step), rel=0.15), "with the outliers' part in it"


def test_without_noise_it_is_found_soon() -> None:
    cost = StepCost(PROFILE)
    for _ in range(30):
        for drafts in DRAFTS:
            cost.learn(Step(4, drafts), truth(Step(4, drafts)))
    assert worst(cost, truth) < 0.05


def test_outliers_must_be_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above sees it if they are not."""
    unbounded = replace(THRESHOLDS, max_surprise=10.0, hang_factor=100.0)
    monkeypatch.setattr(costing, "THRESHOLDS", unbounded)
    off = []
    for seed in range(3):
        cost = StepCost(PROFILE)
        teach(cost, truth, 100 * len(DRAFTS), seed=seed)
        off.append(worst(cost, truth))
    assert min(off) > 0.06


@pytest.mark.parametrize("factor", [1.8, 1 / 1.8])
def test_a_change_of_speed_is_followed_within_20_steps(factor: float) -> None:
    cost = StepCost(PROFILE)
    teach(cost, truth, 500, outliers=0)
    unseen = [cost.seconds(Step(64, drafts)) for drafts in DRAFTS]
    teach(cost, lambda step: factor * truth(step), 20, seed=1, outliers=0)
    for drafts in DRAFTS:
        real = factor * truth(Step(4, drafts))
        assert cost.seconds(Step(4, drafts)) == pytest.approx(real, rel=0.1)
    for drafts, before in zip(DRAFTS, unseen, strict=True):
        assert cost.seconds(Step(64, drafts)) / before == pytest.approx(factor, rel=0.1), (
            "common to all kinds"
        )
    assert worst(cost, truth) < 0.08, "and hardly touches the ratios"


def test_a_change_of_speed_while_one_kind_is_seen_hardly_touches_the_others() -> None:
    """Always the same number of drafts: the bare step is believed to have slowed down as much."""
    cost = StepCost(PROFILE)
    teach(cost, truth, 700, outliers=0)
    before = cost.seconds(Step(4, 8)) / cost.bare(Step(4, 8))
    for _ in range(50):
        cost.learn(Step(4, 8), 1.8 * truth(Step(4, 8)))
    assert cost.seconds(Step(4, 8)) == pytest.approx(1.8 * truth(Step(4, 8)), rel=0.03)
    assert cost.seconds(Step(4, 8)) / cost.bare(Step(4, 8)) == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize("per_draft", [0.0001, 0.002])
def test_a_change_of_shape_is_followed_in_the_steps_of_a_kind_that_are_remembered(per_draft: float) -> None:
    def changed(step: Step) -> float:
        return truth(step) + (per_draft - 0.0005) * step.drafts

    cost = StepCost(PROFILE)
    teach(cost, truth, 200 * len(DRAFTS), outliers=0)
    off = [worst(cost, changed)]
    assert THRESHOLDS.cost_memory == 100
    for seed in range(4):
        teach(cost, changed, 100 * len(DRAFTS), seed=seed, outliers=0)
        off.append(worst(cost, changed))
    assert off[0] > 0.5
    assert off[1] < 0.7 * off[0], "of a change so large, bounded as it is, a good part"
    assert off[2] < 0.35 * off[0]
    assert off[4] < 0.06


@pytest.mark.parametrize("drafts", [0, 8])
@pytest.mark.parametrize("known", [10, 300])
def test_a_step_that_hangs_changes_little(drafts: int, known: int) -> None:
    cost = StepCost(PROFILE)
    for _ in range(known):
        for count in DRAFTS:
            cost.learn(Step(4, count), truth(Step(4, count)))
    before = cost.seconds(Step(4, drafts)), ratios(cost.seconds)
    cost.learn(Step(4, drafts), 60.0)
    after = cost.seconds(Step(4, drafts)), ratios(cost.seconds)
    assert before[0] <= after[0] < 1.08 * before[0]
    assert after[1] == pytest.approx(before[1], rel=0.02)


def test_a_step_that_hangs_is_left_out_but_not_three_in_a_row() -> None:
    cost = StepCost(PROFILE)
    for _ in range(50):
        assert cost.learn(Step(4), truth(Step(4)))
    before = cost.seconds(Step(4))
    for _ in range(2):
        assert not cost.learn(Step(4), 4 * truth(Step(4)))
    assert cost.seconds(Step(4)) == before
    assert cost.steps == cost.steps_seen(Step(4)) == 50
    assert cost.learn(Step(4), 4 * truth(Step(4))), "that is no accident any more"
    assert cost.seconds(Step(4)) > before
    assert cost.learn(Step(4), 2.5 * truth(Step(4))), "slow, but it does not hang"
    assert not cost.learn(Step(4), 5 * truth(Step(4))), "in a row means in a row"


def test_a_step_that_seems_to_take_no_time_changes_nothing() -> None:
    """Its output lay there while the process hung: the one before took too long by as much."""
    cost = StepCost(PROFILE)
    for _ in range(50):
        cost.learn(Step(4), truth(Step(4)))
    before = cost.seconds(Step(4)), cost.seconds(Step(4, 8))
    assert not cost.learn(Step(4), 10 * truth(Step(4)))
    assert not cost.learn(Step(4), truth(Step(4)) / 100)
    assert (cost.seconds(Step(4)), cost.seconds(Step(4, 8))) == before
    for _ in range(2):
        assert not cost.learn(Step(4), truth(Step(4)) / 10)
        assert not cost.learn(Step(4), 10 * truth(Step(4))), "in a row means in a row"


def test_a_machine_that_became_much_faster_is_believed_the_third_time() -> None:
    cost = StepCost(PROFILE)
    for _ in range(50):
        cost.learn(Step(4), truth(Step(4)))
    assert [cost.learn(Step(4), truth(Step(4)) / 10) for _ in range(3)] == [False, False, True]
    assert cost.seconds(Step(4)) == pytest.approx(truth(Step(4)) / 10, rel=0.05)


def test_a_kind_of_step_that_is_much_faster_than_believed_is_learnt_though_it_comes_now_and_then() -> None:
    """One with a prompt, say, on a machine where the host is what takes long."""
    cost = StepCost(PROFILE)
    prompt = Step(4, prefill=512)
    for _ in range(60):
        for _ in range(5):
            cost.learn(Step(4), truth(Step(4)))
        cost.learn(prompt, truth(prompt) / 5)
    assert cost.seconds(Step(4)) == pytest.approx(truth(Step(4)), rel=0.1)
    assert cost.seconds(prompt) < 1.6 * truth(prompt) / 5


def test_an_outlier_as_the_first_step_with_so_many_drafts() -> None:
    """Not quite three times too long, so it does not hang; what it is believed to cost keeps it from being
    tried again."""
    cost = StepCost(PROFILE)
    for drafts in [0] * 20 + [4] * 20:
        cost.learn(Step(4, drafts), float(PROFILE(4 + drafts)))
    cost.learn(Step(4, 16), 2.9 * float(PROFILE(20)))
    believed = cost.seconds(Step(4, 16)) / cost.seconds(Step(4))
    assert believed < 1.3 * float(PROFILE(20)) / float(PROFILE(4))


def test_a_machine_that_slows_down_while_a_batch_drains() -> None:
    """Every step is of another kind than those before, so that nothing is known of its kind."""
    cost = StepCost(PROFILE)
    for _ in range(5):
        cost.learn(Step(32), float(PROFILE(32)))
    for requests in range(31, 11, -1):
        cost.learn(Step(requests, 2 * requests), 1.25 * float(PROFILE(3 * requests)))
    assert cost.seconds(Step(11)) == pytest.approx(1.25 * float(PROFILE(11)), rel=0.08)


def test_hanging_as_the_very_first_step() -> None:
    """There is nothing to compare it with; it must be forgotten soon all the same."""
    cost = StepCost(PROFILE)
    cost.learn(Step(4), 60.0)
    for _ in range(150):
        cost.learn(Step(4), truth(Step(4)))
    assert cost.seconds(Step(4)) == pytest.approx(truth(Step(4)), rel=0.1)


# ---- what has not been seen ----


@given(STEPS)
def test_at_first_it_is_the_profile(step: Step) -> None:
    assert StepCost(PROFILE).seconds(step) == pytest.approx(float(PROFILE(step.tokens)))
    assert StepCost(PROFILE).steps_seen(step) == 0


def test_a_kind_not_seen_falls_back_on_the_profile_at_the_speed_of_the_moment() -> None:
    cost = StepCost(PROFILE)
    for _ in range(100):
        cost.learn(Step(1), 3 * float(PROFILE(1)))
    for step in (Step(32), Step(32, 64), Step(200, 0, 300)):
        assert cost.seconds(step) == pytest.approx(3 * float(PROFILE(step.tokens)), rel=0.02)
        assert cost.steps_seen(step) == 0
    assert cost.seconds(Step(1, 4)) == pytest.approx(3 * float(PROFILE(5)), rel=0.02), "as with no drafts"
    assert cost.steps_seen(Step(1)) == 100


def test_a_kind_seen_with_other_prompts_and_contexts() -> None:
    """What drafts cost there is taken from steps with as many requests."""
    cost = StepCost(PROFILE)
    teach(cost, truth, 700, outliers=0)
    for step in (Step(4, 16, 0, 4 * 9000), Step(4, 16, 500, 0)):
        alike = not step.prefill  # beside prompts it is another matter
        assert cost.steps_seen(step) == 0
        own = cost.seconds(step) / cost.bare(step)
        profile = float(PROFILE(step.tokens) / PROFILE(step.tokens - 16))
        like = cost.seconds(Step(4, 16)) / cost.bare(Step(4, 16)) / float(PROFILE(20) / PROFILE(4))
        assert own == pytest.approx(profile * like if alike else profile)


def long_and_short_contexts() -> StepCost:
    """Bare steps at long contexts, which take twice as long, among steps at short ones."""
    cost = StepCost(PROFILE)
    teach(cost, truth, 700, outliers=0)
    for seed in range(150):
        cost.learn(Step(4, 0, 0, 4 * 9000), 2 * truth(Step(4)))
        teach(cost, truth, 1, seed=seed, outliers=0)
    return cost


@pytest.mark.xfail(
    strict=True,
    reason="its level is taken from bare steps of all contexts: 1.17, where its like has 1.43",
)
def test_a_slower_kind_of_which_only_the_bare_step_is_known() -> None:
    """That long contexts take longer is no reason to believe that drafts come free there."""
    by_drafts = long_and_short_contexts().by_drafts(Step(4, 0, 0, 4 * 9000), 16)
    assert by_drafts[16] / by_drafts[0] > 1.2


def test_what_was_seen_counts_more_than_what_is_thought() -> None:
    cost = long_and_short_contexts()
    by_drafts = cost.by_drafts(Step(4), 16)
    for drafts in (4, 8, 16):
        assert by_drafts[drafts] == pytest.approx(cost.seconds(Step(4, drafts)), rel=0.15)


def test_kinds_are_told_apart() -> None:
    cost = StepCost(PROFILE)
    short, long = Step(4, 2, 0, 0), Step(4, 2, 0, 4 * 20_000)
    for _ in range(200):
        cost.learn(short, 0.02)
        cost.learn(long, 0.03)
    assert cost.seconds(short) == pytest.approx(0.02, rel=0.04)
    assert cost.seconds(long) == pytest.approx(0.03, rel=0.04)


def test_by_drafts_at_the_places_of_the_scale() -> None:
    """The nearest costs that never fall, each weighed by the steps in which it was seen."""
    cost = StepCost(PROFILE)
    teach(cost, truth, 30, outliers=0)
    steps = [Step(4, place) for place in SCALE if place <= 40]
    seconds = [cost.seconds(step) for step in steps]
    assert seconds != sorted(seconds), "there is something to mend"
    seen = [cost.steps_seen(step) or THRESHOLDS.prior_weight for step in steps]
    rising = isotonic_regression(seconds, weights=seen).x
    by_drafts = cost.by_drafts(Step(4, 3), 40)
    at_places = [by_drafts[step.drafts] for step in steps]
    assert at_places == pytest.approx(list(rising), rel=0.003), "the profile rises a little between places"
    assert cost.by_drafts(Step(4), 0) == pytest.approx([cost.bare(Step(4))])


def test_a_number_of_drafts_seen_rarely_does_not_make_all_larger_ones_dear() -> None:
    """One draft token was verified in a few slow steps. That made three, seen often, seem 26% dearer than 0
    for hundreds of steps of a benchmark, and the drafter was not asked."""
    cost = StepCost(PROFILE)
    for _ in range(50):
        cost.learn(Step(1), 0.0200)
        cost.learn(Step(1, 3), 0.0206)
    for _ in range(2):
        cost.learn(Step(1, 1), 0.0300)
    by_drafts = cost.by_drafts(Step(1), 8)
    assert by_drafts[3] / by_drafts[0] < 1.05


# ---- the profile ----


@given(PROFILES, st.lists(st.integers(0, 20_000), min_size=2, max_size=20))
def test_a_profile_never_falls_and_goes_on(profile: PassProfile, tokens: list[int]) -> None:
    seconds = [profile(count) for count in sorted(tokens)]
    assert all(value > 0 for value in seconds)
    assert seconds == sorted(seconds)
    assert profile(profile.tokens[-1]) == pytest.approx(max(profile.seconds))
    assert profile(0) == pytest.approx(profile.seconds[0])
    assert PassProfile.from_dict(profile.as_dict()) == profile


def test_a_profile_between_and_beyond() -> None:
    profile = PassProfile((10, 20, 40), (1.0, 1.0, 3.0))
    assert [profile(count) for count in (1, 10, 15, 20, 30, 40)] == pytest.approx([1, 1, 1, 1, 2, 3])
    assert [profile(50), profile(140)] == pytest.approx([4, 13]), "as the last piece, where it is steepest"
    flat = PassProfile((10, 20, 40), (1.0, 4.0, 4.0))
    assert flat(70) == pytest.approx(7), "as from the first to the last, where the last piece is flat"
    assert PassProfile((8,), (0.4,))(16) == pytest.approx(0.8), "in proportion"
    noisy = PassProfile((1, 2, 3), (1.0, 0.5, 2.0))
    assert [noisy(count) for count in (1, 2, 3)] == pytest.approx([1, 1, 2])


@pytest.mark.parametrize(
    ("tokens", "seconds", "message"),
    [
        ((), (), "positive"),
        ((1, 2), (1.0,), "rising"),
        ((2, 1), (1.0, 2.0), "rising"),
        ((1, 1), (1.0, 2.0), "rising"),
        ((1, 2), (1.0, 0.0), "positive"),
        ((1, 2), (1.0, -1.0), "positive"),
        ((1, 2), (1.0, math.nan), "positive"),
        ((1, 2), (math.inf, 1.0), "positive"),
    ],
)
def test_a_profile_that_is_none(tokens: Any, seconds: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PassProfile(tokens, seconds)


def test_the_guess() -> None:
    assert GUESS(1) == GUESS(64) == pytest.approx(0.02)
    assert GUESS(1024) > GUESS(512) > GUESS(64)


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_the_scale(count: int) -> None:
    place = costing.on_scale(count)
    assert place <= count
    assert place in SCALE
    assert count < max(place * 1.6, 4)
