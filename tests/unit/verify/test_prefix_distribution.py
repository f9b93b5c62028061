from math import hypot

import pytest

from slipstream.verify.prefix_distribution import OTHER, PrefixDistribution

COIN = PrefixDistribution({(): {0: 0.6, 1: 0.4}, (0,): {0: 0.5, 1: 0.5}, (1,): {0: 0.9, 1: 0.1}})


def test_all_texts_apart_if_there_is_room() -> None:
    partition = COIN.partition(0.0, 10)
    texts = [(a, b) for a in (0, 1) for b in (0, 1)]
    assert {partition.category(text) for text in texts} == set(partition.probabilities)
    assert partition.category((0, 7)) == partition.category((0, 1)), "what cannot follow"
    assert sum(partition.probabilities.values()) == pytest.approx(1)
    assert len(partition.probabilities) == 4


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_never_more_categories_than_asked_for(most: int) -> None:
    probabilities = COIN.partition(0.0, most).probabilities
    assert len(probabilities) <= most
    assert sum(probabilities.values()) == pytest.approx(1)


@pytest.mark.parametrize("least", [0.05, 0.1, 0.3, 0.5, 0.7])
def test_no_category_is_less_likely_than_asked_for(least: float) -> None:
    probabilities = COIN.partition(least, 10).probabilities
    assert min(probabilities.values()) >= least
    assert sum(probabilities.values()) == pytest.approx(1)


def test_likeliest_beginning_is_told_apart_first() -> None:
    law = PrefixDistribution({(): {0: 0.7, 1: 0.3}, (0,): {0: 0.5, 1: 0.5}, (1,): {0: 0.5, 1: 0.5}})
    partition = law.partition(0.0, 3)
    assert partition.category((0, 0)) != partition.category((0, 1))
    assert partition.category((1, 0)) == partition.category((1, 1))


def test_what_is_not_told_is_other() -> None:
    partition = PrefixDistribution({(): {7: 0.5, 8: 0.3}}).partition(0.1, 5)
    assert partition.probabilities == pytest.approx({(7,): 0.5, (8,): 0.3, (OTHER,): 0.2})
    assert partition.category((99, 1)) == (OTHER,)
    assert partition.count([(7, 1), (7, 2), (3, 3)]) == {(7,): 2, (OTHER,): 1}


def test_told_law_is_the_mean_of_what_was_told() -> None:
    texts = [((1, 2), [{1: 0.5, 2: 0.3}, {2: 0.9}]), ((1, 3), [{1: 0.6, 2: 0.3}, {2: 0.8, 5: 0.1}])]
    partition = PrefixDistribution.told(texts).partition(0.01, 10)
    assert partition.probabilities == pytest.approx(
        {(1, 2): 0.55 * 0.85, (1, OTHER): 0.55 * 0.15, (2,): 0.3, (OTHER,): 0.15}
    )


def test_counted_law() -> None:
    partition = PrefixDistribution.counted([(1, 2), (1, 3), (2, 2), (1, 2)]).partition(0.2, 10)
    assert partition.probabilities[(1, 2)] == pytest.approx(0.5)


def test_text_that_ends_early_has_a_category() -> None:
    partition = PrefixDistribution.counted([(5,), (1, 2), (1, 3)]).partition(0.1, 10)
    assert partition.category((5,)) in partition.probabilities


def test_what_other_batches_change() -> None:
    """Half of the range that was told; along a text the relative deviations add up as squares."""
    told = [
        ((0, 0), [{0: 0.62, 1: 0.38}, {0: 0.5, 1: 0.5}]),
        ((0, 1), [{0: 0.58, 1: 0.42}, {0: 0.6, 1: 0.4}]),
    ]
    partition = PrefixDistribution.told(told).partition(0.0, 3)
    assert partition.probabilities == pytest.approx({(1,): 0.4, (0, 0): 0.33, (0, 1): 0.27})
    expected = {
        (1,): 0.02,
        (0, 0): 0.33 * hypot(0.02 / 0.6, 0.05 / 0.55),
        (0, 1): 0.27 * hypot(0.02 / 0.6, 0.05 / 0.45),
    }
    assert partition.deviations == pytest.approx(expected)


def test_the_rest_deviates_as_what_is_told_does() -> None:
    told = [((7,), [{7: 0.52, 8: 0.28}]), ((7,), [{7: 0.48, 8: 0.32}])]
    partition = PrefixDistribution.told(told).partition(0.1, 5)
    assert partition.deviations == pytest.approx({(7,): 0.02, (8,): 0.02, (OTHER,): hypot(0.02, 0.02)})
