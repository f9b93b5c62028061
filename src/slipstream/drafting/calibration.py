"""How often draft tokens are really accepted, against what their proposers said.

A proposer states for every position how likely its draft is to survive. What is counted here is how often
it did, by proposer, position and stated probability, so that proposers with different ideas of confidence
can be compared. Where little has been counted, what the proposer states is scaled by how far it is off at
that position on the whole. Old counts fade, so a change of traffic is followed.
"""

from collections.abc import Sequence
from typing import Any

POSITIONS = 8  # later ones are counted with the last
LEVELS = 16
PRIOR = 4.0  # observations that the stated probability is worth
MEMORY = 500  # observations, about, that a count reaches back

_Cell = list[float]  # [accepted, judged], both fading
_NOTHING: _Cell = [0.0, 0.0]


class Calibration:
    def __init__(self) -> None:
        self._cells: dict[tuple[str, int, int], _Cell] = {}
        self._overall: dict[tuple[str, int], _Cell] = {}
        """[accepted, stated] over all stated probabilities."""

    def survival(self, proposer: str, stated: Sequence[float]) -> list[float]:
        """The stated survival, corrected by what has been seen."""
        corrected = []
        before, survives = 1.0, 1.0
        for position, value in enumerate(stated):
            conditional = _conditional(value, before)
            accepted, stated_sum = self._overall.get((proposer, _place(position)), _NOTHING)
            believed = min(conditional * (accepted + PRIOR) / (stated_sum + PRIOR), 1.0)
            accepted, judged = self._cells.get(_key(proposer, position, conditional), _NOTHING)
            survives *= (accepted + PRIOR * believed) / (judged + PRIOR)
            corrected.append(survives)
            before = value
        return corrected

    def learn(self, proposer: str, stated: Sequence[float], accepted: int, judged: int) -> None:
        """Of the first `judged` tokens of a draft, `accepted` were what the target wrote, then came one
        that was not (if `judged` is larger)."""
        before = 1.0
        for position in range(min(judged, accepted + 1)):
            value = stated[position]
            conditional = _conditional(value, before)
            _count(self._cells, _key(proposer, position, conditional), position < accepted, 1.0)
            _count(self._overall, (proposer, _place(position)), position < accepted, conditional)
            before = value


def _count(cells: dict[Any, _Cell], key: Any, accepted: bool, weight: float) -> None:
    cell = cells.setdefault(key, [0.0, 0.0])
    fade = 1 - 1 / MEMORY
    cell[0] = cell[0] * fade + accepted
    cell[1] = cell[1] * fade + weight


def _conditional(value: float, before: float) -> float:
    return min(value / before, 1.0) if before > 0 else 0.0


def _key(proposer: str, position: int, conditional: float) -> tuple[str, int, int]:
    return proposer, _place(position), min(int(conditional * LEVELS), LEVELS - 1)


def _place(position: int) -> int:
    return min(position, POSITIONS - 1)
