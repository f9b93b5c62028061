"""The formulas against a simulation of drafting and accepting."""

import random

import pytest

from slipstream.planning.prediction import best_num_draft_tokens, expected_tokens, speedup


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
