"""The joint law of what is written is the target's, exactly: all that can happen is gone through, nothing is
drawn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.testing.reference.randomness import Chance, Random, enumerate_outcomes
from slipstream.testing.reference.rules import (
    Model,
    Rule,
    Tokens,
    any_of,
    block,
    generate,
    greedy,
    one_hot,
    remainder,
    tokenwise,
)  # fmt: skip
from slipstream.testing.reference.sampling import Sampling
from unit.reference.tiny import SIZE, keeps_when_likelier, law_of_text, model

SAMPLINGS = {
    "temperature": Sampling(temperature=0.7),
    "top-k": Sampling(top_k=2),
    "top-p": Sampling(top_p=0.7),
    "min-p": Sampling(min_p=0.4),
    "penalties": Sampling(repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2),
    "all": Sampling(0.8, 2, 0.9, 0.05, 1.2, 0.3, 0.1),
}


def written(target: Model, drafter: Model, rule: Rule, length: int, k: int) -> dict[Tokens, float]:
    return enumerate_outcomes(lambda chance: generate(target, drafter, rule, length, k, chance))


def assert_same(found: dict[Tokens, float], wanted: dict[Tokens, float]) -> None:
    for text, probability in wanted.items():
        assert found.pop(text, 0.0) == pytest.approx(probability, abs=1e-12), text
    assert sum(found.values()) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("rule", [tokenwise, block])
@pytest.mark.parametrize(("length", "k"), [(4, 1), (3, 2), (2, 3)])
def test_law_is_the_targets(rule: Rule, length: int, k: int) -> None:
    target, drafter = model(1), model(2)
    assert_same(written(target, drafter, rule, length, k), law_of_text(target, length))


@pytest.mark.parametrize("rule", [tokenwise, block])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
def test_law_is_the_targets_with_sampling_parameters(rule: Rule, sampling: Sampling) -> None:
    target, drafter = model(1, sampling), model(2, sampling)
    assert_same(written(target, drafter, rule, 3, 2), law_of_text(target, 3))


@pytest.mark.parametrize("rule", [tokenwise, block])
def test_sure_proposer(rule: Rule) -> None:
    target = model(1)
    assert_same(
        written(target, lambda text: one_hot(len(text) % SIZE, SIZE), rule, 4, 3), law_of_text(target, 4)
    )


@pytest.mark.parametrize("rule", [tokenwise, block])
def test_drafter_that_is_the_target_is_always_right(rule: Rule) -> None:
    target = model(1)
    law = enumerate_outcomes(lambda chance: len(first_pass(target, target, rule, 3, chance)))
    assert law[4] == pytest.approx(1)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_block_never_keeps_fewer(target_seed: int, drafter_seed: int, k: int) -> None:
    target, drafter = model(target_seed), model(drafter_seed)

    def kept(rule: Rule) -> float:
        law = enumerate_outcomes(lambda chance: len(first_pass(target, drafter, rule, k, chance)))
        return sum(length * probability for length, probability in law.items())

    assert kept(block) >= kept(tokenwise) - 1e-12


def first_pass(target: Model, drafter: Model, rule: Rule, k: int, chance: Chance) -> Tokens:
    draft: Tokens = ()
    q = []
    for _ in range(k):
        q.append(drafter(draft))
        draft += (chance.pick(q[-1]),)
    return rule(draft, [target(draft[:at]) for at in range(k + 1)], q, chance)


def test_expected_acceptance_is_what_both_laws_share() -> None:
    target, drafter = model(1), model(2)
    law = enumerate_outcomes(lambda chance: len(first_pass(target, drafter, tokenwise, 1, chance)))
    assert law[2] == pytest.approx(np.minimum(target(()), drafter(())).sum())


@pytest.mark.parametrize("candidates", [1, 2, 3])
def test_several_candidates(candidates: int) -> None:
    p = model(1)(())
    q = [model(seed)(()) for seed in range(2, 2 + candidates)]
    law = enumerate_outcomes(lambda chance: any_of([chance.pick(one) for one in q], p, q, chance))
    assert [law[token] for token in range(SIZE)] == pytest.approx(list(p))


def test_several_sure_candidates() -> None:
    p = model(1)(())
    q = [one_hot(2, SIZE), one_hot(0, SIZE)]
    law = enumerate_outcomes(lambda chance: any_of([2, 0], p, q, chance))
    assert [law[token] for token in range(SIZE)] == pytest.approx(list(p))


@pytest.mark.parametrize("drafter", [model(2), model(1), lambda text: one_hot(1, SIZE)])
def test_greedy_writes_the_likeliest(drafter: Model) -> None:
    target = model(1)
    wanted: Tokens = ()
    for _ in range(5):
        wanted += (int(np.argmax(target(wanted))),)
    assert_same(written(target, drafter, greedy, 5, 2), {wanted: 1.0})


def test_greedy_is_tokenwise_at_temperature_zero() -> None:
    target = model(1, Sampling(temperature=0))
    assert_same(written(target, model(2), tokenwise, 4, 2), written(target, model(2), greedy, 4, 2))


def test_remainder_is_where_the_target_has_more() -> None:
    assert remainder((0.5, 0.3, 0.2), (0.2, 0.6, 0.2)) == pytest.approx([1, 0, 0])


@pytest.mark.parametrize("lots", [2, 3])
def test_exact_law_goes_through_everything(lots: int) -> None:
    law = enumerate_outcomes(lambda chance: tuple(chance.pick((0.2, 0.0, 0.8)) for _ in range(lots)))
    assert len(law) == 2**lots
    assert law[(2,) * lots] == pytest.approx(0.8**lots)
    assert sum(law.values()) == pytest.approx(1)


def test_random_draws_by_the_law() -> None:
    chance = Random(0)
    draws = [chance.pick((0.2, 0.3, 0.5)) for _ in range(4000)]
    assert np.bincount(draws) / 4000 == pytest.approx([0.2, 0.3, 0.5], abs=0.03)
    assert sum(chance.happens(0.3) for _ in range(4000)) / 4000 == pytest.approx(0.3, abs=0.03)


def test_a_wrong_rule_is_seen() -> None:
    target = model(1)
    with pytest.raises(AssertionError):
        assert_same(written(target, model(2), keeps_when_likelier, 3, 2), law_of_text(target, 3))
