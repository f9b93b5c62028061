"""Replaying a trace: vLLM's scheduling in outline, the real speculation loop, the trace's offers and costs.

The text of a request is the sequence 0, 1, 2, ...: a draft token is right if it is its own place in the text.
So the proposers, the planner and its guard are those of the engine; only the target's pass is simulated, by
what steps like it took.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slipstream.drafting.base import Draft, Proposer, RequestInfo, common_prefix
from slipstream.drafting.composer import Composer, Offer
from slipstream.drafting.requests import RunningRequest
from slipstream.errors import ConfigError
from slipstream.loop import SpeculationLoop
from slipstream.planning.objective import Objective
from slipstream.planning.planner import Planner, Queue, StepOutcome
from slipstream.planning.policy import Policy, VerifyAll
from slipstream.planning.step_cost import GUESS, Step, StepCost
from slipstream.replay.trace import Limits, Trace, TracedRequest

WRONG = (1 << 24) - 1  # a token that stands at no place of a text
LEARNING_ROUNDS = 3  # over the trace, until its costs are learnt


class SimulatedRequest(RunningRequest):
    def __init__(self, number: int, traced: TracedRequest, max_draft_tokens: int) -> None:
        super().__init__(str(number))
        self.traced = traced
        self.computed = traced.cached_tokens  # prompt tokens
        self.written = 0
        self.came = 0.0
        self._limit = max_draft_tokens

    @property
    def tokens(self) -> Sequence[int]:
        return range(self.traced.prompt_tokens + self.written)

    @property
    def num_prompt_tokens(self) -> int:
        return self.traced.prompt_tokens

    @property
    def max_draft_tokens(self) -> int:
        return min(self._limit, self.remaining - 1)

    @property
    def tokens_left(self) -> int:
        return self.traced.max_tokens - self.written

    @property
    def remaining(self) -> int:
        return self.traced.output_tokens - self.written

    @property
    def reads_prompt(self) -> bool:
        return self.computed < self.traced.prompt_tokens


class ReplayedProposer(Proposer):
    """Offers what a proposer offered at the same place of the same request."""

    def __init__(
        self, name: str, requests: Sequence[TracedRequest], on_lookups: Callable[[int], None]
    ) -> None:
        self.name = name
        self._on_lookups = on_lookups
        self._requests = requests
        self._lengths: dict[str, int] = {}

    def start(self, request: RequestInfo) -> None:
        self._lengths[request.id] = 0

    def observe(self, request_id: str, tokens: Sequence[int]) -> None:
        self._lengths[request_id] += len(tokens)

    def propose(self, wanted: Mapping[str, int]) -> dict[str, Draft]:
        drafts = {}
        self._on_lookups(len(wanted))
        for request_id, max_tokens in wanted.items():
            traced, length = self._requests[int(request_id)], self._lengths[request_id]
            offered = traced.offers.get(self.name, {}).get(length - traced.prompt_tokens)
            if offered is not None:
                count = min(max_tokens, len(offered.survival))
                tokens = [length + at if at < offered.right else WRONG for at in range(count)]
                drafts[request_id] = Draft(tokens, offered.survival[:count])
        return drafts

    def forget(self, request_id: str) -> None:
        self._lengths.pop(request_id, None)


@dataclass(frozen=True)
class Replayed:
    """What a replay brought."""

    tokens: int
    seconds: float
    steps: int
    draft_tokens: int
    accepted_tokens: int
    first_token_seconds: Sequence[float]

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def learnt_cost(trace: Trace) -> Callable[[Step], float]:
    """Return what a step takes by the trace, at the speed that the machine had on average."""
    cost = StepCost(trace.profile or GUESS)
    for _ in range(LEARNING_ROUNDS):
        for outcome in trace.steps:
            cost.learn(outcome.step, outcome.seconds)
    speed = {}
    for prompts in (False, True):
        alike = [outcome for outcome in trace.steps if (outcome.step.prefill > 0) == prompts]
        learnt = sum(cost.seconds(outcome.step) for outcome in alike)
        speed[prompts] = sum(outcome.seconds for outcome in alike) / learnt if alike else 1.0
    return lambda step: cost.seconds(step) * speed[step.prefill > 0]


def drafting_seconds(trace: Trace) -> float:
    """Return the seconds of drafting for one request that is looked up."""
    per_lookup = [outcome.drafting / outcome.lookups for outcome in trace.steps if outcome.lookups]
    return float(np.median(per_lookup)) if per_lookup else 0.0


def measured(trace: Trace) -> Replayed:
    """Return what the run brought that was recorded, as far as its steps were timed."""
    steps = trace.steps
    return Replayed(
        tokens=sum(outcome.tokens for outcome in steps),
        seconds=sum(outcome.seconds + outcome.drafting for outcome in steps),
        steps=len(steps),
        draft_tokens=sum(outcome.step.drafts for outcome in steps),
        accepted_tokens=0,
        first_token_seconds=(),
    )


class Simulator:
    def __init__(
        self,
        requests: Sequence[TracedRequest],
        limits: Limits,
        policy: Policy,
        cost: Callable[[Step], float],
        drafting: float,
        closed_loop: bool = False,
    ) -> None:
        self._limits, self._cost = limits, cost
        self._closed_loop = closed_loop
        names = sorted({name for request in requests for name in request.offers})
        self._lookup = drafting / max(len(names), 1)
        proposers = [ReplayedProposer(name, requests, self._look_up) for name in names]
        self.loop = SpeculationLoop(Composer(proposers, WRONG + 1), policy, lambda: self._clock)
        order = sorted(range(len(requests)), key=lambda number: requests[number].arrived)
        self._coming = deque(SimulatedRequest(n, requests[n], limits.num_draft_tokens) for n in order)
        self._waiting: deque[SimulatedRequest] = deque()
        self._finished = 0
        self._running: list[SimulatedRequest] = []
        self._drafts: dict[str, Offer] = {}
        self._now = 0.0
        self._tokens = self._steps = self._drafted = self._accepted = 0
        self._busy = 0.0
        self._clock = self._drafting = 0.0  # seconds of drafting, in all and for the next step
        self._first_tokens: list[float] = []

    def _look_up(self, requests: int) -> None:
        """Let the time pass that a proposer takes for so many requests."""
        self._clock += requests * self._lookup

    def run(self) -> Replayed:
        while self._coming or self._waiting or self._running:
            if not self._running and not self._waiting:
                self._now = max(self._now, self._coming[0].traced.arrived)
            self._receive()
            self._step()
        return Replayed(
            self._tokens, self._busy, self._steps, self._drafted, self._accepted, self._first_tokens
        )

    def _receive(self) -> None:
        """Take in the requests that have come: by the clock or, in a closed loop, when those have finished
        that had finished when they came."""
        while self._coming:
            traced = self._coming[0].traced
            came = (
                traced.finished_before <= self._finished if self._closed_loop else traced.arrived <= self._now
            )
            if not came:
                return
            self.loop.arrive(bool(self._running))
            request = self._coming.popleft()
            request.came = self._now if self._closed_loop else traced.arrived
            self._waiting.append(request)

    def _step(self) -> None:
        budget = self._limits.max_num_batched_tokens
        decoding = [request for request in self._running if not request.reads_prompt]
        drafts = {request.id: self._drafts[request.id] for request in decoding if request.id in self._drafts}
        drafted = sum(len(draft.tokens) for draft in drafts.values())
        prefill = self._read_prompts(budget - len(decoding) - drafted)
        reading = [request for request, _ in prefill]
        prompt_tokens = sum(count for _, count in prefill)
        requests = len(decoding) + len(prefill)
        context = sum(request.computed + request.written for request in self._running)
        step = Step(requests, drafted, prompt_tokens - len(prefill), context)
        seconds = self._cost(step)
        drafting = self._drafting
        self._now += seconds + drafting
        self._busy += seconds + drafting
        written = sum(self._write(request, drafts.get(request.id)) for request in decoding)
        for request in reading:
            if not request.reads_prompt:
                self._first_tokens.append(self._now - request.came)
                written += self._write(request, None)
        self._tokens += written
        self._steps += 1
        self._drafted += drafted
        self.loop.record(StepOutcome(step, seconds, drafting, written, 0, 0, *self.loop.promise))
        for request in [request for request in self._running if not request.remaining]:
            self._running.remove(request)
            self._finished += 1
            self.loop.finish(request)
        self._receive()
        alive = [request for request in self._running if not request.reads_prompt]
        starting = min(len(self._waiting), self._limits.max_num_seqs - len(self._running))
        queue = Queue(starting, len(self._waiting) - starting)
        begun = self._clock
        self._drafts = self.loop.draft(alive, self._next_step(context), queue)
        self._drafting = self._clock - begun

    def _read_prompts(self, budget: int) -> list[tuple[SimulatedRequest, int]]:
        """Admit requests, and read as much of the prompts as fits."""
        read = []
        while self._waiting and len(self._running) < self._limits.max_num_seqs:
            self._running.append(self._waiting.popleft())
        for request in self._running:
            if request.reads_prompt and budget > 0:
                count = min(budget, request.traced.prompt_tokens - request.computed)
                request.computed += count
                budget -= count
                read.append((request, count))
        return read

    def _write(self, request: SimulatedRequest, draft: Offer | None) -> int:
        first = request.traced.prompt_tokens + request.written
        right = common_prefix(draft.tokens, range(first, first + len(draft.tokens))) if draft else 0
        count = min(right + 1, request.remaining)
        self._accepted += min(right, count)
        request.written += count
        return count

    def _next_step(self, context: int) -> Step:
        return Step.forecast(
            running=len(self._running),
            prompt_tokens=sum(request.traced.prompt_tokens - request.computed for request in self._running),
            waiting=(request.traced.prompt_tokens for request in self._waiting),
            max_running=self._limits.max_num_seqs,
            max_tokens=self._limits.max_num_batched_tokens,
            context=context,
        )


def replay(
    trace: Trace,
    speculate: str,
    cost: Callable[[Step], float] | None = None,
    objective: Objective | None = None,
    closed_loop: bool = False,
) -> Replayed:
    """Run the trace's requests with `auto`, `off` or `fixed:K`, with the trace's own costs or others."""
    mode, _, tokens = speculate.partition(":")
    requests, limits = trace.requests, trace.limits
    policy: Policy = VerifyAll()
    if mode == "auto" and not tokens:
        policy = Planner(StepCost(trace.profile or GUESS), objective=objective or trace.objective)
    elif mode == "off" and not tokens:
        requests = [replace(request, offers={}) for request in requests]
    elif mode == "fixed" and tokens.isdigit():
        limits = replace(limits, num_draft_tokens=int(tokens))
    else:
        raise ConfigError(f"--policy {speculate}: write auto, off or fixed:K")
    cost = cost or learnt_cost(trace)
    return Simulator(requests, limits, policy, cost, drafting_seconds(trace), closed_loop).run()
