"""Drafts from several proposers at once: for every request the draft that is expected to bring most.

Free proposers are asked first. A drafter, which costs a model pass, is asked only where that is expected to
pay. After every step each proposer is scored on what the target wrote, whether its draft was the one
verified or not. How much of the best drafts is verified, and whether the drafter runs, is a policy's to say:
the planner's, or `Everything`.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.drafting.base import Draft, Proposer, RequestInfo, common_prefix
from slipstream.drafting.calibration import Calibration, Record, Survival
from slipstream.drafting.faults import DRAFTER_STALL_SECONDS, STALL_SECONDS, Faults, is_survival, problem_of


class Policy(Protocol):
    def passes(
        self, drafter: str, best: Mapping[str, Survival], expected: Mapping[str, Survival]
    ) -> dict[str, int]:
        """For whom to ask the drafter, and for how many tokens, given what others offer and what it is
        expected to bring."""

    def drafter_ran(self, drafter: str, seconds: float) -> None:
        """It took so long."""

    def lengths(self, survival: Mapping[str, Survival]) -> dict[str, int]:
        """How many tokens of each draft to verify."""


class Everything:
    """Ask the drafter wherever it is expected to bring more, and verify all there is."""

    def passes(
        self, drafter: str, best: Mapping[str, Survival], expected: Mapping[str, Survival]
    ) -> dict[str, int]:
        return {
            request: len(survival)
            for request, survival in expected.items()
            if sum(survival) > sum(best.get(request, ()))
        }

    def drafter_ran(self, drafter: str, seconds: float) -> None:
        pass

    def lengths(self, survival: Mapping[str, Survival]) -> dict[str, int]:
        return {request: len(values) for request, values in survival.items()}


EVERYTHING = Everything()


@dataclass(frozen=True, slots=True)
class Chosen:
    """The draft to verify, whose it is, and how likely it is to survive by what has been seen."""

    proposer: str
    tokens: Sequence[int]
    survival: Survival


@dataclass
class Tally:
    """What came of the drafts, by proposer."""

    drafts: Counter[str] = field(default_factory=Counter)
    draft_tokens: Counter[str] = field(default_factory=Counter)
    accepted_tokens: Counter[str] = field(default_factory=Counter)
    microseconds: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Offer:
    draft: Draft
    survival: Survival
    """As believed, without the request's own record."""


@dataclass(slots=True)
class _Running:
    offers: dict[str, _Offer] = field(default_factory=dict)
    """What each proposer offered last; scored when the target has written on."""
    records: defaultdict[str, Record] = field(default_factory=lambda: defaultdict(Record))
    chosen: str = ""
    """Whose offer is verified."""
    verified: int = 0
    """How many of its tokens."""


@dataclass(slots=True)
class _Scores:
    """Drafts of one proposer, not yet learnt from."""

    stated: list[Survival] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    judged: list[int] = field(default_factory=list)


class Composer:
    def __init__(self, proposers: Sequence[Proposer], vocab_size: int) -> None:
        self._all = list(proposers)
        self._free = [proposer for proposer in proposers if proposer.free]
        self._costly = [proposer for proposer in proposers if not proposer.free]
        self._vocab_size = vocab_size
        self._running: dict[str, _Running] = {}
        self._scores: defaultdict[str, _Scores] = defaultdict(_Scores)
        self.calibration = Calibration()
        self.faults = Faults()
        self.tally = Tally()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._running

    def start(self, request: RequestInfo) -> None:
        self._running[request.id] = _Running()
        for proposer in self._all:
            self._tell(proposer, request.id, proposer.start, request)

    def observe(self, request_id: str, tokens: Sequence[int]) -> None:
        """The target has written these tokens (or they are the prompt)."""
        running = self._running[request_id]
        if running.offers:
            self._score(running, tokens)
        for proposer in self._all:
            if self.faults.allows(proposer.name, request_id):
                self._tell(proposer, request_id, proposer.observe, request_id, tokens)

    def forget(self, request_id: str) -> None:
        self._running.pop(request_id, None)
        for proposer in self._all:
            self._tell(proposer, request_id, proposer.forget, request_id)
        self.faults.forget(request_id)

    def _tell(self, proposer: Proposer, request_id: str, what: Callable[..., None], *args: Any) -> None:
        try:
            what(*args)
        except Exception as error:
            self.faults.record(proposer.name, [request_id], "exception", repr(error))

    def draft(self, wanted: Mapping[str, int], policy: Policy = EVERYTHING) -> dict[str, Chosen]:
        """The best draft for each request, of at most so many tokens; requests may be without one."""
        self._learn()
        self.faults.begin_step(self._running)
        for request_id in wanted:
            self._running[request_id].chosen = ""
        best: dict[str, Chosen] = {}
        for proposer in self._free:
            self._take(proposer, wanted, best)
        for proposer in self._costly:
            self._take_costly(proposer, wanted, best, policy)
        chosen = {}
        lengths = policy.lengths({request: offer.survival for request, offer in best.items()})
        for request_id, length in lengths.items():
            if length == 0:
                continue
            offer = best[request_id]
            running = self._running[request_id]
            running.chosen, running.verified = offer.proposer, length
            self.tally.drafts[offer.proposer] += 1
            self.tally.draft_tokens[offer.proposer] += length
            chosen[request_id] = Chosen(offer.proposer, offer.tokens[:length], offer.survival[:length])
        return chosen

    def _take_costly(
        self, proposer: Proposer, wanted: Mapping[str, int], best: dict[str, Chosen], policy: Policy
    ) -> None:
        """Ask a drafter as far as the policy wants it."""
        asked = {}
        if expected := self._expected(proposer, wanted):
            others = {request: offer.survival for request, offer in best.items()}
            asked = policy.passes(proposer.name, others, expected)
        begun = time.perf_counter()
        self._take(proposer, asked, best)
        if asked:
            policy.drafter_ran(proposer.name, time.perf_counter() - begun)

    def _expected(self, proposer: Proposer, wanted: Mapping[str, int]) -> dict[str, Survival]:
        """What a drafter is expected to bring for each request."""
        wanted = self.faults.allowed(proposer.name, wanted)
        if not wanted:
            return {}
        try:
            stated = proposer.expected_survival(max(wanted.values()))
            if not is_survival(stated):
                raise ValueError(f"expected_survival is {stated!r}")
            rows = np.tile(np.array(stated, float), (len(wanted), 1))
        except Exception as error:
            self.faults.record(proposer.name, wanted, "exception", repr(error))
            return {}
        _, own = self.calibration.survival_of_all(proposer.name, rows, self._factors(proposer.name, wanted))
        return {
            request: row[:most] for (request, most), row in zip(wanted.items(), own.tolist(), strict=True)
        }

    def _factors(self, proposer: str, requests: Iterable[str]) -> NDArray[np.float64]:
        return np.array([self._running[request].records[proposer].factor for request in requests])

    def _take(self, proposer: Proposer, wanted: Mapping[str, int], best: dict[str, Chosen]) -> None:
        """Ask the proposer, and keep its draft where it is better than what is there."""
        drafts = {r: draft for r, draft in self._ask(proposer, wanted).items() if len(draft.tokens)}
        if not drafts:
            return
        stated = _matrix([draft.survival for draft in drafts.values()])
        believed, survival = self.calibration.survival_of_all(
            proposer.name, stated, self._factors(proposer.name, drafts)
        )
        for row, (request_id, draft) in enumerate(drafts.items()):
            length = len(draft.tokens)
            self._running[request_id].offers[proposer.name] = _Offer(draft, believed[row, :length].tolist())
            ours = survival[row, :length].tolist()
            theirs = best.get(request_id)
            if theirs is None or sum(ours) > sum(theirs.survival):
                best[request_id] = Chosen(proposer.name, draft.tokens, ours)

    def _ask(self, proposer: Proposer, wanted: Mapping[str, int]) -> dict[str, Draft]:
        """The proposer's drafts that are sound. A free proposer that fails is asked again for each request
        alone, so that only those for which it fails are left without."""
        name = proposer.name
        wanted = self.faults.allowed(name, wanted)
        if (not wanted and proposer.free) or name in self.faults.off:
            return {}
        begun = time.perf_counter()
        try:
            drafts = dict(proposer.propose(wanted))
        except Exception as error:
            if proposer.free and len(wanted) > 1:
                alone = [self._ask(proposer, {request: most}) for request, most in wanted.items()]
                return {request: draft for drafts in alone for request, draft in drafts.items()}
            self.faults.record(name, wanted, "exception", repr(error))
            return {}
        elapsed = time.perf_counter() - begun
        self.tally.microseconds[name] += round(elapsed * 1e6)
        limit = STALL_SECONDS if proposer.free else DRAFTER_STALL_SECONDS
        self.faults.record_call(name, wanted, elapsed, limit)
        return {
            request_id: draft
            for request_id, draft in drafts.items()
            if request_id in wanted and self._is_sound(name, request_id, draft, wanted[request_id])
        }

    def _is_sound(self, proposer: str, request_id: str, draft: Draft, most: int) -> bool:
        try:
            problem = problem_of(draft, most, self._vocab_size)
        except Exception as error:
            problem = "not a draft", repr(error)
        if problem:
            self.faults.record(proposer, [request_id], *problem)
        return not problem

    def _score(self, running: _Running, written: Sequence[int]) -> None:
        """What was offered against what the target wrote: all that is known of it, chosen or not."""
        for proposer, offer in running.offers.items():
            judged = min(len(offer.draft.tokens), len(written))
            accepted = common_prefix(offer.draft.tokens, written)
            scores = self._scores[proposer]
            scores.stated.append(offer.draft.survival)
            scores.accepted.append(accepted)
            scores.judged.append(judged)
            running.records[proposer].learn(offer.survival, accepted, judged)
            if proposer == running.chosen:
                self.tally.accepted_tokens[proposer] += min(accepted, running.verified)
        running.offers.clear()
        running.chosen = ""

    def _learn(self) -> None:
        """From all that was scored since the last step, at once."""
        for proposer, scores in self._scores.items():
            if scores.stated:
                self.calibration.learn_all(
                    proposer, _matrix(scores.stated), np.array(scores.accepted), np.array(scores.judged)
                )
        self._scores.clear()


def _matrix(rows: Sequence[Survival]) -> NDArray[np.float64]:
    """[rows, longest], with zeros where a row ends."""
    matrix = np.zeros((len(rows), max(map(len, rows))))
    for at, row in enumerate(rows):
        matrix[at, : len(row)] = row
    return matrix
