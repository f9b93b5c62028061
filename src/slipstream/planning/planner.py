"""The planner: how much of the drafts to verify, and whether the drafter is worth running, for every step.

A step's state and the offers go in, a plan comes out, and what came of it is recorded:

    state = StepState(Step(requests=8))
    drafter = planner.plan_drafter(state, offers, expected)      # whom to ask the drafter for
    plan = planner.plan(state, offers, DrafterRun(passes, seconds))
    planner.record(StepOutcome(step, seconds, ...))

The optimum is found in `optimizer`, what is tried out beside it is decided in `exploration`, and `guard`
pauses speculation that loses.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from slipstream.planning.exploration import Exploration
from slipstream.planning.guard import Guard
from slipstream.planning.lookups import Lookups
from slipstream.planning.objective import Bounds, Objective, Traffic, makespan_worth, priority_worth
from slipstream.planning.optimizer import (
    Baseline,
    DrafterValue,
    Floats,
    Survival,
    best_or_zero,
    compile_now,
    flatten,
    take_likeliest,
    value_of_passes,
)
from slipstream.planning.speedup import SpeedupEstimate
from slipstream.planning.standing import Standing
from slipstream.planning.step_cost import SCALE, Step, StepCost
from slipstream.planning.thresholds import THRESHOLDS

PAUSED = "paused: it was losing"
NO_BOUNDS = Bounds()
NO_WORTH: Mapping[str, float] = {}
KEPT_PLANS = 64  # recent plans kept for `slipstream explain`


class Outlook(NamedTuple):
    """How far a request is from its end."""

    tokens_left: int
    """By its limit."""
    pace: float
    """Tokens per step that it would write if all that is offered were verified."""


class Queue(NamedTuple):
    """Requests that have no token yet."""

    starting: int = 0
    """They join in the next step."""
    waiting: int = 0
    """They find no place in it."""


EMPTY_QUEUE = Queue()


@dataclass(frozen=True)
class StepState:
    """What is known of the next step before anything is drafted for it."""

    step: Step
    requested: Mapping[str, int] = field(default_factory=dict)
    """Requests that fix their number of draft tokens themselves (`vllm_xargs.speculate`)."""
    outlook: Mapping[str, Outlook] = field(default_factory=dict)
    """Of all requests that write."""
    priority: Mapping[str, int] = field(default_factory=dict)
    """vLLM's `priority` of requests that have one: the lower, the more urgent."""
    queue: Queue = EMPTY_QUEUE


class DrafterPlan(NamedTuple):
    """For which requests the drafter is asked, and for how many tokens."""

    tokens: Mapping[str, int]
    passes: int
    is_probe: bool = False
    """One pass more than seems to pay."""
    requests: int = 1
    """That the step has."""
    gain: float = 0.0
    """Expected of the passes that pay, as a share of what the step is worth without the drafter."""


class DrafterRun(NamedTuple):
    """What the drafter has done for the next step."""

    passes: int = 0
    seconds: float = 0.0


NOT_RUN = DrafterRun()


@dataclass(frozen=True)
class Plan:
    """What was decided for one step, and why."""

    lengths: Mapping[str, int] = field(repr=False)
    """Draft tokens to verify, by request."""
    requests: int
    prefill: int
    offered: int
    """Draft tokens that could have been verified."""
    verified: int
    expected_tokens: float
    worth: float
    """Of an expected draft token, by the objective; of an average token it is 1."""
    seconds: float
    bare_seconds: float
    drafter_passes: int
    why: str
    step: int = 0
    """How many plans there were before it, and it."""

    @property
    def promise(self) -> float:
        """Return the tokens per second over those of the same step without drafts."""
        if not self.requests:
            return 1.0
        return self.expected_tokens / self.requests * self.bare_seconds / self.seconds

    def as_dict(self) -> dict[str, Any]:
        return asdict(replace(self, lengths={})) | {"promise": self.promise}


@dataclass(frozen=True)
class StepOutcome:
    """What a step took and wrote."""

    step: Step
    seconds: float
    """Without the drafting for it."""
    drafting: float
    """Seconds of drafting for it."""
    tokens: int
    requested_drafts: int = 0
    """Of its draft tokens, those of requests that fix their number themselves."""
    requested_accepted: int = 0
    expected_accepted: float = 0.0
    """Draft tokens that the plan expected to be accepted."""
    worth: float = 1.0
    """Of such a token, by the objective."""
    lookups: int = 0
    """Requests that the free proposers were asked for."""
    reading: float = 0.0
    """Seconds in which a drafter has read the step before: not because of what this one verifies."""
    drafter_within: bool = False
    """`drafting` and `reading` are shares of one time, by what they are believed to take."""


class DrafterCost:
    """Seconds by number of passes: as they were seen, or scaled from the nearest number seen. One pass more
    is counted than those that draft, for what a run takes whatever its length."""

    def __init__(self, per_pass: float) -> None:
        self._seen = {1: per_pass}

    def seconds(self, passes: int, requests: int = 1) -> float:
        if not passes:
            return 0.0
        nearest = min(self._seen, key=lambda seen: abs(seen - passes))
        return self._seen[nearest] * (passes + 1) / (nearest + 1)

    def record(self, passes: int, seconds: float) -> None:
        known = self.seconds(passes)
        most = 2 * known  # catching up with a long prompt is no pass
        self._seen[passes] = known + THRESHOLDS.drafter_rate * (min(seconds, most) - known)


class MeasuredDrafterCost:
    """Seconds by number of passes and of requests: of a drafter that runs within steps, where its time cannot
    be told apart. Their proportions were measured at the start; how much of it a pass takes in real steps is
    learnt from what these take longer than steps without it."""

    def __init__(self, measured: Iterable[tuple[int, int, float]]) -> None:
        """Take (requests, passes, seconds); between these they rise evenly."""
        self._factor = 1.0
        by_requests: defaultdict[int, dict[int, float]] = defaultdict(dict)
        for requests, passes, seconds in sorted(measured):
            by_requests[requests][passes] = seconds
        self._requests = list(by_requests)
        self._by_requests = list(by_requests.values())

    def seconds(self, passes: int, requests: int = 1) -> float:
        if not passes:
            return 0.0
        known = [_proportional(seconds, passes) for seconds in self._by_requests]
        return self._factor * float(np.interp(requests, self._requests, known))

    def learn(self, real: float, expected: float) -> None:
        """Learn that it took so long instead of what was expected."""
        most = THRESHOLDS.max_surprise
        surprise = math.log(max(real, 1e-9) / expected)
        factor = self._factor * math.exp(THRESHOLDS.drafter_rate * min(max(surprise, -most), most))
        self._factor = min(max(factor, 1 / THRESHOLDS.max_drafter_factor), THRESHOLDS.max_drafter_factor)


class Planner:
    def __init__(
        self,
        cost: StepCost,
        drafter_pass: float = 0.01,
        objective: Objective = Objective.THROUGHPUT,
        bounds: Bounds = NO_BOUNDS,
        drafter_cost: MeasuredDrafterCost | None = None,
    ) -> None:
        """Take the seconds of one pass of the drafter; or `drafter_cost`, where more was measured."""
        self.cost = cost
        self.objective, self.bounds = objective, bounds
        self.traffic = Traffic()
        self.drafter_cost: DrafterCost | MeasuredDrafterCost = drafter_cost or DrafterCost(drafter_pass)
        self._guards: defaultdict[int, Guard] = defaultdict(Guard)
        """By load: what loses with 32 requests may gain with one."""
        self._standings: defaultdict[int, Standing] = defaultdict(Standing)
        self.exploration = Exploration()
        self.lookups = Lookups()
        self.plans: deque[Plan] = deque(maxlen=KEPT_PLANS)
        self.speedup = SpeedupEstimate()
        self._reasons: Counter[str] = Counter()
        self._budgets: Counter[int] = Counter()  # steps by draft tokens
        self._promised = 0.0  # draft tokens
        self._net_share = 0.0  # of what the last plan's drafts bring, what is left after verifying them
        self._tokens_per_second = 0.0  # recently
        self._hangs = 0.0  # seconds that hung steps without drafts take longer, per step, in such steps
        compile_now()

    def guard(self, step: Step) -> Guard:
        """Return the guard for steps with about as many requests: up to twice as many."""
        return self._guards[step.requests.bit_length()]

    def paused(self, step: Step) -> bool:
        return not self.guard(step).allows

    def lookup_budget(self, state: StepState, candidates: int) -> int:
        """Return how many requests to look up of those that lately had nothing worth verifying."""
        return self.lookups.budget(candidates, self.cost.bare(state.step), state.step.requests)

    def lookups_within(self, step: Step) -> int:
        """Return how many requests can be looked up, and their drafts planned, while such a step runs."""
        return max(int(THRESHOLDS.overlap_share * self.cost.bare(step) / max(self.lookups.seconds, 1e-9)), 1)

    def record_lookups(self, requests: int, seconds: float, retried: int, tokens: float) -> None:
        """Record what asking the free proposers took; and for requests that lately had nothing and were
        retried, what their drafts are expected to bring."""
        self.lookups.record_seconds(requests, seconds)
        self.lookups.record_yield(retried, tokens * self._net_share)

    # ---- before a step ----

    def plan_drafter(
        self, state: StepState, offers: Mapping[str, Survival], expected: Mapping[str, Survival]
    ) -> DrafterPlan:
        """Decide for whom the drafter is asked. It is expected to bring `expected`; others offer `offers`."""
        requested = {
            request: min(asked, len(expected[request]))
            for request, asked in state.requested.items()
            if request in expected and len(offers.get(request, ())) < asked
        }
        if not expected or self.paused(state.step):
            return DrafterPlan(requested, max(requested.values(), default=0))
        ids = list(expected)
        longest = max(map(len, expected.values()))
        value = self._value_of_passes(state, offers, expected)
        passes = best_or_zero(value.values)
        gain = _gain(value.values, passes)
        taken, with_one_more = (self.drafter_seconds(state.step.requests, n) for n in (passes, passes + 1))
        more = with_one_more - taken
        is_probe = passes < longest and not requested and self.exploration.may_spend(max(more, 0.0))
        passes += is_probe
        use = value.gained[:, passes] > 0
        if is_probe and passes == 1:
            probed = use if use.any() else ~use
            use = probed & (probed.cumsum() <= THRESHOLDS.drafter_probe_requests)
        tokens = {
            request: min(passes, len(expected[request]))
            for request, yes in zip(ids, use.tolist(), strict=True)
            if yes
        }
        most = max(passes, max(requested.values(), default=0))
        return DrafterPlan(tokens | requested, most, is_probe, state.step.requests, gain)

    def drafter_gain(
        self, state: StepState, offers: Mapping[str, Survival], expected: Mapping[str, Survival]
    ) -> float:
        """Return the `DrafterPlan.gain` that `plan_drafter` would come to, without planning anything."""
        if not expected or self.paused(state.step):
            return 0.0
        values = self._value_of_passes(state, offers, expected).values
        return _gain(values, best_or_zero(values))

    def _value_of_passes(
        self, state: StepState, offers: Mapping[str, Survival], expected: Mapping[str, Survival]
    ) -> DrafterValue:
        longest = max(map(len, expected.values()))
        worth = self._worth(state)
        return value_of_passes(
            [_times(survival, worth.get(request, 1.0)) for request, survival in expected.items()],
            [_times(offers.get(request, ()), worth.get(request, 1.0)) for request in expected],
            lambda most: self.cost.by_drafts(state.step, most),
            np.array([self.drafter_seconds(state.step.requests, passes) for passes in range(longest + 1)]),
            self._baseline(state, worth),
        )

    def drafter_seconds(self, requests: int, passes: int) -> float:
        """Return what so many passes take now: one that runs within steps is as fast as the machine."""
        seconds = self.drafter_cost.seconds(passes, requests)
        runs_within = isinstance(self.drafter_cost, MeasuredDrafterCost)
        return seconds * math.exp(self.cost.speed) if runs_within else seconds

    def record_drafter(self, plan: DrafterPlan, seconds: float | None = None) -> None:
        """Record what the drafter took; None: as much as it usually does, for it was not timed."""
        took = self.drafter_seconds(plan.requests, plan.passes) if seconds is None else seconds
        if plan.is_probe:
            fewer = self.drafter_seconds(plan.requests, plan.passes - 1)
            self.exploration.spend(max(took - fewer, 0.0))
        if seconds is not None and isinstance(self.drafter_cost, DrafterCost):
            self.drafter_cost.record(plan.passes, seconds)

    # ---- of a drafter that must read every step ----

    def standing(self, step: Step) -> Standing:
        """Return what the drafter is worth in steps with about as many requests: up to twice as many."""
        return self._standings[step.requests.bit_length()]

    def reading_seconds(self, step: Step) -> float:
        """Return what the drafter's first pass takes at the end of a step, which reads what the target read:
        as much longer with prompts as the target's pass."""
        decode = self.cost.bare(replace(step, prefill=0))
        return self.drafter_seconds(step.requests, 1) * self.cost.bare(step) / decode

    def try_drafter(self, step: Step, expected: Mapping[str, Survival]) -> None:
        """Decide whether a drafter that has read no request of such a step begins to read them, if it is
        `expected` to bring this. Asked only then: from requests it has read only a loss takes it, for they
        may be fewer again soon."""
        standing = self.standing(step)
        standing.measure(loses_it=False)
        if not standing.runs:
            return
        if not self.drafter_would_pay(step, expected) and not standing.has_waited:
            standing.wait()

    def drafter_would_pay(self, step: Step, expected: Mapping[str, Survival]) -> bool:
        """Return whether a drafter `expected` to bring this gains more in such steps than it takes."""
        return self._net_gain(step, self.drafter_gain(StepState(step), {}, expected)) >= 0

    def skip_drafter(self, step: Step) -> None:
        """Count a step without the drafter. Once it is known what these take, the guard begins anew."""
        standing = self.standing(step)
        knew = standing.knows_bare
        standing.skip()
        if standing.knows_bare and not knew:
            self.guard(step).restart()

    def judge_drafter(self, step: Step, gain: float) -> None:
        """Judge whether a drafter that reads this step is worth it, if it gained so much with drafts for all
        requests: later it may draft for those that it has not read, too."""
        self.standing(step).judge(self._net_gain(step, gain), step.requests)

    def _net_gain(self, step: Step, gain: float) -> float:
        """Return what the drafter gains in such a step, in bare steps, if its drafts gain so much: less what
        it takes to read prompts, by their lengths and those of answers as they have been."""
        decode = self.cost.bare(replace(step, prefill=0))
        pass_share = self.drafter_seconds(step.requests, 1) / decode
        prompts = round(step.requests * self.traffic.prompt_tokens)
        reading = pass_share * (self.cost.bare(replace(step, prefill=prompts)) / decode - 1)
        # A pass is counted with those that draft, where some do; and with drafts an answer has fewer steps.
        drafting = gain if gain > 0 else -pass_share
        return drafting - reading * (1 + max(gain, 0.0)) / self.traffic.answer_tokens

    @property
    def drafter_rests(self) -> int:
        """Return how often the drafter was left out for a while."""
        return sum(standing.rests for standing in self._standings.values())

    def plan(self, state: StepState, offers: Mapping[str, Survival], drafter: DrafterRun = NOT_RUN) -> Plan:
        """Decide how many draft tokens of each request are verified."""
        if not offers:
            why = PAUSED if self.paused(state.step) else "nothing offered"
            return self._keep(state, {}, 0, 0.0, self.cost.bare(state.step), drafter, why)
        requested = {r: min(state.requested[r], len(offers[r])) for r in offers if r in state.requested}
        others = [request for request in offers if request not in requested]
        settled = sum(requested.values())
        worth = self._worth(state)
        survival, lengths = flatten([_times(offers[request], worth.get(request, 1.0)) for request in others])
        likeliest = np.sort(survival)[::-1]
        gains = np.zeros(len(likeliest) + 1)
        likeliest.cumsum(out=gains[1:])
        gains += sum(worth.get(request, 1.0) * sum(offers[request][:k]) for request, k in requested.items())
        seconds = self.cost.by_drafts(state.step, settled + len(likeliest))[settled:]
        baseline = self._baseline(state, worth)
        count, why = self._choose(state, settled, baseline, gains, seconds, likeliest, drafter)
        taken = take_likeliest(survival, lengths, likeliest, count)
        chosen = requested | dict(zip(others, taken.tolist(), strict=True))
        expected = sum(sum(offers[request][:k]) for request, k in chosen.items() if k)
        gain = float(gains[count])
        average = gain / expected if expected else 1.0
        lost = baseline.worth * float((seconds[count] + drafter.seconds - seconds[0]) / seconds[0])
        self._net_share = max(gain - lost, 0.0) / gain if gain else 0.0
        offered = settled + len(likeliest)
        return self._keep(state, chosen, offered, expected, float(seconds[count]), drafter, why, average)

    def _keep(
        self,
        state: StepState,
        lengths: Mapping[str, int],
        offered: int,
        gain: float,
        seconds: float,
        drafter: DrafterRun,
        why: str,
        worth: float = 1.0,
    ) -> Plan:
        self._reasons[why] += 1
        plan = Plan(
            lengths, state.step.requests, state.step.prefill, offered, sum(lengths.values()),
            state.step.requests + gain, worth, seconds + drafter.seconds, self.cost.bare(state.step),
            drafter.passes, why, self._reasons.total(),
        )  # fmt: skip
        self.plans.append(plan)
        self._budgets[plan.verified] += 1
        self._promised += gain
        return plan

    def _choose(
        self,
        state: StepState,
        settled: int,
        baseline: Baseline,
        gains: Floats,
        seconds: Floats,
        likeliest: Floats,
        drafter: DrafterRun,
    ) -> tuple[int, str]:
        """Return how many of the likeliest tokens to verify, beside the `settled` ones of requests that fix
        their number, and why."""
        if not len(likeliest):
            return 0, "asked for" if settled else "nothing offered"
        if self.paused(state.step):
            return 0, PAUSED
        values = baseline.values(gains, seconds, drafter.seconds)
        count = best_or_zero(values)
        if count and not settled:
            gain = float(values[count] - values[0]) / abs(float(values[0]))
            if self.exploration.baseline_is_due(state.step, gain):
                return 0, "to measure a bare step"
        good = int(np.searchsorted(-likeliest, -THRESHOLDS.probe_survival))
        if good > count and seconds[good] + drafter.seconds <= baseline.most_seconds:
            measured = self.cost.steps_seen(replace(state.step, drafts=settled + good))
            cost = float(seconds[good] - seconds[count])
            if self.exploration.may_probe_verifying(measured, cost):
                self.exploration.spend(cost)
                return good, "to measure verifying"
        return count, "most tokens/s" if count else "not worth its time"

    def _worth(self, state: StepState) -> Mapping[str, float]:
        """Return what a token of each request is worth, of those where it is not 1."""
        if self.objective is Objective.LATENCY:
            return {request: priority_worth(level) for request, level in state.priority.items()}
        if self.objective is not Objective.MAKESPAN or state.queue.waiting or len(state.outlook) < 2:
            return NO_WORTH
        refill = self.traffic.refill
        left, pace = np.array(list(state.outlook.values()), float).T
        seconds = np.concatenate(([0.0], self.cost.profile.of_each(1, len(left))))
        worth = refill + (1 - refill) * makespan_worth(left, pace, self.traffic.end_rate, seconds)
        return dict(zip(state.outlook, worth.tolist(), strict=True))

    def _baseline(self, state: StepState, worth: Mapping[str, float]) -> Baseline:
        step = state.step
        if self.objective is Objective.LATENCY:
            base = step.requests + state.queue.starting + sum(w - 1 for w in worth.values())
        else:
            base = float(step.requests)
        per_second = self._tokens_per_second * base / max(step.requests, 1)
        return Baseline(base, step.prefill, per_second, self._most_seconds(state))

    def _most_seconds(self, state: StepState) -> float:
        """Return the seconds that a step with drafts may take: for a newcomer, who waits for the step under
        way and then for the one with its prompt, and by the operator's bounds where they can be kept."""
        bare = self.cost.bare(state.step)
        prompt = self.traffic.prompt_seconds
        limits = [math.inf]
        if self.objective is Objective.LATENCY and self.traffic.newcomers > THRESHOLDS.rare_newcomers:
            share = 1.0 if state.step.prefill else 1 + prompt / bare
            limits.append(bare * (1 + THRESHOLDS.first_token_delay * share))
        if self.bounds.per_token is not None and self.bounds.per_token >= bare:
            limits.append(self.bounds.per_token)
        if self.bounds.first_token is not None and self.bounds.first_token >= bare + prompt:
            limits.append(self.bounds.first_token - prompt)
        return min(limits)

    def arrive(self, others_run: bool) -> None:
        """Note a request that comes, while others are running or not."""
        self.traffic.arrive(others_run)

    def finish(self, tokens: int, at_limit: bool, prompt: int = 0) -> None:
        """Note that a request has ended after so many tokens, at its limit or before; of its `prompt` so many
        were read."""
        self.traffic.finish(tokens, at_limit, prompt)

    # ---- after a step ----

    def record(self, outcome: StepOutcome) -> None:
        """Learn what steps take, and judge whether speculation gains. Draft tokens of requests that fix their
        number themselves are not held against it: the guard judges only what was chosen here."""
        step, seconds = outcome.step, outcome.seconds
        expected = self.cost.seconds(step)
        unplanned = self.cost.seconds(replace(step, drafts=outcome.requested_drafts))
        bare, decode = self.cost.bare(step), self.cost.bare(replace(step, prefill=0))
        learnt = self._learn(outcome)
        counted = seconds if learnt else min(seconds, expected * math.exp(THRESHOLDS.hang_factor))
        if not step.drafts:
            hang = 0.0 if learnt else (counted - expected) / decode
            self._hangs += (hang - self._hangs) / THRESHOLDS.hang_memory
        guard = self.guard(step)
        if guard.allows and step.drafts > outcome.requested_drafts and self.cost.steps > 1:
            lost = counted + outcome.drafting - unplanned - self._hangs * decode
            gained = (outcome.tokens - outcome.requested_accepted - step.requests) / step.requests
            guard.judge(decode + lost, decode, 1 + gained * outcome.worth)
        elif learnt:
            guard.rest()
        if not learnt:
            return
        took = seconds + outcome.drafting + outcome.reading
        if step.drafts or self._is_beside_drafter(outcome):
            more = max(outcome.tokens - step.requests, 0) / step.requests
            self.speedup.record(took, bare + more * decode)
        else:
            self.speedup.record(took, seconds)
            self.speedup.record_baseline(seconds, expected)
        self.exploration.record(step, took)
        self.traffic.record(took, step.prefill > 0)
        if not step.prefill:
            weight = THRESHOLDS.rate_memory if self._tokens_per_second else 1
            self._tokens_per_second += (outcome.tokens / took - self._tokens_per_second) / weight

    def _is_beside_drafter(self, outcome: StepOutcome) -> bool:
        """Return whether the drafter ran within a step, and what these take without it was seen lately."""
        return outcome.drafter_within and self.standing(outcome.step).knew_lately

    def _learn(self, outcome: StepOutcome) -> bool:
        """Learn what a step took, or return False if it hung. Steps without the drafter tell what bare ones
        take. If those within which it ran told it too, a drafter dearer than is believed would seem to be a
        slow machine, and never a loss."""
        step = outcome.step
        if not self._is_beside_drafter(outcome):
            return self.cost.learn(step, outcome.seconds)
        if step.drafts:
            return self.cost.learn(step, outcome.seconds, knows_speed=False)
        expected = outcome.drafting + outcome.reading
        if isinstance(self.drafter_cost, MeasuredDrafterCost) and expected and not step.prefill:
            bare = self.cost.bare(step)
            took = outcome.seconds + expected
            if took > math.exp(THRESHOLDS.hang_factor) * (bare + expected):
                return False
            self.drafter_cost.learn(took - bare, expected)
        return True

    def counts(self, step: Step) -> dict[str, Any]:
        """Return counts since the start, for metrics, and whether steps like this one have drafts now."""
        return {
            "plans": dict(self._reasons),
            "budgets": dict(self._budgets),
            "promised": self._promised,
            "paused": self.paused(step),
            "pauses": sum(guard.pauses for guard in self._guards.values()),
            "drafter_rests": self.drafter_rests,
            "step_seconds": self.speedup.seconds,
            "bare_seconds": self.speedup.bare_seconds,
            "speedup": self.speedup.interval(),
        }

    def report(self, step: Step) -> dict[str, Any]:
        """Return what is believed now of a step like this one, and the recent plans."""
        step = replace(step, prefill=0)
        most = max(self.plans[-1].offered if self.plans else 0, 8 * max(step.requests, 1))
        places = [place for place in SCALE if place <= most]
        seconds = self.cost.by_drafts(step, most)
        return {
            "objective": str(self.objective),
            "requests": step.requests,
            "context": step.context,
            "step_seconds": [[place, float(seconds[place])] for place in places],
            "tokens_per_second": self._tokens_per_second,
            "drafter_seconds_per_pass": self.drafter_seconds(step.requests, 1),
            "look_seconds": self.lookups.seconds,
            "tokens_per_look": self.lookups.tokens,
            "steps": self.cost.steps,
            "paused": self.paused(step),
            "pauses": sum(guard.pauses for guard in self._guards.values()),
            "loss": self.guard(step).loss,
            "drafter_rests": self.drafter_rests,
            "tried_share": self.exploration.share,
            "plans": [plan.as_dict() for plan in self.plans],
        }


def _proportional(known: Mapping[int, float], passes: int) -> float:
    """Return the seconds of so many passes: between those that are known, or in proportion to the most."""
    most = max(known)
    if passes > most:
        return known[most] * passes / most
    return float(np.interp(passes, [0, *known], [0.0, *known.values()]))


def _gain(values: Floats, passes: int) -> float:
    return float(values[passes] - values[0]) / max(abs(float(values[0])), 1e-9)


def _times(survival: Survival, worth: float) -> Survival:
    return survival if worth == 1.0 else [worth * value for value in survival]
