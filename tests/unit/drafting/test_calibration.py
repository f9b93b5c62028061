"""Stated against seen acceptance, in simulations."""

import random
from itertools import accumulate, pairwise
from operator import mul

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.drafting.calibration import MEMORY, Calibration


def survival(conditionals: list[float]) -> list[float]:
    return list(accumulate(conditionals, mul))


def simulate(
    calibration: Calibration, stated: list[float], truth: list[float], drafts: int, seed: int = 0
) -> None:
    """Drafts that state `stated`, of which each token is right with the conditional probability `truth`."""
    rng = random.Random(seed)
    for _ in range(drafts):
        accepted = 0
        while accepted < len(truth) and rng.random() < truth[accepted]:
            accepted += 1
        calibration.learn("p", stated, accepted, len(stated))


def test_before_anything_is_seen_the_proposer_is_believed() -> None:
    assert Calibration().survival("p", [0.9, 0.5, 0.5, 0.0]) == pytest.approx([0.9, 0.5, 0.5, 0.0])
    assert Calibration().survival("p", []) == []
    assert Calibration().survival("p", [0.0, 0.0]) == [0.0, 0.0]


@pytest.mark.parametrize("truth", [[0.3, 0.9, 0.6], [0.95, 0.2, 0.5], [1.0, 1.0, 0.0], [0.5, 0.5, 0.5]])
@pytest.mark.parametrize("stated", [[0.9, 0.8, 0.7], [0.3, 0.1, 0.05]])
def test_the_truth_is_found(stated: list[float], truth: list[float]) -> None:
    """A count reaches back 500 observations: the standard error is 0.02 where all 500 are judged."""
    calibration = Calibration()
    simulate(calibration, stated, truth, 8000)
    assert calibration.survival("p", stated) == pytest.approx(survival(truth), abs=0.07)


def test_confident_and_timid_drafts_are_told_apart() -> None:
    calibration = Calibration()
    simulate(calibration, [0.9], [0.7], 5000)
    simulate(calibration, [0.2], [0.4], 5000)
    assert calibration.survival("p", [0.9]) == pytest.approx([0.7], abs=0.07)
    assert calibration.survival("p", [0.2]) == pytest.approx([0.4], abs=0.07)
    assert calibration.survival("another", [0.9]) == [0.9]


def test_what_was_seen_can_be_doubted() -> None:
    calibration = Calibration()
    simulate(calibration, [0.8, 0.6], [0.9, 0.9], 2000)
    believed = calibration.survival("p", [0.8, 0.6])
    calibration.doubt(20)
    assert calibration.survival("p", [0.8, 0.6]) == pytest.approx(believed, abs=0.07)
    simulate(calibration, [0.8, 0.6], [0.1, 0.1], 60)
    assert calibration.survival("p", [0.8])[0] < 0.4


def test_a_change_is_followed() -> None:
    calibration = Calibration()
    simulate(calibration, [0.8], [0.9], 20_000)
    simulate(calibration, [0.8], [0.1], 4 * MEMORY)
    assert calibration.survival("p", [0.8]) == pytest.approx([0.1], abs=0.07)


def test_what_was_not_judged_is_not_counted() -> None:
    calibration, stated = Calibration(), [0.8, 0.6, 0.5]
    calibration.learn("p", stated, 0, 0)
    assert calibration.survival("p", stated) == pytest.approx(stated)
    for _ in range(100):
        calibration.learn("p", stated, 1, 1)
    first, second, third = calibration.survival("p", stated)
    assert first > 0.95
    assert second / first == pytest.approx(0.6 / 0.8), "the target wrote one token: no word on the second"
    for _ in range(100):
        calibration.learn("p", stated, 1, 3)
    first, second, third = calibration.survival("p", stated)
    assert second / first < 0.05
    assert third / second == pytest.approx(0.5 / 0.6), "behind a rejected token nothing is judged"


PROBABILITIES = st.lists(st.floats(0.0, 1.0), max_size=12).map(lambda values: sorted(values, reverse=True))


@given(st.lists(st.tuples(PROBABILITIES, st.integers(0, 12), st.integers(0, 12)), max_size=30), PROBABILITIES)
def test_always_probabilities_that_never_rise(
    seen: list[tuple[list[float], int, int]], stated: list[float]
) -> None:
    calibration = Calibration()
    for draft, accepted, judged in seen:
        calibration.learn("p", draft, min(accepted, judged, len(draft)), min(judged, len(draft)))
    corrected = calibration.survival("p", stated)
    assert len(corrected) == len(stated)
    assert all(1 >= a >= b >= 0 for a, b in pairwise([1.0, *corrected]))


@pytest.mark.parametrize("stated", [[1.0 + 1e-9], [1e-12, 1e-9]])
def test_also_of_a_draft_that_is_not_quite_sound(stated: list[float]) -> None:
    calibration = Calibration()
    for _ in range(MEMORY):
        calibration.learn("p", [0.01], 1, 1)
    corrected = calibration.survival("p", stated)
    assert all(1 >= a >= b >= 0 for a, b in pairwise([1.0, *corrected]))


def test_many_at_once_as_one_by_one() -> None:
    one, many, rng = Calibration(), Calibration(), np.random.default_rng(0)
    stated = np.sort(rng.random((50, 5)))[:, ::-1]
    judged = rng.integers(0, 6, 50)
    accepted = np.minimum(rng.integers(0, 6, 50), judged)
    many.learn_all("p", stated, accepted, judged)
    for row in range(50):
        one.learn("p", stated[row].tolist(), int(accepted[row]), int(judged[row]))
    corrected, own = many.survival_of_all("p", stated, np.ones(50))
    assert own.tolist() == corrected.tolist() == [one.survival("p", row) for row in stated.tolist()]
    assert one.report() == many.report()


@given(PROBABILITIES.filter(bool), st.floats(0.0, 2.0), st.floats(0.0, 2.0))
def test_a_factor_scales_each_token(stated: list[float], a: float, b: float) -> None:
    """Never above 1, never rising along the draft, and the larger the factor the more is believed."""
    _, (low, high) = Calibration().survival_of_all("p", np.array([stated, stated]), np.array(sorted((a, b))))
    assert (low <= high).all()
    for row in (low, high):
        assert all(1 >= before >= after >= 0 for before, after in pairwise([1.0, *row]))
    _, (halved,) = Calibration().survival_of_all("p", np.array([stated]), np.array([0.5]))
    plain = Calibration().survival("p", stated)
    assert halved.tolist() == pytest.approx([value * 0.5 ** (j + 1) for j, value in enumerate(plain)])


def test_the_report_is_of_tokens_whose_forerunners_were_right() -> None:
    calibration = Calibration()
    simulate(calibration, [0.9, 0.8, 0.7], [0.8, 0.5, 0.25], 3000)
    assert calibration.report() == {"p": pytest.approx([0.8, 0.5, 0.25], abs=0.1)}


def test_what_is_expected_of_a_draft_is_what_drafts_brought() -> None:
    """Whatever was stated of them: a proposer that is sure of some and not of others is right on average."""
    calibration, one = Calibration(), np.ones(1)
    assert calibration.expected("p", [0.7, 0.49], one)[0].tolist() == pytest.approx([0.7, 0.49])
    assert calibration.expected("p", [], one).shape == (1, 0)
    for draft in range(2000):
        simulate(calibration, [0.95, 0.9], [0.9, 0.8], 1, seed=2 * draft)
        simulate(calibration, [0.2, 0.05], [0.3, 0.2], 1, seed=2 * draft + 1)
    first, second = calibration.expected("p", [0.7, 0.49], one)[0].tolist()
    assert first == pytest.approx(0.6, abs=0.1)
    # The second token is judged where the first was right: three times as often of those it was sure of.
    assert second / first == pytest.approx(0.65, abs=0.12)
    halved, full = calibration.expected("p", [0.7, 0.49], np.array([0.5, 1.0]))
    assert halved.tolist() == pytest.approx([full[0] / 2, full[1] / 4])


def test_drafts_that_were_cut_count_in_what_is_expected() -> None:
    """Only those that were sure are judged at later positions; they do not stand for the others."""
    calibration, random = Calibration(), np.random.default_rng(1)
    rates, length = (0.92, 0.45), 5
    for draft in range(1500):
        rate = rates[draft % 2]
        stated = [rate ** (j + 1) for j in range(length)]
        verified = sum(value > 0.35 for value in calibration.survival("p", stated))
        right = int((random.random(length) < rate).cumprod().sum())
        written = min(right, verified) + 1
        calibration.learn("p", stated, min(right, written), min(length, written))
    expected = calibration.expected("p", [0.7 ** (j + 1) for j in range(length)], np.ones(1))[0]
    truth = [sum(rate ** (j + 1) for rate in rates) / 2 for j in range(length)]
    assert expected.tolist() == pytest.approx(truth, abs=0.05)
