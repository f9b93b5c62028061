"""The intervals, held against noise whose truth is known."""

import numpy as np
import pytest

from slipstream.bench.statistics import mean_over_cells, mean_ratio, percentiles


@pytest.mark.parametrize("rounds", [3, 5, 6, 8, 14])
@pytest.mark.parametrize("outliers", [0.0, 0.15], ids=["normal", "outliers"])
def test_coverage(rounds: int, outliers: float) -> None:
    """A 95% interval holds the truth in at least 91% of 400 runs (three standard errors below), also when
    one round in seven is far off; and it is no wider than it has to be."""
    rng = np.random.default_rng(rounds)
    held = 0
    for _ in range(400):
        logs = rng.normal(0.0, 0.05, rounds) + (rng.random(rounds) < outliers) * rng.normal(0.0, 0.2, rounds)
        interval = mean_ratio(list(np.exp(logs)))
        held += interval.low <= 1.0 <= interval.high
    assert 0.91 <= held / 400 <= 0.995


def test_the_plain_percentile_bootstrap_would_be_caught() -> None:
    """What `mean_ratio` corrects: for 6 rounds the plain interval holds the truth clearly too rarely."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        logs = rng.normal(0.0, 0.05, 6)
        means = logs[rng.integers(6, size=(1000, 6))].mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        held += low <= 0.0 <= high
    assert held / 400 < 0.91


def test_a_true_difference_is_seen() -> None:
    interval = mean_ratio([1.3, 1.25, 1.35, 1.28, 1.31, 1.27])
    assert interval.value == pytest.approx(1.293, abs=0.01)
    assert 1.2 < interval.low < interval.value < interval.high < 1.4


def test_one_round_says_nothing() -> None:
    interval = mean_ratio([1.5])
    assert interval.low == 0.0
    assert interval.high == float("inf")


def test_every_cell_counts_alike() -> None:
    """One cell with 2x in twelve rounds and one with 0.5x in three: together 1, not what the rounds say."""
    interval = mean_over_cells([[2.0, 2.1, 1.9] * 4, [0.5, 0.51, 0.49]])
    assert interval.value == pytest.approx(1.0, abs=0.01)
    assert interval.low < 1.0 < interval.high


def test_coverage_over_cells() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(400):
        cells = [list(np.exp(rng.normal(level, 0.1, n))) for level, n in ((0.3, 12), (-0.3, 4))]
        interval = mean_over_cells(cells)
        held += interval.low <= 1.0 <= interval.high
    assert held / 400 >= 0.94


def test_percentiles() -> None:
    assert percentiles(list(range(101))) == {"p50": 50.0, "p95": 95.0, "p99": 99.0}
    assert percentiles([]) == {}
