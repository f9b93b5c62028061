"""The formulas against a simulation of drafting and accepting."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.planning.cost import CostCurve
from slipstream.planning.prediction import (
    Acceptance,
    Situation,
    best_num_draft_tokens,
    break_even_alpha,
    break_even_load,
    expected_tokens,
    flat_curve,
    predicted_speedup,
    price_per_million_tokens,
    speedup,
    tokens_per_second,
)


@pytest.mark.parametrize(("alpha", "k"), [(0.0, 3), (0.3, 1), (0.6, 4), (0.9, 8), (1.0, 5)])
def test_expected_tokens_against_simulation(alpha: float, k: int) -> None:
    """20,000 passes: the mean's standard error is below 0.02, the tolerance is five of them."""
    rng = random.Random(0)
    passes = 20_000
    total = 0
    for _ in range(passes):
        accepted = 0
        while accepted < k and rng.random() < alpha:
            accepted += 1
        total += accepted + 1
    assert expected_tokens(alpha, k) == pytest.approx(total / passes, abs=0.1)


def test_a_free_drafter_speeds_up_by_the_tokens_per_pass() -> None:
    assert speedup(0.6, 4, 0.0) == expected_tokens(0.6, 4)


def test_a_useless_drafter_only_costs() -> None:
    assert speedup(0.0, 4, 0.1) == pytest.approx(1 / 1.4)
    assert best_num_draft_tokens(0.0, 0.1) == 0


def test_better_acceptance_never_asks_for_fewer_tokens() -> None:
    best = [best_num_draft_tokens(alpha / 20, 0.05) for alpha in range(20)]
    assert best == sorted(best)


def test_not_a_probability() -> None:
    with pytest.raises(ValueError, match=r"alpha=1\.5"):
        expected_tokens(1.5, 3)


@given(st.floats(0.0, 1.0), st.integers(0, 8))
def test_constant_acceptance_is_the_formula(alpha: float, k: int) -> None:
    assert Acceptance.constant(alpha, k).tokens == pytest.approx(expected_tokens(alpha, k))
    assert predicted_speedup(
        flat_curve(8), Acceptance.constant(alpha, k), Situation(1), drafting=0.05 * k
    ) == pytest.approx(speedup(alpha, k, 0.05))


def copying_text(stop: float, stretches: int = 6000) -> list[tuple[bool, bool]]:
    """Per position: does the proposer find a match there, and is its token right? Copied stretches alternate
    with new text, as for an n-gram index on an edit; within one a token is wrong with probability `stop`."""
    rng = random.Random(1)
    text = []
    for _ in range(stretches):
        text += [(True, rng.random() >= stop) for _ in range(rng.choice([1, 2, 3, 5, 9, 14, 30]))]
        text += [(False, False)] * rng.randint(1, 12)
    return text


def draft(text: list[tuple[bool, bool]], k: int) -> Acceptance:
    """Go through the text with up to `k` draft tokens per pass."""
    passes = position = 0
    offered, accepted = [0] * k, [0] * k
    while position < len(text):
        passes += 1
        kept = 0
        if text[position][0]:
            offered = [n + 1 for n in offered]
            while kept < k and position + kept < len(text) and text[position + kept][1]:
                accepted[kept] += 1
                kept += 1
        position += kept + 1
    return Acceptance(tuple(n / passes for n in offered), tuple(n / passes for n in accepted))


@pytest.mark.parametrize("k", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("stop", [0.0, 0.1, 0.3])
def test_smaller_k_from_a_larger_one_against_simulation(k: int, stop: float) -> None:
    """Measured once at K=8, the tokens per pass of a smaller K are known within 3%, and the draft tokens
    verified within 10%."""
    text = copying_text(stop)
    predicted, truth = draft(text, 8).limited_to(k), draft(text, k)
    assert predicted.tokens == pytest.approx(truth.tokens, rel=0.03)
    assert predicted.drafts == pytest.approx(truth.drafts, rel=0.10)


def test_cutting_off_the_columns_would_not_do() -> None:
    """1 + s_1 + ... + s_K is what a smaller K would give if a run that it cuts were lost."""
    text = copying_text(0.0)
    cut = 1 + sum(draft(text, 8).survival[:2])
    assert abs(cut - draft(text, 2).tokens) > 0.2


def test_a_limit_of_nothing_and_of_everything() -> None:
    kept = Acceptance.constant(0.5, 4)
    assert kept.limited_to(0).tokens == 1.0
    assert kept.limited_to(4) == kept.limited_to(9) == kept


CURVE = CostCurve(
    requests=(1, 8, 32),
    drafts=(0, 4, 8),
    seconds=((0.020, 0.020, 0.022), (0.022, 0.030, 0.044), (0.030, 0.070, 0.120)),
    bare=(0.020, 0.022, 0.030),
    prefill_fixed=0.01,
    prefill_per_token=0.0002,
)


def test_the_cost_curve_between_and_beyond_its_points() -> None:
    assert CURVE.step(1, 0) == pytest.approx(0.020)
    assert CURVE.step(8, 4) == pytest.approx(0.030)
    assert CURVE.step(20, 4) == pytest.approx(0.050)
    assert CURVE.step(8, 6) == pytest.approx(0.037)
    assert CURVE.step(56, 0) == pytest.approx(0.038)
    assert CURVE.step(8, 12) == pytest.approx(0.058)


def test_the_same_drafts_pay_alone_and_lose_under_load() -> None:
    kept = Acceptance.constant(0.5, 4)
    assert predicted_speedup(CURVE, kept, Situation(1)) == pytest.approx(kept.tokens)
    assert predicted_speedup(CURVE, kept, Situation(32)) < 1
    first_loss = break_even_load(CURVE, kept, 0.0, 64)
    assert first_loss is not None
    assert predicted_speedup(CURVE, kept, Situation(first_loss)) < 1
    assert predicted_speedup(CURVE, kept, Situation(first_loss - 1)) >= 1


def test_at_the_break_even_acceptance_nothing_is_gained() -> None:
    alpha = break_even_alpha(CURVE, 4, Situation(8), cost=0.02)
    assert alpha is not None
    drafting = 0.02 * 4 * CURVE.step(8, 0)
    assert predicted_speedup(CURVE, Acceptance.constant(alpha, 4), Situation(8), drafting) == pytest.approx(1)
    hopeless = CostCurve((1,), (0, 4), ((0.01, 0.10),))
    assert break_even_alpha(hopeless, 4, Situation(1), 0.0) is None


def test_prompts_dilute_the_gain() -> None:
    """8 requests of 100 prompt tokens and 11 answer tokens: one prefill step of 0.17 s, ten decode steps."""
    bare = tokens_per_second(CURVE, None, Situation(8, 100, 11))
    assert bare == pytest.approx(8 * 11 / (0.17 + 10 * 0.022))
    kept = Acceptance.constant(0.9, 4)
    with_prompts = predicted_speedup(CURVE, kept, Situation(8, 100, 11))
    assert 1 < with_prompts < predicted_speedup(CURVE, kept, Situation(8))


def test_the_slip_with_c_in_the_numerator_would_show() -> None:
    """'c * tau / (c * K + 1)' is below 1 for every real pair: here it would say 0.11 for a gain of 2.2x."""
    assert speedup(0.7, 4, 0.05) == pytest.approx(2.311, abs=0.001)
    assert 0.05 * expected_tokens(0.7, 4) / (0.05 * 4 + 1) < 0.2


def test_an_engine_that_could_speculate_but_does_not_is_a_little_slower() -> None:
    curve = CostCurve((1, 8), (0, 4), ((0.021, 0.022), (0.024, 0.030)), bare=(0.020, 0.023))
    assert predicted_speedup(curve, Acceptance((), ()), Situation(1)) == pytest.approx(0.020 / 0.021)
    assert curve.bare_step(8) == 0.023
    assert CostCurve.from_dict(curve.as_dict()) == curve


def test_price() -> None:
    assert price_per_million_tokens(3.6, 1000) == pytest.approx(1.0)
