"""Counts against a law, or against other counts: a test, a bound, and what they can find.

Total variation (TV) is half the sum of all differences in probability: the largest difference that any event
can have. What is said of it here is over the categories counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LOOKS = (1 / 3, 1 / 2, 1.0)
"""After which shares of the draws the counts are looked at; the error rates are shared among the looks."""
BOUND_ERROR = 0.05
"""A cell's bound is wrong in at most so many of such checks."""
BEYOND = 10
"""Simulated samples that are expected beyond the limit of an alarm. A simulated p-value is valid with any
number of them; with more, fewer differences are missed at the limit."""
AT_A_TIME = 100_000  # simulated samples
NEGLIGIBLE = 0.01
"""Of a chi-square, which is on average one for each degree of freedom."""
OVERWHELMING = 1e-3
"""A p-value that is smaller than an alarm's by this factor need not be simulated: at 1e-5 the chi-square
distribution is wrong by a factor of 6, and by one of about 1.8 more for each power of ten."""


@dataclass(frozen=True)
class Sample:
    """Counts over the categories of one prompt, and what they are held against: the law's probabilities, or
    other counts."""

    counts: Floats
    law: Floats | None = None
    others: Floats | None = None
    deviations: Floats | None = None
    """By how much the law's probabilities are others in other batches (rounding in bfloat16)."""

    @property
    def draws(self) -> float:
        return float(self.counts.sum())

    @property
    def effective_draws(self) -> float:
        """Return how many draws against a known distribution would say as much."""
        if self.others is None:
            return self.draws
        others = float(self.others.sum())
        return self.draws * others / (self.draws + others)

    @property
    def noise(self) -> float:
        """Return what chi-square is larger by, on average, if these draws were made in other batches."""
        if self.law is None or self.deviations is None:
            return 0.0
        return self.draws * float((self.deviations**2 / self.law).sum())

    def chi_square(self) -> float:
        """Return Pearson's chi-square."""
        return float(self._chi_square(self.counts))

    def simulate(self, random: np.random.Generator, size: int) -> Floats:
        """Draw so many values of chi-square that there would be without any difference."""
        if self.law is not None:
            law = self.law
            if self.deviations is not None and self.noise > NEGLIGIBLE:
                shifts = self.deviations * random.standard_normal((size, len(law)))
                law = np.maximum(law + shifts, law / 100)
            return self._chi_square(
                random.multinomial(int(self.draws), law / law.sum(-1, keepdims=True), size)
            )
        assert self.others is not None
        both = (self.counts + self.others).astype(int)
        draws = int(self.draws)
        return self._chi_square(random.multivariate_hypergeometric(both, draws, size, method="marginals"))

    def _chi_square(self, counts: Any) -> Floats:
        """Return chi-square of these counts, or of each row of them, with the same draws as those seen; if
        there are other counts, with the same sums."""
        if self.law is not None:
            expected = self.law * self.draws
            return np.asarray(((counts - expected) ** 2 / expected).sum(-1), float)
        assert self.others is not None
        n, m = self.draws, float(self.others.sum())
        both = self.counts + self.others
        difference = counts * np.sqrt(m / n) - (both - counts) * np.sqrt(n / m)
        return np.asarray((difference**2 / np.maximum(both, 1)).sum(-1), float)

    def variation(self) -> float:
        """Return the TV seen: on average more than there is, never less."""
        if self.law is not None:
            law = self.law
        else:
            assert self.others is not None
            law = self.others / self.others.sum()
        return float(np.abs(self.counts / self.draws - law).sum() / 2)


def _freedom(samples: Sequence[Sample]) -> int:
    return sum(len(sample.counts) - 1 for sample in samples)


def _chi_square(samples: Sequence[Sample]) -> float:
    return sum(sample.chi_square() for sample in samples)


def p_value(samples: Sequence[Sample]) -> float:
    """Return how likely so large a difference is if there is none but for other batches, by the chi-square
    distribution. Where categories are expected ten times only, 1e-3 comes up twice as often as it says, and
    1e-5 six times."""
    from scipy import special

    freedom = _freedom(samples)
    if not freedom:
        return 1.0
    wider = 1 + sum(sample.noise for sample in samples) / freedom
    return float(special.chdtrc(freedom, _chi_square(samples) / wider))


def exact_p_value(samples: Sequence[Sample], smallest: float) -> float:
    """Return the same by simulation, which states small values as they are: down to about `smallest`."""
    random = np.random.default_rng(0)
    seen = _chi_square(samples)
    simulations = int(BEYOND / smallest)
    beyond = 0
    for first in range(0, simulations, AT_A_TIME):
        size = min(AT_A_TIME, simulations - first)
        simulated = np.sum([sample.simulate(random, size) for sample in samples], axis=0)
        beyond += int((simulated >= seen).sum())
    return (1 + beyond) / (1 + simulations)


def variation_bound(samples: Sequence[Sample], error: float) -> float:
    """Return what the mean TV over prompts is at most, but for a chance of `error`. With a difference of this
    TV, whatever its direction, chi-square is off centre by at least 4 n TV^2 (Cauchy and Schwarz), and would
    be larger than the one seen. A fit that is better than the average one counts as the average one."""
    from scipy import optimize

    if _freedom(samples) < 1:
        return 1.0
    most = 100 * (_freedom(samples) + max(_freedom(samples), _chi_square(samples)))
    centre = optimize.brentq(lambda centre: _chance_of_less(samples, centre) - error, 1e-9, most)
    return _from_centre(centre, _effective_draws(samples))


def _rules_out(samples: Sequence[Sample], variation: float, error: float) -> bool:
    """Return whether `variation_bound` is at most `variation`, without looking for it."""
    if _freedom(samples) < 1 or variation <= 0:
        return False
    return _chance_of_less(samples, 4 * _effective_draws(samples) * variation**2) <= error


def _chance_of_less(samples: Sequence[Sample], centre: float) -> float:
    """Return how likely a chi-square that is off centre by this is no larger than the one seen."""
    from scipy import special  # 8 microseconds a call; scipy.stats takes 500

    freedom = _freedom(samples)
    return float(special.chndtr(max(freedom, _chi_square(samples)), freedom, centre))


def _effective_draws(samples: Sequence[Sample]) -> float:
    return min(sample.effective_draws for sample in samples) * len(samples)


def _from_centre(centre: float, draws: float) -> float:
    """Return the largest TV that puts chi-square so far off centre."""
    return float(min(1.0, np.sqrt(centre / 4 / draws)))


def findable(draws: float, freedom: int, error: float, power: float = 0.9) -> float:
    """Return the TV that is found with this probability by the last look, whatever direction it has, in so
    many draws against a known law. Of all differences with the same TV, one that moves half of the
    probability is hardest to see; its chi-square is off centre by 4 n TV^2."""
    from scipy import optimize, stats

    if freedom < 1:
        return 1.0
    limit = stats.chi2.isf(error / len(LOOKS), freedom)
    found = optimize.brentq(
        lambda centre: stats.ncx2.sf(limit, freedom, centre) - power, 1e-6, 100 * (limit + freedom)
    )
    return _from_centre(found, draws)


@dataclass(frozen=True)
class Judgement:
    verdict: str
    """same: the TV is below the bound wanted; unclear: no difference is seen; differs."""
    draws: int
    p_value: float
    variation: float
    bound: float
    noise: float
    """The TV that other batches make in the bare engine, which is allowed for. 0 if the law is not known."""


def judge(samples: Sequence[Sample], error: float, wanted: float, last: bool) -> Judgement | None:
    """Judge the samples at one of the looks; None to go on drawing. `error` is the chance of a false alarm in
    the whole cell."""
    share, bound_error = error / len(LOOKS), BOUND_ERROR / len(LOOKS)
    p = p_value(samples)
    if OVERWHELMING * share < p < share:
        p = exact_p_value(samples, share)
    verdict = "differs" if p < share else "same" if _rules_out(samples, wanted, bound_error) else "unclear"
    if verdict == "unclear" and not last:
        return None
    seen = float(np.mean([sample.variation() for sample in samples]))
    bound = variation_bound(samples, bound_error)
    noise = float(np.mean([0 if s.deviations is None else s.deviations.sum() / 2 for s in samples]))
    return Judgement(verdict, int(sum(sample.draws for sample in samples)), p, seen, bound, noise)
