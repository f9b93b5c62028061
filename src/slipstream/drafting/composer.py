"""Drafts from several proposers at once: for every request the draft that is expected to bring most.

The speculation loop (`slipstream.loop`) asks the free proposers first, and a drafter, which costs a model
pass, where that is expected to pay. After every step each proposer is scored on what the target wrote,
whether its draft was the one verified or not. A proposer that fails costs its drafts, never a request.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.drafting.base import NO_DRAFT, Draft, Proposer, RequestInfo, common_prefix
from slipstream.drafting.calibration import Calibration, Record, Survival
from slipstream.drafting.faults import DRAFTER_STALL_SECONDS, STALL_SECONDS, Faults, is_survival, problem_of
from slipstream.drafting.grammar import GrammarProposer
from slipstream.drafting.tally import Tally


@dataclass(frozen=True, slots=True)
class Offer:
    """A draft, the proposer that made it, and its survival, corrected by what has been accepted so far."""

    proposer: str
    tokens: Sequence[int]
    survival: Survival


BEST = "best"  # in place of a proposer
NOTHING: Mapping[str, int] = {}


@dataclass(slots=True)
class _Unscored:
    """A draft that the target has not written on from."""

    draft: Draft
    survival: Survival
    """As calibrated over all requests, without the request's own record."""
    expected: Survival
    """What was expected of the drafter before it was asked, without the request's own record; the same as
    `survival` where nothing was."""


@dataclass(slots=True)
class _Round:
    """The drafts for a request at one place of its text; scored when the target has written on."""

    drafts: dict[str, _Unscored] = field(default_factory=dict)
    """By proposer."""
    best: Offer | None = None
    """The best of them, before it was corrected as the best of several."""
    chosen: str = ""
    """Whose draft is verified."""
    skipped: int = 0
    """Tokens at its beginning that are not verified: the step under way writes them."""
    verified: int = 0
    """How many of its tokens after those."""
    written: list[int] = field(default_factory=list)
    """What the target has written since."""
    steps: int = 0
    """In how many steps."""


@dataclass(slots=True)
class _Running:
    rounds: deque[_Round] = field(default_factory=deque)
    """Not yet scored, the oldest first."""
    records: defaultdict[str, Record] = field(default_factory=lambda: defaultdict(Record))
    """Against what was stated of each draft, by proposer."""
    prospects: defaultdict[str, Record] = field(default_factory=lambda: defaultdict(Record))
    """Against what was expected of any draft, by drafter. A drafter that states little for this request, and
    is right to, does well by `records`; by these it is not worth asking."""

    def round(self) -> _Round:
        """Return the round of drafts at the end of its text as it is now."""
        if not self.rounds or self.rounds[-1].steps:
            self.rounds.append(_Round())
        return self.rounds[-1]


@dataclass(slots=True)
class _Scores:
    """Drafts of one proposer, not yet learnt from."""

    stated: list[Survival] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    judged: list[int] = field(default_factory=list)


class Composer:
    def __init__(self, proposers: Sequence[Proposer], vocab_size: int, steps_under_way: int = 0) -> None:
        """Take how many steps are under way when drafts are made: with asynchronous scheduling one."""
        self._all = list(proposers)
        self._grammar = next((p for p in proposers if isinstance(p, GrammarProposer)), None)
        self._free = [proposer for proposer in proposers if proposer.free and proposer is not self._grammar]
        self.drafters = [proposer for proposer in proposers if not proposer.free]
        self._vocab_size = vocab_size
        self.steps_under_way = steps_under_way
        self._running: dict[str, _Running] = {}
        self._scores: defaultdict[str, _Scores] = defaultdict(_Scores)
        self.calibration = Calibration()
        self.calibration_of_best = Calibration()
        """Of the best offer for a request, whoever made it; on what `calibration` says of it."""
        self._expected: dict[str, list[float]] = {}
        """By drafter: what it is expected to bring for any request, as last asked for."""
        self.faults = Faults()
        self.tally = Tally()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._running

    def start(self, request: RequestInfo) -> None:
        self._running[request.id] = _Running()
        for proposer in self._all:
            self._tell(proposer, request.id, proposer.start, request)

    def observe(self, request_id: str, tokens: Sequence[int]) -> None:
        """Score the last drafts on the tokens that the target has written, and tell the proposers of them.
        The prompt comes first."""
        self._score(self._running[request_id], tokens)
        for proposer in self._all:
            if self.faults.allows(proposer.name, request_id):
                self._tell(proposer, request_id, proposer.observe, request_id, tokens)

    def forget(self, request_id: str) -> None:
        if running := self._running.pop(request_id, None):
            for round_ in running.rounds:
                if round_.steps:
                    self._score_round(running, round_)
        for proposer in self._all:
            self._tell(proposer, request_id, proposer.forget, request_id)
        self.faults.forget(request_id)

    def _tell(self, proposer: Proposer, request_id: str, what: Callable[..., None], *args: Any) -> None:
        try:
            what(*args)
        except Exception as error:
            self.faults.record(proposer.name, [request_id], "exception", repr(error))

    def begin_step(self, wanted: Iterable[str]) -> None:
        """Learn from the drafts that were scored since the last step, before new ones for these requests."""
        self._learn()
        self.faults.begin_step(self._running)
        for request_id in wanted:
            self._running[request_id].round().chosen = ""

    def ask_free(self, wanted: Mapping[str, int]) -> dict[str, Offer]:
        """Return the best draft of the free proposers for each request, of at most so many tokens; requests
        may be without one."""
        offers: dict[str, Offer] = {}
        for proposer in self._free:
            self.ask(proposer, wanted, offers)
        if self._grammar is not None:
            self._extend_by_grammar(self._grammar, wanted, offers)
        return offers

    def _extend_by_grammar(
        self, grammar: GrammarProposer, wanted: Mapping[str, int], offers: dict[str, Offer]
    ) -> None:
        """Let the offers for requests with a grammar be cut where it forbids a token, and be extended by what
        it forces."""
        governed = {
            request: most
            for request, most in wanted.items()
            if grammar.governs(request) and self.faults.allows(grammar.name, request)
        }
        if not governed:
            return
        drafts = {
            request: Draft(offer.tokens, list(offer.survival))
            for request, offer in offers.items()
            if request in governed
        }
        for request in governed:
            offers.pop(request, None)
        self.ask(grammar, governed, offers, lambda wanted: grammar.extend(wanted, drafts, self._go_on))

    def _go_on(self, request_id: str, tokens: Sequence[int], max_tokens: int) -> Draft:
        """Return the first draft that there is after these further tokens of the request."""
        for proposer in self._free:
            if self.faults.allows(proposer.name, request_id):
                draft = proposer.propose_after(request_id, tokens, max_tokens)
                if draft.tokens:
                    return draft
        return NO_DRAFT

    def correct(self, offers: dict[str, Offer]) -> None:
        """Correct the survival of offers by how often such were accepted: they were taken for being the best
        of several, and the best of several estimates is an overestimate."""
        if not offers:
            return
        stated = _matrix([offer.survival for offer in offers.values()])
        corrected, _ = self.calibration_of_best.survival_of_all(BEST, stated, np.ones(len(offers)))
        for row, (request_id, offer) in enumerate(offers.items()):
            self._running[request_id].round().best = offer
            survival = corrected[row, : len(offer.tokens)].tolist()
            offers[request_id] = Offer(offer.proposer, offer.tokens, survival)

    def choose(
        self, offers: Mapping[str, Offer], lengths: Mapping[str, int], skipped: Mapping[str, int] = NOTHING
    ) -> dict[str, Offer]:
        """Return the drafts to verify: the offers, cut to these lengths and what is skipped at their
        beginning. They are counted by proposer."""
        chosen = {}
        for request_id, length in lengths.items():
            if length == 0:
                continue
            offer = offers[request_id]
            round_ = self._running[request_id].round()
            round_.chosen, round_.verified = offer.proposer, length
            round_.skipped = skipped.get(request_id, 0)
            self.tally.verify(offer.proposer, length)
            end = round_.skipped + length
            chosen[request_id] = Offer(offer.proposer, offer.tokens[:end], offer.survival[:end])
        return chosen

    def report(self) -> dict[str, Any]:
        """Return counts by proposer since the start, and how often the tokens of each are accepted."""
        return {
            **self.tally.report(),
            "microseconds": dict(self.tally.microseconds),
            "faults": [[*which, count] for which, count in self.faults.counts.items()],
            "off": sorted(self.faults.off),
            "acceptance": self.calibration.report(),
        }

    def counts(self) -> dict[str, Any]:
        """Return counts since the start, for metrics."""
        return {
            "drafts": self.tally.drafts,
            "positions": self.tally.positions(),
            "faults": [[*which, count] for which, count in self.faults.counts.items()],
            "shared_text": next((counts for p in self._free if (counts := p.shared_text())), None),
        }

    def expected_survival(self, proposer: Proposer, wanted: Mapping[str, int]) -> dict[str, Survival]:
        """Return what a drafter is expected to bring for each request, before it is asked."""
        wanted = self.faults.allowed(proposer.name, wanted)
        if not wanted:
            return {}
        try:
            stated = proposer.expected_survival(max(wanted.values()))
            if not is_survival(stated):
                raise ValueError(f"expected_survival is {stated!r}")
            prior = [float(value) for value in stated]
        except Exception as error:
            self.faults.record(proposer.name, wanted, "exception", repr(error))
            return {}
        factors = [self._running[request].prospects[proposer.name].factor for request in wanted]
        rows = self.calibration.expected(proposer.name, prior, np.array([1.0, *factors]))
        self._expected[proposer.name], *expected = rows.tolist()
        return {
            request: row[:max_tokens]
            for (request, max_tokens), row in zip(wanted.items(), expected, strict=True)
        }

    def _factors(self, proposer: str, requests: Iterable[str]) -> NDArray[np.float64]:
        return np.array([self._running[request].records[proposer].factor for request in requests])

    def ask(
        self,
        proposer: Proposer,
        wanted: Mapping[str, int],
        offers: dict[str, Offer],
        propose: Callable[[Mapping[str, int]], Mapping[str, Draft]] | None = None,
    ) -> None:
        """Ask the proposer, and put its draft among the offers where it is expected to bring more."""
        found = self._sound_drafts(proposer, wanted, propose or proposer.propose)
        drafts = {request: draft for request, draft in found.items() if len(draft.tokens)}
        if not drafts:
            return
        stated = _matrix([draft.survival for draft in drafts.values()])
        believed, survival = self.calibration.survival_of_all(
            proposer.name, stated, self._factors(proposer.name, drafts)
        )
        for_any = self._expected.get(proposer.name, [])
        for row, (request_id, draft) in enumerate(drafts.items()):
            length = len(draft.tokens)
            calibrated = believed[row, :length].tolist()
            expected = for_any[:length] if len(for_any) >= length else calibrated
            round_ = self._running[request_id].round()
            round_.drafts[proposer.name] = _Unscored(draft, calibrated, expected)
            ours = survival[row, :length].tolist()
            theirs = offers.get(request_id)
            if theirs is None or sum(ours) > sum(theirs.survival):
                offers[request_id] = Offer(proposer.name, draft.tokens, ours)

    def _sound_drafts(
        self,
        proposer: Proposer,
        wanted: Mapping[str, int],
        propose: Callable[[Mapping[str, int]], Mapping[str, Draft]],
    ) -> dict[str, Draft]:
        """Return the proposer's drafts that are sound. A free proposer that fails is asked again for each
        request alone, so that only those for which it fails are left without."""
        name = proposer.name
        wanted = self.faults.allowed(name, wanted)
        if (not wanted and proposer.free) or name in self.faults.off:
            return {}
        begun = time.perf_counter()
        try:
            drafts = dict(propose(wanted))
        except Exception as error:
            if proposer.free and len(wanted) > 1:
                alone = [
                    self._sound_drafts(proposer, {request: max_tokens}, propose)
                    for request, max_tokens in wanted.items()
                ]
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

    def _is_sound(self, proposer: str, request_id: str, draft: Draft, max_tokens: int) -> bool:
        try:
            problem = problem_of(draft, max_tokens, self._vocab_size)
        except Exception as error:
            problem = "not a draft", repr(error)
        if problem:
            self.faults.record(proposer, [request_id], *problem)
        return not problem

    def _score(self, running: _Running, written: Sequence[int]) -> None:
        """Score all drafts, chosen or not, for whose verification the target has written enough."""
        for round_ in running.rounds:
            if not round_.steps:
                round_.skipped = min(round_.skipped, len(written))
            round_.written += written
            round_.steps += 1
        while running.rounds and running.rounds[0].steps > self.steps_under_way:
            self._score_round(running, running.rounds.popleft())

    def _score_round(self, running: _Running, round_: _Round) -> None:
        for proposer, offer in round_.drafts.items():
            judged = min(len(offer.draft.tokens), len(round_.written))
            accepted = common_prefix(offer.draft.tokens, round_.written)
            scores = self._scores[proposer]
            scores.stated.append(offer.draft.survival)
            scores.accepted.append(accepted)
            scores.judged.append(judged)
            running.records[proposer].learn(offer.survival, accepted, judged)
            if proposer in self._expected:
                running.prospects[proposer].learn(offer.expected, accepted, judged)
            if round_.best is not None and proposer == round_.best.proposer:
                best = self._scores[BEST]
                best.stated.append(round_.best.survival)
                best.accepted.append(accepted)
                best.judged.append(judged)
            if proposer == round_.chosen:
                kept = min(max(accepted - round_.skipped, 0), round_.verified)
                self.tally.accept(proposer, kept)

    def _learn(self) -> None:
        """Learn from all that was scored since the last step, at once."""
        for proposer, scores in self._scores.items():
            if scores.stated:
                calibration = self.calibration_of_best if proposer == BEST else self.calibration
                calibration.learn_all(
                    proposer, _matrix(scores.stated), np.array(scores.accepted), np.array(scores.judged)
                )
        self._scores.clear()


def _matrix(rows: Sequence[Survival]) -> NDArray[np.float64]:
    """Return the rows as a matrix [rows, longest], with zeros where a row ends."""
    matrix = np.zeros((len(rows), max(map(len, rows))))
    for at, row in enumerate(rows):
        matrix[at, : len(row)] = row
    return matrix
