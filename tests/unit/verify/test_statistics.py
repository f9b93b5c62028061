"""Error rates and power by simulation: what is stated must hold."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from slipstream.verify.statistics import (
    BOUND_ERROR,
    LOOKS,
    Judgement,
    Sample,
    exact_p_value,
    findable,
    judge,
    p_value,
    variation_bound,
)  # fmt: skip

LAW = np.array([0.4, 0.2, 0.1, 0.1, 0.08, 0.05, 0.04, 0.03])
ERROR = 1e-3


def shifted(variation: float) -> np.ndarray:
    """Half of the probability gains: the direction that is hardest to see."""
    up = np.array([1, 0, 1, 0, 0, 0, 0, 0], bool)
    return np.where(up, LAW * (1 + variation / LAW[up].sum()), LAW * (1 - variation / LAW[~up].sum()))


def run(truth: np.ndarray, draws: int, seed: int, wanted: float = 0.0) -> Judgement:
    """A whole check, with its looks."""
    random = np.random.default_rng(seed)
    counts = np.zeros(len(LAW))
    for look in LOOKS:
        counts += random.multinomial(int(draws * look) - int(counts.sum()), truth)
        judgement = judge([Sample(counts, law=LAW)], ERROR, wanted, last=look == LOOKS[-1])
        if judgement:
            return judgement
    raise AssertionError


@pytest.mark.parametrize("other_counts", [False, True])
def test_p_values_are_uniform_if_nothing_differs(other_counts: bool) -> None:
    random = np.random.default_rng(0)
    found = []
    for _ in range(2000):
        others = random.multinomial(3000, LAW).astype(float) if other_counts else None
        law = None if other_counts else LAW
        found.append(p_value([Sample(random.multinomial(2000, LAW).astype(float), law, others)]))
    assert stats.kstest(found, "uniform").pvalue > 1e-3


def test_several_prompts_count_together() -> None:
    random = np.random.default_rng(0)
    samples = [Sample(random.multinomial(2000, shifted(0.03)).astype(float), law=LAW) for _ in range(6)]
    assert p_value(samples) < 0.01 * min(p_value([sample]) for sample in samples)


def test_false_alarms_are_as_rare_as_stated() -> None:
    alarms = sum(run(LAW, 4000, seed).verdict == "differs" for seed in range(3000))
    assert alarms <= stats.binom.isf(1e-3, 3000, ERROR)


def test_rare_categories_give_no_more_alarms() -> None:
    """Each expected ten times, the fewest that are allowed: there the chi-square distribution gives twice as
    many alarms as it says at 1e-3, and six times as many at 1e-5."""
    draws, trials = 1000, 40_000
    law = np.array([0.93, *[0.01] * 7])
    counts = np.random.default_rng(3).multinomial(draws, law, trials).astype(float)
    chi_square = ((counts - law * draws) ** 2 / (law * draws)).sum(1)
    suspected = [Sample(one, law=law) for one in counts[stats.chi2.sf(chi_square, len(law) - 1) < ERROR]]
    too_many = stats.binom.isf(1e-4, trials, ERROR)
    assert len(suspected) > too_many
    assert sum(exact_p_value([sample], ERROR) < ERROR for sample in suspected) <= too_many
    judged = [judge([sample], ERROR * len(LOOKS), 0.0, last=True) for sample in suspected]
    assert sum(one is not None and one.verdict == "differs" for one in judged) <= too_many


@pytest.mark.parametrize("other_counts", [False, True])
def test_exact_p_values_agree_where_categories_are_frequent(other_counts: bool) -> None:
    random = np.random.default_rng(5)
    for _ in range(5):
        others = random.multinomial(3000, LAW).astype(float) if other_counts else None
        samples = [Sample(random.multinomial(3000, LAW).astype(float), None if other_counts else LAW, others)]
        assert exact_p_value(samples, 1e-3) == pytest.approx(p_value(samples), abs=0.03)


def test_no_false_alarm_in_a_hundred_runs() -> None:
    """Which shows, by itself, a rate of at most 3% (exact binomial bound, 95%)."""
    assert not any(run(LAW, 4000, seed).verdict == "differs" for seed in range(10_000, 10_100))
    assert pytest.approx(0.0295, abs=1e-4) == 1 - 0.05 ** (1 / 100)


@pytest.mark.parametrize("draws", [2000, 8000])
def test_stated_variation_is_found(draws: int) -> None:
    truth = shifted(findable(draws, len(LAW) - 1, ERROR))
    found = sum(run(truth, draws, seed).verdict == "differs" for seed in range(400))
    assert 0.85 <= found / 400 <= 0.97


def test_more_draws_find_less() -> None:
    assert findable(40_000, 7, ERROR) == pytest.approx(findable(10_000, 7, ERROR) / 2)
    assert findable(100, 0, ERROR) == 1.0


def concentrated(variation: float) -> np.ndarray:
    """One rare text is written in place of the likeliest."""
    truth = LAW.copy()
    truth[0] -= variation
    truth[-1] += variation
    return truth


@pytest.mark.parametrize("variation", [0.01, 0.03, 0.1, 0.3])
@pytest.mark.parametrize("direction", [shifted, concentrated])
@pytest.mark.parametrize(("prompts", "other_counts"), [(1, False), (3, False), (2, True)])
def test_bound_holds(
    variation: float, direction: Callable[[float], np.ndarray], prompts: int, other_counts: bool
) -> None:
    random = np.random.default_rng(1)
    truth = direction(variation)
    wrong = 0
    for _ in range(150):
        samples = [
            Sample(
                random.multinomial(1000, truth).astype(float),
                None if other_counts else LAW,
                random.multinomial(1000, LAW).astype(float) if other_counts else None,
            )
            for _ in range(prompts)
        ]
        wrong += variation_bound(samples, BOUND_ERROR) < variation
    assert wrong <= stats.binom.isf(1e-4, 150, BOUND_ERROR)


def test_clear_cases_stop_early() -> None:
    same = run(LAW, 40_000, 0, wanted=0.05)
    assert same.verdict == "same"
    assert same.draws == int(40_000 * LOOKS[0])
    different = run(shifted(0.15), 40_000, 0, wanted=0.05)
    assert different.verdict == "differs"
    assert different.draws == int(40_000 * LOOKS[0])


def test_unclear_goes_on_to_the_end() -> None:
    judgement = run(LAW, 1000, 0, wanted=0.01)
    assert judgement.verdict == "unclear"
    assert judgement.draws == 1000
    assert judgement.bound > 0.01


def test_noise_of_batches_is_allowed_for() -> None:
    """In bfloat16 every batch has a law of its own. Not to allow for it gives ten times the alarms."""
    random = np.random.default_rng(0)
    law = np.full(8, 1 / 8)
    deviations = 0.03 * law
    alarms = Counter[bool]()
    for _ in range(3000):
        shifted = law + deviations * random.standard_normal(8)
        counts = random.multinomial(6000, shifted / shifted.sum()).astype(float)
        for allowed in (False, True):
            sample = Sample(counts, law=law, deviations=deviations if allowed else None)
            alarms[allowed] += p_value([sample]) < 0.01
    assert alarms[True] <= 30 < 300 < alarms[False]


def test_simulated_p_values_allow_for_it_too() -> None:
    law = np.full(8, 1 / 8)
    counts = 6000 * law * (1 + 0.06 * np.array([1, -1] * 4))
    told, exact = (Sample(counts, law=law, deviations=d) for d in (None, 0.03 * law))
    assert exact_p_value([told], 1e-3) < 0.01 < exact_p_value([exact], 1e-3)
    assert exact_p_value([exact], 1e-3) == pytest.approx(p_value([exact]), rel=0.5)
