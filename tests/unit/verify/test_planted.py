"""The mistakes that speculative decoding is known for, made on purpose in the reference: each is found, at
an effect of no more than a total variation of 0.02."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np
import pytest

from slipstream.testing.reference.randomness import Chance, Distribution, enumerate_outcomes
from slipstream.testing.reference.rules import Model, Rule, Tokens, generate, remainder, tokenwise
from slipstream.testing.reference.sampling import Sampling
from slipstream.verify import prefix_distribution as verify_law
from slipstream.verify.distribution import CELLS, FALSE_ALARM
from slipstream.verify.statistics import LOOKS, Sample, judge
from unit.reference.tiny import PLAIN, SIZE, keeps_when_likelier, law_of_text, model

LENGTH, K = 3, 2
DRAWS = 100_000
EFFECT = 0.02
RUNS, LEAST_FOUND = 20, 19
CATEGORIES = 24
Texts = Mapping[Tokens, float]


def recovers_from_the_target(
    draft: Tokens, p: Sequence[Distribution], q: Sequence[Distribution], chance: Chance
) -> Tokens:
    for at, token in enumerate(draft):
        if not chance.happens(min(1.0, p[at][token] / q[at][token])):
            return (*draft[:at], chance.pick(p[at]))
    return (*draft, chance.pick(p[-1]))


def bonus_from_the_wrong_position(
    draft: Tokens, p: Sequence[Distribution], q: Sequence[Distribution], chance: Chance
) -> Tokens:
    return tokenwise(draft, [*p[:-1], p[-2]], q, chance)


def judged_by(stated: Model) -> Rule:
    """The drafts were drawn by another law than the one they are judged by."""

    def rule(draft: Tokens, p: Sequence[Distribution], q: Sequence[Distribution], chance: Chance) -> Tokens:
        said = [stated(draft[:at]) for at in range(len(draft))]
        sound = [[max(value, 1e-9) for value in law] for law in said]
        return tokenwise(draft, p, sound, chance)

    return rule


def wrongly_written(target: Model, drafter: Model, rule: Rule, length: int = LENGTH) -> Texts:
    return enumerate_outcomes(lambda chance: generate(target, drafter, rule, length, K, chance))


def first_pass(sampling: Sampling, drawn: Sampling, stated: Sampling) -> tuple[Model, Texts]:
    """Of one text only the first pass, where the stated law is known: what was written before is nothing."""
    target, drafter = model(1, sampling), model(2, drawn)
    rule = judged_by(model(2, stated))

    def program(chance: Chance) -> Tokens:
        draft: Tokens = ()
        q = []
        for _ in range(K):
            q.append(drafter(draft))
            draft += (chance.pick(q[-1]),)
        text = rule(draft, [target(draft[:at]) for at in range(K + 1)], q, chance)
        while len(text) < LENGTH:
            text = (*text, chance.pick(target(text)))
        return text

    return target, enumerate_outcomes(program)


def shared_noise() -> tuple[Model, Texts]:
    """Drafted and recovered token are drawn with the same noise."""
    target, drafter = model(11, Sampling()), model(3, Sampling())
    random = np.random.default_rng(0)
    p, q = np.array(target(())), np.array(drafter(()))
    noise = random.gumbel(size=(1_000_000, SIZE))
    draft = (np.log(q) + noise).argmax(1)
    with np.errstate(divide="ignore"):
        recovered = (np.log(remainder(target(()), drafter(()))) + noise).argmax(1)
    kept = random.random(len(draft)) < np.minimum(1, p / q)[draft]
    first = np.bincount(np.where(kept, draft, recovered), minlength=SIZE) / len(draft)
    wrong = {
        text: first[text[0]] * target(())[text[0]] ** -1 * probability
        for text, probability in law_of_text(target, LENGTH).items()
    }
    return target, wrong


COLD = Sampling(temperature=0.6)
CUT = Sampling(top_p=0.75)
TRIMMED = Sampling(temperature=0.7, top_k=3)


def with_rule(rule: Rule) -> tuple[Model, Texts]:
    target, drafter = model(1, PLAIN), model(2, PLAIN)
    return target, wrongly_written(target, drafter, rule)


BUGS: Mapping[str, Callable[[], tuple[Model, Texts]]] = {
    "keeps when p >= q": lambda: with_rule(keeps_when_likelier),
    "recovers from p": lambda: with_rule(recovers_from_the_target),
    "bonus from the wrong position": lambda: with_rule(bonus_from_the_wrong_position),
    "judged by raw draft probabilities": lambda: first_pass(TRIMMED, TRIMMED, PLAIN),
    "temperature on the target only": lambda: first_pass(COLD, PLAIN, COLD),
    "no top-p on the draft side": lambda: first_pass(CUT, PLAIN, CUT),
    "shared noise": shared_noise,
}


def variation(one: Texts, other: Texts) -> float:
    return sum(abs(one.get(text, 0) - other.get(text, 0)) for text in {*one, *other}) / 2


def check(target: Model, truth: Texts, seed: int) -> str:
    """As `verify` does it, with draws from `truth`."""
    law = verify_law.PrefixDistribution(
        {
            text: dict(enumerate(target(text)))
            for length in range(LENGTH)
            for text in product(range(SIZE), repeat=length)
        }
    )
    partition = law.partition(10 / (DRAWS * LOOKS[0]), CATEGORIES)
    probabilities = np.array([*partition.probabilities.values()])
    random = np.random.default_rng(seed)
    weights = np.array([*truth.values()])
    counts: Counter[Tokens] = Counter()
    for look in LOOKS:
        drawn = random.multinomial(int(DRAWS * look) - counts.total(), weights / weights.sum())
        for text, count in zip(truth, drawn.tolist(), strict=True):
            counts[partition.category(text)] += count
        seen = np.array([counts[category] for category in partition.probabilities], float)
        sample = Sample(seen, law=probabilities)
        judgement = judge([sample], FALSE_ALARM / len(CELLS), 0.0, last=look == LOOKS[-1])
        if judgement:
            return judgement.verdict
    raise AssertionError


@pytest.mark.parametrize("bug", BUGS)
def test_found(bug: str) -> None:
    """The mistake happens as rarely as makes its effect just this large."""
    target, wrong = BUGS[bug]()
    right = law_of_text(target, LENGTH)
    effect = variation(right, wrong)
    assert effect >= EFFECT
    share = EFFECT / effect
    rarely = {
        text: (1 - share) * right.get(text, 0) + share * wrong.get(text, 0) for text in {*right, *wrong}
    }
    found = sum(check(target, rarely, seed) == "differs" for seed in range(RUNS))
    assert found >= LEAST_FOUND


def test_no_false_alarm() -> None:
    target = model(1, PLAIN)
    assert not any(check(target, law_of_text(target, LENGTH), seed) == "differs" for seed in range(100))


def test_right_rule_is_no_bug() -> None:
    target, written = with_rule(tokenwise)
    assert variation(law_of_text(target, LENGTH), written) == pytest.approx(0, abs=1e-12)
