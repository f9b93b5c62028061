"""Programs that draw lots, run once with random numbers, or through all that can happen with its exact
probability."""

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypeVar

import numpy as np

Distribution = Sequence[float]
"""The probability of each token."""
Outcome = TypeVar("Outcome", bound=Hashable)


class Chance(Protocol):
    def pick(self, law: Distribution) -> int:
        """Draw a token from this distribution."""

    def happens(self, probability: float) -> bool: ...


class Random:
    """Lots drawn with a random number generator."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def pick(self, law: Distribution) -> int:
        return int(self._random.choice(len(law), p=law))

    def happens(self, probability: float) -> bool:
        return bool(self._random.random() < probability)


def enumerate_outcomes(program: Callable[[Chance], Outcome]) -> dict[Outcome, float]:
    """Return the probability of everything that the program can return: it is run once for every way that its
    lots can fall."""
    law: dict[Outcome, float] = {}
    to_do: list[list[int]] = [[]]
    while to_do:
        path = _Path(to_do.pop())
        outcome = program(path)
        law[outcome] = law.get(outcome, 0.0) + path.probability
        to_do += path.others
    return law


class _Path:
    """Replays a fixed prefix of random choices and records the untaken branches."""

    def __init__(self, told: list[int]) -> None:
        self._told = told
        self._taken: list[int] = []
        self.probability = 1.0
        self.others: list[list[int]] = []

    def pick(self, law: Distribution) -> int:
        if len(self._taken) < len(self._told):
            token = self._told[len(self._taken)]
        else:
            token, *others = [token for token, probability in enumerate(law) if probability > 0]
            self.others += [[*self._taken, other] for other in others]
        self._taken.append(token)
        self.probability *= law[token]
        return token

    def happens(self, probability: float) -> bool:
        return self.pick((1 - probability, probability)) == 1
