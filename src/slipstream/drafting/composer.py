"""Drafts from several proposers at once: for every request the draft that is expected to bring most.

Free proposers are asked first. A drafter, which costs a model pass, is asked only for the requests for
which it is expected to bring more than what is already there. After every step each proposer is scored on
what the target wrote, whether its draft was the one verified or not.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.drafting.base import Draft, Proposer, RequestInfo
from slipstream.drafting.calibration import Calibration
from slipstream.drafting.faults import DRAFTER_STALL_SECONDS, STALL_SECONDS, Faults, is_survival, problem_of

WORTH_VERIFYING = 0.1  # the least chance of a draft's first token; the planner will weigh it against cost
EXPLORE_EVERY = 100  # steps; then a drafter is asked all the same, to see whether it has become better


@dataclass(frozen=True, slots=True)
class Chosen:
    """The draft to verify, whose it is, and how likely it is to survive by what has been seen."""

    proposer: str
    tokens: Sequence[int]
    survival: Sequence[float]


@dataclass
class Tally:
    """What came of the drafts, by proposer."""

    drafts: Counter[str] = field(default_factory=Counter)
    draft_tokens: Counter[str] = field(default_factory=Counter)
    accepted_tokens: Counter[str] = field(default_factory=Counter)
    microseconds: Counter[str] = field(default_factory=Counter)


@dataclass
class _Running:
    offers: dict[str, Draft] = field(default_factory=dict)
    """What each proposer offered last; scored when the target has written on."""
    chosen: str = ""
    """Whose offer is verified."""


class Composer:
    def __init__(self, proposers: Sequence[Proposer], vocab_size: int) -> None:
        self._all = list(proposers)
        self._free = [proposer for proposer in proposers if proposer.free]
        self._costly = [proposer for proposer in proposers if not proposer.free]
        self._vocab_size = vocab_size
        self._running: dict[str, _Running] = {}
        self._steps = 0
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

    def draft(self, wanted: Mapping[str, int]) -> dict[str, Chosen]:
        """The best draft for each request, of at most so many tokens; requests may be without one."""
        self._steps += 1
        best: dict[str, Chosen] = {}
        for proposer in self._free:
            self._take(proposer, wanted, best)
        for proposer in self._costly:
            self._take(proposer, self._worth_asking(proposer, wanted, best), best)
        for request_id, chosen in best.items():
            self._running[request_id].chosen = chosen.proposer
            self.tally.drafts[chosen.proposer] += 1
            self.tally.draft_tokens[chosen.proposer] += len(chosen.tokens)
        return best

    def _worth_asking(
        self, proposer: Proposer, wanted: Mapping[str, int], best: Mapping[str, Chosen]
    ) -> dict[str, int]:
        """The requests for which this proposer is expected to bring more than they have."""
        if not wanted or proposer.name in self.faults.off:
            return {}
        try:
            stated = proposer.expected_survival(max(wanted.values()))
            if not is_survival(stated):
                raise ValueError(f"expected_survival is {stated!r}")
        except Exception as error:
            self.faults.record(proposer.name, wanted, "exception", repr(error))
            return {}
        expected = self.calibration.survival(proposer.name, stated)
        if not expected or (expected[0] < WORTH_VERIFYING and self._steps % EXPLORE_EVERY):
            return {}
        return {
            request_id: most
            for request_id, most in wanted.items()
            if _brings_more(expected[:most], best.get(request_id))
        }

    def _take(self, proposer: Proposer, wanted: Mapping[str, int], best: dict[str, Chosen]) -> None:
        """Ask the proposer, and keep its draft where it is better than what is there."""
        for request_id, draft in self._ask(proposer, wanted).items():
            if len(draft.tokens) == 0:
                continue
            self._running[request_id].offers[proposer.name] = draft
            survival = self.calibration.survival(proposer.name, draft.survival)
            if survival[0] < WORTH_VERIFYING:
                continue
            if _brings_more(survival, best.get(request_id)):
                best[request_id] = Chosen(proposer.name, draft.tokens, survival)

    def _ask(self, proposer: Proposer, wanted: Mapping[str, int]) -> dict[str, Draft]:
        """The proposer's drafts that are sound. A free proposer that fails is asked again for each request
        alone, so that only those for which it fails are left without."""
        name = proposer.name
        wanted = {request: most for request, most in wanted.items() if self.faults.allows(name, request)}
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
        if elapsed > (STALL_SECONDS if proposer.free else DRAFTER_STALL_SECONDS):
            self.faults.record(name, wanted, "stall", f"{elapsed:.1f} s in one call")
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
            judged = min(len(offer.tokens), len(written))
            accepted = _common_prefix(offer.tokens, written)
            self.calibration.learn(proposer, offer.survival, accepted, judged)
            if proposer == running.chosen:
                self.tally.accepted_tokens[proposer] += accepted
        running.offers.clear()
        running.chosen = ""


def _brings_more(survival: Sequence[float], than: Chosen | None) -> bool:
    """In tokens that can be expected to be accepted."""
    return than is None or sum(survival) > sum(than.survival)


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
