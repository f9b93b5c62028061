"""The speculation loop: everything that happens between two steps of an engine, in order.

    draft()     1. select the requests to draft for: those that lately had drafts, and some of the others
                2. tell the proposers what the target has written; that scores their last drafts
                3. ask the free proposers
                4. ask the drafter, for the requests where its pass is expected to pay
                5. plan how many tokens of each draft are verified
    record()    6. learn from the step: its time and its tokens
    finish()    7. a request has ended: its text is forgotten, or shared

An engine describes its requests and steps, and verifies the drafts: vLLM in `engine.core.scheduler`, the
evaluation of trained drafters in `training.evaluate`. Proposers are in `drafting`, decisions in `planning`.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from slipstream.drafting.base import RequestInfo
from slipstream.drafting.composer import NOTHING, Composer, Offer
from slipstream.drafting.device import NOT_DRAFTED, Drafted
from slipstream.drafting.requests import AUTO, OFF, RunningRequest
from slipstream.planning.optimizer import Survival
from slipstream.planning.planner import (
    EMPTY_QUEUE,
    NOT_RUN,
    DrafterPlan,
    DrafterRun,
    Outlook,
    Plan,
    Planner,
    Queue,
    StepOutcome,
    StepState,
)
from slipstream.planning.policy import Policy
from slipstream.planning.step_cost import Step
from slipstream.planning.thresholds import THRESHOLDS

Clock = Callable[[], float]
MAX_LOOKUPS = 256  # requests in a step; where more could be looked up, they take turns
MAX_OBSERVED_TOKENS = 16_384  # of all requests in a step; the rest of a long prompt follows in the next ones


class Promise(NamedTuple):
    """What was planned for a step."""

    accepted: float = 0.0
    """Draft tokens that are expected to be accepted."""
    worth: float = 1.0
    """Of an accepted token, by the objective."""
    lookups: int = 0
    """Requests that were looked up for it."""


NO_PROMISE = Promise()


class SpeculationLoop:
    def __init__(self, composer: Composer, policy: Policy, clock: Clock = time.perf_counter) -> None:
        self.composer, self.policy = composer, policy
        self.state = StepState(Step(1))
        self._pace = 1.0  # of all requests lately
        self._expected: dict[str, float] = {}  # tokens of the last offers, by request
        # For the last step planned:
        self._offers: Mapping[str, Offer] = {}  # of the free proposers
        self._under_way: Mapping[str, int] = {}
        self.promise = NO_PROMISE
        """Of the last plan."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Spent by what."""
        self._turn, self._clock = 0, clock

    def draft(
        self,
        requests: Iterable[RunningRequest],
        step: Step,
        queue: Queue = EMPTY_QUEUE,
        drafted: Drafted = NOT_DRAFTED,
    ) -> dict[str, Offer]:
        """Return the drafts that the next step verifies, of those `requests` that it could verify drafts for;
        `step` is what it holds besides, in the `queue` are requests without a token, and `drafted` is what a
        drafter has put where the step will find it."""
        self.promise, self._offers = NO_PROMISE, {}
        requests = list(requests)
        selected = self._select(requests, step, queue)
        drafts_alone = drafted.survival and not drafted.only_beside_offers
        if not selected and not self.composer.drafters and not drafts_alone:
            return {}
        begun, planning = self._clock(), self.seconds["planning"]
        wanted = self._observe(selected)
        under_way = {r.id: r.tokens_under_way for r in requests if r.tokens_under_way}
        if drafted.survival:
            drafted = drafted.cut({r.id: r.max_draft_tokens for r in requests if r.requested != OFF})
        drafts, drafter_seconds = self.propose(wanted, under_way, drafted)
        seconds = self._clock() - begun - drafter_seconds
        self.seconds["lookup"] += seconds - (self.seconds["planning"] - planning)
        self.seconds["drafter"] += drafter_seconds
        found = {request: draft for request, draft in drafts.items() if draft.proposer != drafted.drafter}
        self.policy.record_lookups(len(selected), seconds, *self._count_lookups(selected, wanted, found))
        return drafts

    def propose(
        self,
        wanted: Mapping[str, int],
        under_way: Mapping[str, int] = NOTHING,
        drafted: Drafted = NOT_DRAFTED,
    ) -> tuple[dict[str, Offer], float]:
        """Return drafts for these requests, of at most so many tokens, and the seconds the drafter took.
        Drafts begin with the tokens that the step under way is expected to write; those are not verified."""
        self.composer.begin_step(wanted)
        offers = self.composer.ask_free(wanted)
        drafter, drafter_seconds = self._ask_drafter(wanted, offers)
        self.composer.correct(offers)
        self._offers, self._under_way = dict(offers), under_way
        survival = drafted.combine(offers, under_way)
        self._expected = {request: sum(of_tokens) for request, of_tokens in survival.items()}
        if drafted.survival:
            drafter = DrafterRun(drafted.passes, drafted.seconds)
        begun = self._clock()
        plan = self.policy.plan(self.state, survival, drafter)
        self.seconds["planning"] += self._clock() - begun
        if isinstance(plan, Plan):
            self.promise = Promise(plan.expected_tokens - plan.requests, plan.worth, len(wanted))
        lengths = drafted.probe(plan.lengths, offers, THRESHOLDS.drafter_probe_requests)
        ours = {request: length for request, length in lengths.items() if request in offers}
        drafts = self.composer.choose(offers, ours, under_way)
        for request, length in lengths.items():
            if length and request not in offers:
                drafts[request] = drafted.draft(request, under_way.get(request, 0), length)
        return drafts, drafter_seconds

    def plan_drafter(self, expected: Mapping[str, Survival]) -> DrafterPlan:
        """Plan what a drafter drafts at the end of the step that was just planned, if that is what it is
        expected to bring. What others will offer then is taken to be what they offer now."""
        offered = NOT_DRAFTED.combine(dict(self._offers), self._under_way)
        plan = self.policy.plan_drafter(self.state, offered, expected)
        self.policy.record_drafter(plan)
        return plan

    def drafter_gain(self, expected: Mapping[str, Survival]) -> float:
        """Return what such a drafter would be expected to gain there; nothing where that is not planned."""
        if not isinstance(self.policy, Planner):
            return 0.0
        offered = NOT_DRAFTED.combine(dict(self._offers), self._under_way)
        return self.policy.drafter_gain(self.state, offered, expected)

    def record(self, outcome: StepOutcome) -> None:
        self.policy.record(outcome)

    def arrive(self, others_run: bool) -> None:
        """Note a request that comes, while others are running or not."""
        self.policy.arrive(others_run)

    def finish(self, request: RunningRequest, cached_tokens: int = 0) -> None:
        """Score its last drafts, and forget it. Of its prompt, `cached_tokens` were not read."""
        written = len(request.tokens) - request.num_prompt_tokens
        read = request.num_prompt_tokens - cached_tokens
        self.policy.finish(written, request.tokens_left <= 0, read)
        if request.id in self.composer:
            self._observe([request])
            self.composer.forget(request.id)

    def counts(self) -> dict[str, Any]:
        """Return counts since the start, for metrics."""
        seconds = {"seconds": dict(self.seconds)}
        return {**self.composer.counts(), **seconds, **self.policy.counts(self.state.step)}

    def report(self) -> dict[str, Any]:
        return {**self.composer.report(), "planner": self.policy.report(self.state.step)}

    def _select(self, requests: Iterable[RunningRequest], step: Step, queue: Queue) -> list[RunningRequest]:
        selected: list[RunningRequest] = []
        others: list[RunningRequest] = []
        requested: dict[str, int] = {}
        outlook: dict[str, Outlook] = {}
        priority: dict[str, int] = {}
        paused = self.policy.paused(step)
        for request in requests:
            request.pace = request.pace or self._pace
            tokens_left = max(request.tokens_left - request.tokens_under_way, 1)
            outlook[request.id] = Outlook(tokens_left, request.pace)
            if request.priority:
                priority[request.id] = request.priority
            if request.requested > OFF:
                requested[request.id] = request.requested
                selected.append(request)
            elif request.requested == AUTO and not paused:
                empty = request.empty_lookups >= THRESHOLDS.max_empty_lookups and not _is_bound(request)
                (others if empty else selected).append(request)
        self.state = StepState(step, requested, outlook, priority, queue)
        most = MAX_LOOKUPS
        if self.composer.steps_under_way:  # drafting must be done before the step under way is
            most = min(most, self.policy.lookups_within(step))
        if len(selected) > most:
            return self._take_turns(selected, most)
        if others:
            budget = self.policy.lookup_budget(self.state, len(others))
            selected += self._take_turns(others, min(budget, most - len(selected)))
        return selected

    def _take_turns(self, requests: list[RunningRequest], count: int) -> list[RunningRequest]:
        first = self._turn % len(requests)
        self._turn += count
        return (requests[first:] + requests[:first])[:count]

    def _observe(self, requests: Iterable[RunningRequest]) -> dict[str, int]:
        """Tell the proposers what is new in these texts. Return how many tokens to draft at most, for the
        requests whose whole text they know."""
        wanted = {}
        room = MAX_OBSERVED_TOKENS
        for request in sorted(requests, key=lambda request: len(request.tokens) - request.num_observed):
            length = len(request.tokens)
            if request.num_observed > length or request.observed_prompt != request.num_prompt_tokens:
                # It begins; or a session goes on from an earlier point, or with another turn of the user's.
                if request.id in self.composer:
                    self.composer.forget(request.id)
                request.num_observed, request.observed_prompt = 0, request.num_prompt_tokens
                info = RequestInfo(request.id, request.num_prompt_tokens, request.tenant, request.grammar)
                self.composer.start(info)
            if new := request.tokens[request.num_observed : request.num_observed + room]:
                self.composer.observe(request.id, new)
                room -= len(new)
                request.num_observed += len(new)
                if request.num_observed == length and request.max_draft_tokens > 0:
                    wanted[request.id] = request.tokens_under_way + request.max_draft_tokens
        return wanted

    def _ask_drafter(self, wanted: Mapping[str, int], offers: dict[str, Offer]) -> tuple[DrafterRun, float]:
        """Ask the drafter where the policy wants it, and put what is better among the offers. Return what it
        ran for, and all its seconds: some drafters must see every step."""
        run, all_seconds = NOT_RUN, 0.0
        for drafter in self.composer.drafters:
            expected = self.composer.expected_survival(drafter, wanted)
            survival = {request: offer.survival for request, offer in offers.items()}
            plan = self.policy.plan_drafter(self.state, survival, expected)
            begun = self._clock()
            self.composer.ask(drafter, plan.tokens, offers)
            seconds = self._clock() - begun
            all_seconds += seconds
            if plan.tokens:
                self.policy.record_drafter(plan, seconds)
                run = DrafterRun(run.passes + plan.passes, run.seconds + seconds)
        return run, all_seconds

    def _count_lookups(
        self, selected: Iterable[RunningRequest], wanted: Mapping[str, int], drafts: Mapping[str, Offer]
    ) -> tuple[int, float]:
        """Note who had no draft, and how fast each could be. Return how many lately had none, and what their
        drafts now will bring."""
        retried, tokens = 0, 0.0
        for request in selected:
            if request.id in wanted:
                draft = drafts.get(request.id)
                if request.empty_lookups >= THRESHOLDS.max_empty_lookups and not _is_bound(request):
                    retried += 1
                    skipped = self._under_way.get(request.id, 0)
                    tokens += sum(draft.survival[skipped:]) if draft else 0.0
                request.empty_lookups = 0 if draft else request.empty_lookups + 1
                expected = 1 + self._expected.get(request.id, 0.0)
                request.pace += THRESHOLDS.pace_rate * (expected - request.pace)
                self._pace += (request.pace - self._pace) / THRESHOLDS.pace_memory
        return retried, tokens


def _is_bound(request: RunningRequest) -> bool:
    """Return whether a grammar drafts for the request: then there is something to find at any time."""
    return request.grammar is not None and request.grammar.is_active
