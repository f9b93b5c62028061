"""Models of three tokens, whose laws can be written down whole, and a rule that is wrong."""

from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np

from slipstream.testing.reference.randomness import Chance, Distribution
from slipstream.testing.reference.rules import Model, Tokens, remainder
from slipstream.testing.reference.sampling import Sampling, law_of

SIZE = 3
PLAIN = Sampling()


def model(seed: int, sampling: Sampling = PLAIN) -> Model:
    """Its law depends on all that was written."""

    @cache
    def law(text: Tokens) -> Distribution:
        logits = np.random.default_rng([seed, *(token + 1 for token in text)]).normal(size=SIZE)
        return law_of(logits.tolist(), sampling, output=text)

    return law


def law_of_text(target: Model, length: int) -> dict[Tokens, float]:
    """By the chain rule."""
    return {
        text: float(np.prod([target(text[:at])[text[at]] for at in range(length)]))
        for text in product(range(SIZE), repeat=length)
    }


def keeps_when_likelier(
    draft: Tokens, p: Sequence[Distribution], q: Sequence[Distribution], chance: Chance
) -> Tokens:
    for at, token in enumerate(draft):
        if p[at][token] < q[at][token]:
            return (*draft[:at], chance.pick(remainder(p[at], q[at])))
    return (*draft, chance.pick(p[-1]))
