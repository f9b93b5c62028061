"""The law of short texts, as a tree, and its partition into a few categories that can be counted.

The bare engine tells the probability of the likeliest tokens after every token it writes, under the request's
own sampling parameters. A few hundred of its texts visit every beginning that matters, so the law is known
without having to be estimated by counting, and only the speculative engine's texts have to be many.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot

Tokens = tuple[int, ...]
OTHER = -1
"""As the last of a text: any token that has no branch of its own."""
NEVER = 1e-5
"""Probabilities that are told add up to 1 but for rounding."""


@dataclass(frozen=True)
class Partition:
    """Categories of texts, each a beginning, with their probabilities."""

    probabilities: Mapping[Tokens, float]
    _branches: Mapping[Tokens, Sequence[int]]
    """The tokens by which a beginning is told apart, the likeliest first."""
    deviations: Mapping[Tokens, float] = field(default_factory=dict)
    """By how much the probability of each category is another in other batches."""

    def count(self, texts: Iterable[Tokens]) -> Counter[Tokens]:
        return Counter(map(self.category, texts))

    def category(self, text: Tokens) -> Tokens:
        beginning: Tokens = ()
        for token in text:
            branches = self._branches.get(beginning)
            if branches is None:
                break
            if token in branches:
                beginning = (*beginning, token)
            elif (*beginning, OTHER) in self.probabilities:
                return (*beginning, OTHER)
            else:  # it cannot follow; counted with the unlikeliest that can
                beginning = (*beginning, branches[-1])
        return beginning


class PrefixDistribution:
    """What may follow each beginning, with its probability."""

    def __init__(
        self,
        after: Mapping[Tokens, Mapping[int, float]],
        deviations: Mapping[Tokens, Mapping[int, float]] | None = None,
    ) -> None:
        self._after = after
        self._deviations = deviations or {}

    @classmethod
    def told(cls, texts: Iterable[tuple[Tokens, Sequence[Mapping[int, float]]]]) -> "PrefixDistribution":
        """Make it from texts and the probabilities of the likeliest tokens at each of their positions.
        Where several texts begin alike, the mean: they differ by what rounding does in other batches, at
        most by the deviation, half of the range."""
        seen = defaultdict(list)
        for text, likeliest in texts:
            for at, probabilities in enumerate(likeliest):
                seen[text[:at]].append(probabilities)
        values = {
            beginning: {
                token: [one[token] for one in several] for token in set.intersection(*map(set, several))
            }
            for beginning, several in seen.items()
        }
        return cls(
            {b: {token: sum(v) / len(v) for token, v in tokens.items()} for b, tokens in values.items()},
            {
                b: {token: (max(v) - min(v)) / 2 for token, v in tokens.items()}
                for b, tokens in values.items()
            },
        )

    @classmethod
    def counted(cls, texts: Iterable[Tokens]) -> "PrefixDistribution":
        """Estimate the distribution from how often each token was seen."""
        seen: defaultdict[Tokens, Counter[int]] = defaultdict(Counter)
        for text in texts:
            for at, token in enumerate(text):
                seen[text[:at]][token] += 1
        return cls(
            {
                beginning: {token: count / tokens.total() for token, count in tokens.items()}
                for beginning, tokens in seen.items()
            }
        )

    def partition(self, least: float, most: int) -> Partition:
        """Return at most `most` categories of at least the probability `least`: the likeliest beginning is
        told apart by its next token, as long as there is room."""
        probabilities: dict[Tokens, float] = {(): 1.0}
        deviations: dict[Tokens, float] = {(): 0.0}
        branches: dict[Tokens, Sequence[int]] = {}
        likeliest: list[tuple[float, Tokens]] = [(-1.0, ())]
        while likeliest and len(probabilities) < most:
            _, beginning = heapq.heappop(likeliest)
            whole, off = probabilities[beginning], deviations[beginning]
            parts = self._parts(beginning, whole, least, most - len(probabilities) + 1)
            if len(parts) < 2:
                continue
            del probabilities[beginning], deviations[beginning]
            branches[beginning] = [token for token in parts if token != OTHER]
            steps = {token: self._deviations.get(beginning, {}).get(token, 0.0) for token in parts}
            steps[OTHER] = hypot(*(steps[token] for token in branches[beginning]))
            for token, probability in parts.items():
                probabilities[(*beginning, token)] = probability
                deviations[(*beginning, token)] = hypot(off * probability / whole, whole * steps[token])
                if token != OTHER:
                    heapq.heappush(likeliest, (-probability, (*beginning, token)))
        return Partition(probabilities, branches, deviations)

    def _parts(self, beginning: Tokens, probability: float, least: float, most: int) -> dict[int, float]:
        """Return the next tokens that are likely enough, and OTHER for the rest, which must be likely enough
        too."""
        law = self._after.get(beginning, {})
        falling = sorted(law, key=lambda token: (-law[token], token))
        parts = {token: probability * law[token] for token in falling if probability * law[token] >= least}
        other = probability - sum(parts.values())
        while parts and (NEVER < other < least or len(parts) + (other > NEVER) > most):
            other += parts.popitem()[1]
        return {**parts, OTHER: other} if other > NEVER else parts
