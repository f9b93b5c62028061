"""Intervals for ratios measured in a handful of paired rounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 10_000
FEW_ROUNDS = 6  # with fewer, resampling cannot reach far enough out, and Student's interval stands alone


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Return half the interval's width, relative to the value."""
        return (self.high - self.low) / 2 / self.value

    def as_dict(self) -> dict[str, Any]:
        return {"value": self.value, "low": self.low, "high": self.high}


def mean_ratio(ratios: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return geometric mean of the ratios of paired rounds, with a bootstrap interval over rounds.

    With few rounds the plain percentile bootstrap is too narrow, by a factor that is known: the quantiles
    are taken further out so that for normal noise they agree with Student's t (Hesterberg 2015, 'expanded
    percentile interval'). `tests/unit/bench` holds its coverage against simulation.
    """
    from scipy import stats

    logs = np.log(np.asarray(ratios, dtype=float))
    n = len(logs)
    if n < 2:
        value = float(np.exp(logs.mean()))
        return Interval(value, 0.0, float("inf"))
    student = stats.t.ppf((1 + confidence) / 2, n - 1)
    if n < FEW_ROUNDS:
        reach = student * logs.std(ddof=1) / np.sqrt(n)
        return Interval(*(float(np.exp(logs.mean() + x)) for x in (0.0, -reach, reach)))
    tail = stats.norm.cdf(-student * np.sqrt(n / (n - 1)))
    random = np.random.default_rng(0)
    means = logs[random.integers(n, size=(RESAMPLES, n))].mean(axis=1)
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(*(float(np.exp(x)) for x in (logs.mean(), low, high)))


def mean_over_cells(cells: Sequence[Sequence[float]], confidence: float = 0.95) -> Interval:
    """Return geometric mean over cells of the mean ratio of each, every cell counting alike however often it
    was measured; Student's interval with the degrees of freedom of the cell that has the fewest rounds."""
    from scipy import stats

    logs = [np.log(np.asarray(ratios, dtype=float)) for ratios in cells]
    center = float(np.mean([some.mean() for some in logs]))
    fewest = min(len(some) for some in logs)
    if fewest < 2:
        return Interval(float(np.exp(center)), 0.0, float("inf"))
    error = np.sqrt(sum(some.var(ddof=1) / len(some) for some in logs)) / len(logs)
    reach = float(stats.t.ppf((1 + confidence) / 2, fewest - 1) * error)
    return Interval(*(float(np.exp(x)) for x in (center, center - reach, center + reach)))


def percentiles(values: Sequence[float]) -> dict[str, float]:
    if not len(values):
        return {}
    p50, p95, p99 = np.percentile(np.asarray(values, dtype=float), [50, 95, 99])
    return {"p50": float(p50), "p95": float(p95), "p99": float(p99)}
