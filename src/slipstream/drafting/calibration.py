"""How often draft tokens are really accepted, against what their proposers said.

A proposer states for every position how likely its draft is to survive. What is counted here is how often
it did, by proposer, position and stated probability, so that proposers with different ideas of confidence
can be compared. Where little has been counted, what the proposer states is scaled by how far it is off at
that position on the whole. Old counts fade, so a change of traffic is followed.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.compiled import compiled

POSITIONS = 8  # later ones are counted with the last
LEVELS = 16
PRIOR = 4.0  # observations that the stated probability is worth
MEMORY = 500  # observations, about, that a count reaches back

REQUEST_PRIOR = 3.0  # tokens that what is known of all requests is worth against one request's own record
REQUEST_FADE = 0.9  # per draft
LEAST_FACTOR, MOST_FACTOR = 0.05, 1.5

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Survival = Sequence[float] | Floats


class _Counts:
    """Of one proposer; the last axis is (accepted, judged), or (accepted, stated, judged) over all levels."""

    def __init__(self) -> None:
        self.cells = np.zeros((POSITIONS, LEVELS, 2))
        self.overall = np.zeros((POSITIONS, 3))
        self.drafted = np.zeros((POSITIONS, 2))
        """(accepted, drafted): also of tokens that were not judged, by what is believed of them."""


class Calibration:
    def __init__(self, memory: float = MEMORY) -> None:
        """Take how many observations, about, a count reaches back."""
        self._fade = 1 - 1 / memory
        self._counts: dict[str, _Counts] = {}
        self.learn("", [1.0], 1, 1)  # compiled now, not in the first step
        self.survival("", [1.0])
        self._counts.clear()

    def _of(self, proposer: str) -> _Counts:
        if proposer not in self._counts:
            self._counts[proposer] = _Counts()
        return self._counts[proposer]

    def survival(self, proposer: str, stated: Sequence[float]) -> list[float]:
        """Return the stated survival, corrected by what has been seen."""
        corrected: list[float] = self.survival_of_all(proposer, np.array([stated]), np.ones(1))[0][0].tolist()
        return corrected

    def survival_of_all(self, proposer: str, stated: Floats, factors: Floats) -> tuple[Floats, Floats]:
        """Return twice [drafts, K]: the same for many drafts; and with `factors`, which say how much
        likelier each one's tokens are to be accepted than such tokens on the whole."""
        corrected, own = np.empty_like(stated), np.empty_like(stated)
        counts = self._of(proposer)
        _correct(counts.cells, counts.overall, stated, factors, corrected, own)
        return corrected, own

    def expected(self, proposer: str, prior: Sequence[float], factors: Floats) -> Floats:
        """Return [drafts, K]: the survival of drafts that are not made yet, by how often the proposer's
        tokens were accepted at each position, whatever it stated of them. `prior` counts as long as little
        has been seen."""
        drafted = self._of(proposer).drafted[np.minimum(np.arange(len(prior)), POSITIONS - 1)]
        before = [1.0, *prior]
        believed = np.array([_conditional(now, then) for now, then in zip(prior, before, strict=False)])
        right = (drafted[:, 0] + PRIOR * believed) / (drafted[:, 1] + PRIOR)
        survival: Floats = np.minimum(right * factors[:, None], 1.0).cumprod(axis=1)
        return survival

    def report(self) -> dict[str, list[float]]:
        """Return by proposer how often the token at each position is accepted if all before it were."""
        return {
            name: [round(float(accepted / judged), 4) for accepted, _, judged in counts.overall if judged > 0]
            for name, counts in self._counts.items()
        }

    def learn(self, proposer: str, stated: Sequence[float], accepted: int, judged: int) -> None:
        """Learn that of the first `judged` tokens of a draft, `accepted` were what the target wrote, then
        came one that was not (if `judged` is larger)."""
        self.learn_all(proposer, np.array([stated]), np.array([accepted]), np.array([judged]))

    def learn_all(self, proposer: str, stated: Floats, accepted: Ints, judged: Ints) -> None:
        counts = self._of(proposer)
        _learn(counts.cells, counts.overall, counts.drafted, stated, accepted, judged, self._fade)

    def doubt(self, observations: float) -> None:
        """Let what was counted say no more than so many observations would: texts may have changed since."""
        for counts in self._counts.values():
            for of in (counts.cells, counts.overall, counts.drafted):
                of *= np.minimum(observations / np.maximum(of[..., -1:], 1.0), 1.0)


class Record:
    """How a proposer does for one request, against what was believed of its drafts: fading counts."""

    __slots__ = ("accepted", "expected")

    def __init__(self) -> None:
        self.accepted = self.expected = 0.0

    @property
    def factor(self) -> float:
        factor = (self.accepted + REQUEST_PRIOR) / (self.expected + REQUEST_PRIOR)
        return max(LEAST_FACTOR, min(factor, MOST_FACTOR))

    def learn(self, survival: Survival, accepted: int, judged: int) -> None:
        """Learn of each token up to the first that was wrong how likely it was, and whether it was right."""
        tried = min(judged, accepted + 1)
        if not tried:
            return
        before = [1.0, *survival[: tried - 1]]
        likely = sum(now / then for now, then in zip(survival[:tried], before, strict=True) if then > 0)
        self.accepted = REQUEST_FADE * self.accepted + accepted
        self.expected = REQUEST_FADE * self.expected + likely


@compiled
def _conditional(value: float, before: float) -> float:
    return min(value / before, 1.0) if before > 0 else 0.0


@compiled
def _level(conditional: float) -> int:
    return min(int(conditional * LEVELS), LEVELS - 1)


@compiled
def _believed(cells: Floats, overall: Floats, place: int, conditional: float) -> float:
    """Return how likely a token is, of which its proposer states so much, if those before it are right."""
    ratio = (overall[place, 0] + PRIOR) / (overall[place, 1] + PRIOR)
    cell = cells[place, _level(conditional)]
    right: float = (cell[0] + PRIOR * min(conditional * ratio, 1.0)) / (cell[1] + PRIOR)
    return right


@compiled
def _correct(
    cells: Floats, overall: Floats, stated: Floats, factors: Floats, corrected: Floats, own: Floats
) -> None:
    for row in range(stated.shape[0]):
        before, survives, own_survives = 1.0, 1.0, 1.0
        for position in range(stated.shape[1]):
            value = stated[row, position]
            conditional = _conditional(value, before)
            right = _believed(cells, overall, min(position, POSITIONS - 1), conditional)
            survives *= right
            own_survives *= min(right * factors[row], 1.0)
            corrected[row, position] = survives
            own[row, position] = own_survives
            before = value


@compiled
def _learn(
    cells: Floats,
    overall: Floats,
    drafted: Floats,
    stated: Floats,
    accepted: Ints,
    judged: Ints,
    fade: float,
) -> None:
    for row in range(stated.shape[0]):
        before = 1.0
        for position in range(min(judged[row], accepted[row] + 1)):
            value = stated[row, position]
            conditional = _conditional(value, before)
            place = min(position, POSITIONS - 1)
            right = 1.0 if position < accepted[row] else 0.0
            cell = cells[place, _level(conditional)]
            cell[0] = cell[0] * fade + right
            cell[1] = cell[1] * fade + 1.0
            overall[place, 0] = overall[place, 0] * fade + right
            overall[place, 1] = overall[place, 1] * fade + conditional
            overall[place, 2] = overall[place, 2] * fade + 1.0
            drafted[place, 0] = drafted[place, 0] * fade + right
            drafted[place, 1] = drafted[place, 1] * fade + 1.0
            before = value
        if judged[row] > accepted[row]:
            continue
        # The rest was not judged, most often because it was not sure enough to be verified: without it, only
        # drafts that were sure would count at later positions.
        alive = 1.0
        for position in range(judged[row], stated.shape[1]):
            value = stated[row, position]
            if value <= 0.0:  # the draft has ended
                break
            conditional = _conditional(value, before)
            place = min(position, POSITIONS - 1)
            right = _believed(cells, overall, place, conditional)
            drafted[place, 0] = drafted[place, 0] * fade + alive * right
            drafted[place, 1] = drafted[place, 1] * fade + alive
            alive *= right
            before = value
