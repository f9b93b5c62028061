"""Counts of what came of drafts, by proposer."""

from collections import Counter
from typing import Any


class Tally:
    def __init__(self) -> None:
        self._verified: Counter[tuple[str, int]] = Counter()
        """Drafts by proposer and by how many of their tokens were verified."""
        self._accepted: Counter[tuple[str, int]] = Counter()
        self.microseconds: Counter[str] = Counter()

    def verify(self, proposer: str, tokens: int) -> None:
        """Count a draft of which so many tokens are verified."""
        self._verified[proposer, tokens] += 1

    def uncount(self, proposer: str, tokens: int) -> None:
        """Count it as not verified after all."""
        self._verified[proposer, tokens] -= 1

    def accept(self, proposer: str, tokens: int) -> None:
        """Count that so many tokens of a draft were accepted."""
        if tokens:
            self._accepted[proposer, tokens] += 1

    @property
    def drafts(self) -> dict[str, int]:
        drafts: Counter[str] = Counter()
        for (proposer, _), count in self._verified.items():
            drafts[proposer] += count
        return dict(+drafts)

    @property
    def draft_tokens(self) -> dict[str, int]:
        return _tokens(self._verified)

    @property
    def accepted_tokens(self) -> dict[str, int]:
        return _tokens(self._accepted)

    def report(self) -> dict[str, Any]:
        return {
            "drafts": self.drafts,
            "draft_tokens": self.draft_tokens,
            "accepted_tokens": self.accepted_tokens,
        }

    def positions(self) -> list[tuple[str, int, int, int]]:
        """Return (proposer, position, tokens verified there, of those accepted); the first position is 1."""
        longest: dict[str, int] = {}
        for proposer, tokens in self._verified:
            longest[proposer] = max(longest.get(proposer, 0), tokens)
        return [
            (proposer, position, _reaching(self._verified, proposer, position),
             _reaching(self._accepted, proposer, position))
            for proposer, most in longest.items()
            for position in range(1, most + 1)
        ]  # fmt: skip


def _tokens(lengths: Counter[tuple[str, int]]) -> dict[str, int]:
    tokens: Counter[str] = Counter()
    for (proposer, length), count in lengths.items():
        tokens[proposer] += length * count
    return dict(+tokens)


def _reaching(lengths: Counter[tuple[str, int]], proposer: str, position: int) -> int:
    return sum(count for (who, length), count in lengths.items() if who == proposer and length >= position)
