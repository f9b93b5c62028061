"""How much to verify, and whether the drafter is worth running, decided anew for every step.

Verifying k draft tokens of a request, each surviving with probability s_1 >= s_2 >= ..., brings
1 + s_1 + ... + s_k tokens. For every number of draft tokens in all, the best are those most likely to
survive; so they are sorted once, and of all numbers the one is taken that brings most tokens per second.
Nothing at all is always among them.

Free proposers are scored on what the target writes whether their drafts are verified or not, so nothing has
to be tried out for them. What is tried out from time to time: a step without drafts, to know what the bare
engine takes; a step with more drafts than seem to pay, to know what verifying takes; and one pass of the
drafter more than seems to pay, to know how good its later tokens are.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.compiled import compiled
from slipstream.planning.guard import Guard
from slipstream.planning.step_cost import HANGS, SCALE, Step, StepCost

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Survival = Sequence[float] | Floats

WORTH_IT = 0.02  # a plan must promise so much more than no drafts
TRY_SHARE = 0.01  # of the time goes to trying out
TRIED = 4  # requests at a time, with a drafter that has to catch up with their texts first
BARE_EVERY = 200  # steps with drafts at one load, after which one without is due; at first sooner
LOOK_SHARE = 0.005  # of the time goes to looking at requests that lately had nothing, if it does not pay
LOOK_MEMORY = 200  # looks
NET = 0.5  # of what a draft is expected to bring, after what verifying it takes
RATE_MEMORY = 50  # steps
HANG_MEMORY = 200  # bare steps
DRAFTER_RATE = 0.2  # of what is new in a drafter's time
STEPS_TO_KNOW = 5  # of a kind
GOOD = 0.3  # survival from which a token is worth trying out
NOTHING: Mapping[str, int] = {}
REMEMBERED = 64  # plans, for who asks
LIKELIHOODS = 128  # told apart when the drafter's passes are decided


@dataclass(frozen=True)
class Plan:
    """What was decided for one step, and why."""

    step: int
    requests: int
    prefill: int
    offered: int
    """Draft tokens that could have been verified."""
    verified: int
    expected_tokens: float
    seconds: float
    bare_seconds: float
    drafter_passes: int
    why: str

    @property
    def promise(self) -> float:
        """Tokens per second against the same step without drafts."""
        return (
            self.expected_tokens / self.requests * self.bare_seconds / self.seconds if self.requests else 1.0
        )


class DrafterCost:
    """Seconds by number of passes: as they were seen, or in proportion to the nearest number seen."""

    def __init__(self, per_pass: float) -> None:
        self._seen = {1: per_pass}

    def seconds(self, passes: int) -> float:
        if not passes:
            return 0.0
        nearest = min(self._seen, key=lambda seen: abs(seen - passes))
        return self._seen[nearest] * (passes + 1) / (nearest + 1)

    def learn(self, passes: int, seconds: float) -> None:
        known = self.seconds(passes)
        most = 2 * known  # catching up with a long prompt is no pass
        self._seen[passes] = known + DRAFTER_RATE * (min(seconds, most) - known)


class Planner:
    """Asked between two steps: first `upcoming`, then, in the course of drafting, `passes` and `lengths`;
    then told what came of it by `measured`."""

    def __init__(self, cost: StepCost, drafter_pass: float = 0.01) -> None:
        self.cost = cost
        self.guard = Guard()
        self.plans: deque[Plan] = deque(maxlen=REMEMBERED)
        self.drafter_cost = DrafterCost(drafter_pass)
        self.drafting = 0.0
        """Seconds spent on the drafter for the next step."""
        self._steps = 0
        self._next = Step(1)
        self._pinned: Mapping[str, int] = {}
        self._passes = 0
        self._trying_drafter = False
        self._spent = 0.0  # seconds of steps
        self._tried = 0.0  # seconds that trying out has cost, about
        self._rate = 0.0  # tokens per second of late
        self._since_bare: dict[tuple[int, bool], tuple[int, int]] = {}
        """By requests, and whether there are prompts: steps with drafts, steps without."""
        self._bare_hangs = 0.0  # seconds that hung steps take longer, per bare step, in bare steps
        self._looking = 50e-6  # seconds for a look at one request
        self._brought = 1.0  # tokens, by a look at a request that lately had nothing worth verifying
        one = np.zeros(1), np.ones(1, np.int64)
        _take(*one, 0.0, 0)  # compiled now, not in the first step
        _by_passes(*one, *one, 1)

    # ---- before a step ----

    def upcoming(self, step: Step, pinned: Mapping[str, int] = NOTHING) -> None:
        """What the next step will hold, before drafts; and for whom the number of draft tokens is settled."""
        self._steps += 1
        self._next, self._pinned = step, pinned
        self.drafting, self._passes = 0.0, 0

    def looks(self, requests: int) -> int:
        """How many of the requests that lately had nothing worth verifying are to be looked at: all, if such
        looks bring more than they take; else a few, to see whether that changes."""
        bare = self.cost.bare(self._next)
        if NET * self._brought * bare / max(self._next.requests, 1) > self._looking:
            return requests
        return min(requests, max(1, int(LOOK_SHARE * bare / self._looking)))

    def brought(self, looks: int, tokens: float) -> None:
        """So many looks at such requests led to drafts that are expected to bring so many tokens."""
        if looks:
            kept = (1 - 1 / LOOK_MEMORY) ** looks
            self._brought = kept * self._brought + (1 - kept) * tokens / looks

    def looked(self, requests: int, seconds: float) -> None:
        """Asking the free proposers for so many requests took so long."""
        if requests:
            self._looking += 0.05 * (min(seconds / requests, 4 * self._looking) - self._looking)

    def passes(
        self, drafter: str, best: Mapping[str, Survival], expected: Mapping[str, Survival]
    ) -> dict[str, int]:
        """For whom the drafter is asked, and for how many tokens; `best` is what others offer."""
        if not expected or not self.guard.allows:
            return {}
        cost = self.drafter_cost
        ids = list(expected)
        own, others = [expected[request] for request in ids], [best.get(request, ()) for request in ids]
        longest = max(map(len, own))
        gained, tokens, gains = _by_passes(*_flat(own), *_flat(others), longest)
        seconds = self.cost.by_drafts(self._next, int(tokens[:, -1].max()))
        drafting = np.array([cost.seconds(passes) for passes in range(longest + 1)])
        rates = self._values(gains, seconds[tokens], drafting[:, None]).max(1)
        chosen = int(np.argmax(rates))
        if chosen and not _is_more(rates[chosen], rates[0]):
            chosen = 0
        short = {
            request: min(asked, len(expected[request]))
            for request, asked in self._pinned.items()
            if request in expected and len(best.get(request, ())) < asked
        }
        more = cost.seconds(chosen + 1) - cost.seconds(chosen)
        self._trying_drafter = chosen < longest and not short and self._may_try(more)
        if self._trying_drafter:
            chosen += 1
        self._passes = max(chosen, max(short.values(), default=0))
        use = gained[:, chosen] > 0
        if self._trying_drafter and chosen == 1:
            tried = use if use.any() else ~use
            use = tried & (tried.cumsum() <= TRIED)
        asked = {
            request: min(chosen, len(expected[request]))
            for request, yes in zip(ids, use.tolist(), strict=True)
            if yes
        }
        return asked | short

    def drafter_ran(self, drafter: str, seconds: float) -> None:
        self.drafting += seconds
        if self._trying_drafter:
            self._tried += max(seconds - self.drafter_cost.seconds(self._passes - 1), 0.0)
        self.drafter_cost.learn(self._passes, seconds)

    def lengths(self, survival: Mapping[str, Survival]) -> dict[str, int]:
        """How many of each request's draft tokens are verified."""
        if not survival:
            self._record(0, 0, 0.0, self.cost.bare(self._next), "nothing offered")
            return {}
        settled = {r: min(self._pinned[r], len(survival[r])) for r in survival if r in self._pinned}
        free = [request for request in survival if request not in settled]
        step = replace(self._next, drafts=sum(settled.values()))
        values, lengths = _flat([survival[request] for request in free])
        likeliest = np.sort(values)[::-1]
        offered = len(likeliest)
        gains = np.zeros(offered + 1)
        likeliest.cumsum(out=gains[1:])
        gains += sum(sum(survival[request][:k]) for request, k in settled.items())
        seconds = self.cost.by_drafts(self._next, step.drafts + offered)[step.drafts :]
        count, why = self._choose(step, gains, seconds, likeliest)
        taken = _take(values, lengths, likeliest[count - 1] if count else 2.0, count)
        self._record(
            step.drafts + offered, step.drafts + count, float(gains[count]), float(seconds[count]), why
        )
        return settled | dict(zip(free, taken.tolist(), strict=True))

    def _choose(self, step: Step, gains: Floats, seconds: Floats, likeliest: Floats) -> tuple[int, str]:
        """How many of the likeliest tokens to verify, beside those that are settled, and why."""
        if not len(likeliest):
            return 0, "asked for" if step.drafts else "nothing offered"
        if not self.guard.allows:
            return 0, "paused: it was losing"
        rates = self._values(gains, seconds, self.drafting)
        count = int(rates.argmax())
        if not _is_more(rates[count], rates[0]):
            count = 0
        if count and not step.drafts and self._bare_is_due(step):
            return 0, "to measure a bare step"
        good = int(np.searchsorted(-likeliest, -GOOD))
        if self._is_unknown(step, count, good, seconds):
            self._tried += float(seconds[good] - seconds[count])
            return good, "to measure verifying"
        return count, "most tokens/s" if count else "not worth its time"

    def _record(self, offered: int, verified: int, gain: float, seconds: float, why: str) -> None:
        step = self._next
        self.plans.append(
            Plan(
                self._steps, step.requests, step.prefill, offered, verified, step.requests + gain,
                seconds + self.drafting, self.cost.bare(step), self._passes, why,
            )
        )  # fmt: skip

    def _values(self, gains: Floats, seconds: Floats, drafting: float | Floats) -> Floats:
        """What each number of draft tokens is worth: tokens per second; in a step with prompts, whose time
        is not the drafts' doing, the tokens beyond what the time would bring elsewhere."""
        if self._next.prefill and self._rate:
            net: Floats = self._next.requests + gains - self._rate * (seconds - seconds.min() + drafting)
            return net
        rates: Floats = (self._next.requests + gains) / (seconds + drafting)
        return rates

    def report(self) -> dict[str, Any]:
        """What is believed now, and the last plans."""
        step = replace(self._next, prefill=0)
        most = max(self.plans[-1].offered if self.plans else 0, 8 * max(step.requests, 1))
        places = [place for place in SCALE if place <= most]
        seconds = self.cost.by_drafts(step, most)
        return {
            "requests": step.requests,
            "context": step.context,
            "step_seconds": [[place, float(seconds[place])] for place in places],
            "tokens_per_second": self._rate,
            "drafter_seconds_per_pass": self.drafter_cost.seconds(1),
            "look_seconds": self._looking,
            "tokens_per_look": self._brought,
            "steps": self.cost.steps,
            "paused": not self.guard.allows,
            "pauses": self.guard.pauses,
            "loss": self.guard.loss,
            "tried_share": self._tried / self._spent if self._spent else 0.0,
            "plans": [asdict(plan) | {"promise": plan.promise} for plan in self.plans],
        }

    def _may_try(self, seconds: float) -> bool:
        return self._tried + seconds <= TRY_SHARE * self._spent

    def _bare_is_due(self, step: Step) -> bool:
        since, seen = self._since_bare.get((step.requests, step.prefill > 0), (0, 0))
        return since >= min(BARE_EVERY, 10 * (seen + 1))

    def _is_unknown(self, step: Step, count: int, good: int, seconds: Floats) -> bool:
        """More good drafts are there than seem worth their time, and that has hardly been measured."""
        if good <= count or self.cost.steps_seen(replace(step, drafts=step.drafts + good)) >= STEPS_TO_KNOW:
            return False
        return self._may_try(float(seconds[good] - seconds[count]))

    # ---- after a step ----

    def measured(
        self,
        step: Step,
        seconds: float,
        drafting: float,
        tokens: int,
        pinned_drafts: int = 0,
        pinned_tokens: int = 0,
    ) -> None:
        """Record a step: its seconds apart from drafting for it, and the tokens it wrote. `pinned_drafts` of
        its draft tokens were those of requests that settle their number themselves, and `pinned_tokens` of
        them were accepted: the guard judges only what was chosen here."""
        expected = self.cost.seconds(step)
        unplanned = self.cost.seconds(replace(step, drafts=pinned_drafts))
        decode = self.cost.bare(replace(step, prefill=0))
        learnt = self.cost.learn(step, seconds)
        counted = seconds if learnt else min(seconds, expected * math.exp(HANGS))
        if not step.drafts:
            hang = 0.0 if learnt else (counted - expected) / decode
            self._bare_hangs += (hang - self._bare_hangs) / HANG_MEMORY
        if self.guard.allows and step.drafts > pinned_drafts and self.cost.steps > 1:
            lost = counted + drafting - unplanned - self._bare_hangs * decode
            gained = (tokens - pinned_tokens - step.requests) / step.requests
            self.guard.judge(decode + lost, decode, 1 + gained)
        elif learnt:
            self.guard.rest()
        if not learnt:
            return
        self._spent += seconds + drafting
        kind = step.requests, step.prefill > 0
        since, seen = self._since_bare.get(kind, (0, 0))
        self._since_bare[kind] = (since + 1, seen) if step.drafts else (0, seen + 1)
        if not step.prefill:
            rate = tokens / (seconds + drafting)
            self._rate += (rate - self._rate) / (RATE_MEMORY if self._rate else 1)


def _is_more(rate: float, than: float) -> bool:
    return rate > than + WORTH_IT * abs(than)


@compiled
def _take(values: Floats, lengths: Ints, least: float, count: int) -> Ints:
    """How many of each request's tokens are among the `count` likeliest, the last of which has `least`."""
    taken = np.zeros(len(lengths), np.int64)
    left = count - np.sum(values > least)  # of those that are as likely as the last
    at = 0
    for row in range(len(lengths)):
        for value in values[at : at + lengths[row]]:
            if value < least or (value == least and left == 0):
                break
            left -= value == least
            taken[row] += 1
        at += lengths[row]
    return taken


def _flat(rows: Sequence[Survival]) -> tuple[Floats, Ints]:
    """All rows in one, and their lengths."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return np.fromiter(chain.from_iterable(rows), float, int(lengths.sum())), lengths


@compiled
def _by_passes(
    own: Floats, own_lengths: Ints, others: Floats, other_lengths: Ints, longest: int
) -> tuple[Floats, Ints, Floats]:
    """For every number of drafter passes from 0: what they bring each request more than `others`
    [requests, passes]; and with the better of both for each, the number and the sum of the draft tokens at
    least as likely as each of some likelihoods, which start at 1 [passes, likelihoods]. Sorting them would
    take too long."""
    gained = np.zeros((len(own_lengths), longest + 1))
    counts = np.zeros((longest + 1, LIKELIHOODS + 1), np.int64)
    sums = np.zeros((longest + 1, LIKELIHOODS + 1))
    own_end = others_end = 0
    for row in range(len(own_lengths)):
        own_at, others_at = own_end, others_end
        own_end += own_lengths[row]
        others_end += other_lengths[row]
        theirs = others[others_at:others_end].sum()
        for passes in range(longest + 1):
            mine = own[own_at : min(own_at + passes, own_end)]
            gained[row, passes] = mine.sum() - theirs
            for value in mine if gained[row, passes] > 0 else others[others_at:others_end]:
                place = 1 + int((1 - value) * (LIKELIHOODS - 1))
                counts[passes, place] += 1
                sums[passes, place] += value
    for place in range(LIKELIHOODS):
        counts[:, place + 1] += counts[:, place]
        sums[:, place + 1] += sums[:, place]
    return gained, counts, sums
