"""What a step will take, learnt from what steps have taken.

A profile of the target's pass, measured at the engine's start, gives the shape: seconds by tokens in the
pass. What real steps take is learnt as factors on it: one for the machine's speed of the moment, which all
steps share and which cancels when two plans are compared, and one for each kind of step. A kind is how many
requests decode, how many draft tokens are verified, how many prompt tokens come with them and how long the
contexts are, each on a coarse scale.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, islice
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from slipstream.planning.thresholds import THRESHOLDS

Floats = NDArray[np.float64]

FAR = 10**6  # tokens
MAX_WAITING = 16  # requests in the queue that are looked at for the prompt tokens of the next step
SCALE = sorted({0, 1, 2, 3, *(round(2 ** (e / 2)) for e in range(4, 40))})  # 0 1 2 3 4 6 8 11 16 23 32 ...


class Kind(NamedTuple):
    """What a step holds besides drafts, on the coarse scale."""

    requests: int
    prefill: int
    context: int


@dataclass(frozen=True)
class Step:
    """What a step holds: that is what its time depends on."""

    requests: int
    """All in the step: those that get a token, with a draft or without, and those whose prompt is read."""
    drafts: int = 0
    """Draft tokens to verify, over all requests."""
    prefill: int = 0
    """Prompt tokens."""
    context: int = 0
    """Tokens in the cache, over all requests."""

    @property
    def tokens(self) -> int:
        return self.requests + self.drafts + self.prefill

    @classmethod
    def forecast(
        cls,
        running: int,
        prompt_tokens: int,
        waiting: Iterable[int],
        max_running: int,
        max_tokens: int,
        context: int,
    ) -> Self:
        """Return what the next step will hold besides drafts, as far as can be told: `prompt_tokens` of the
        running requests are still to be read, and `waiting` are the prompt lengths of the others."""
        if running < max_running:
            prompt_tokens += sum(islice(waiting, MAX_WAITING))
        return cls(running, 0, max(min(prompt_tokens, max_tokens - running), 0), context)


@dataclass(frozen=True)
class PassProfile:
    """Seconds of the target's pass by tokens in it; linear between and beyond the counts measured."""

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.seconds) or list(self.tokens) != sorted(set(self.tokens)):
            raise ValueError("a profile needs rising token counts, and seconds for each")
        if not self.tokens or not all(math.isfinite(s) and s > 0 for s in self.seconds):
            raise ValueError("a profile needs positive seconds")

    @cached_property
    def _line(self) -> tuple[tuple[int, ...], list[float]]:
        """Return a line through these points: never falling, whatever the noise of the measurement, and
        going on beyond the last as steeply as from the first to it, or as the last piece."""
        seconds = list(accumulate(self.seconds, max))
        last = self.tokens[-1]
        slope = seconds[-1] / last
        if len(self.tokens) > 1:
            slope = max(
                (seconds[-1] - seconds[0]) / (last - self.tokens[0]),
                (seconds[-1] - seconds[-2]) / (last - self.tokens[-2]),
            )
        return (*self.tokens, last + FAR), [*seconds, seconds[-1] + slope * FAR]

    def __call__(self, tokens: int) -> float:
        places, seconds = self._line
        piece = min(max(bisect_right(places, tokens), 1), len(places) - 1)
        left, right = places[piece - 1], places[piece]
        share = max(tokens - left, 0) / (right - left)
        return seconds[piece - 1] + share * (seconds[piece] - seconds[piece - 1])

    def of_each(self, first: int, last: int) -> Floats:
        """Return the seconds of first, first + 1, ... last tokens."""
        places, seconds = self._line
        each: Floats = np.interp(np.arange(first, last + 1), places, seconds)
        return each

    def as_dict(self) -> dict[str, Any]:
        return {"tokens": list(self.tokens), "seconds": list(self.seconds)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Sequence[float]]) -> "PassProfile":
        return cls(tuple(int(t) for t in content["tokens"]), tuple(content["seconds"]))


GUESS = PassProfile((1, 64, 512), (0.02, 0.02, 0.16))
"""Where nothing could be measured: free up to 64 tokens, then in proportion."""


class _Factor:
    """The logarithm of real over expected seconds: a decayed mean in which no single step counts for much."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.count = 0
        self.value = 0.0

    def learn(self, surprise: float) -> None:
        self.count += 1
        bounded = _bounded(surprise / 2) * 2 if self.count <= THRESHOLDS.known_steps else _bounded(surprise)
        self.value += bounded / min(self.count + THRESHOLDS.profile_weight, THRESHOLDS.cost_memory)


_Factors = dict[int, _Factor]  # by draft tokens, on the coarse scale


class StepCost:
    def __init__(self, profile: PassProfile = GUESS) -> None:
        self.profile = profile
        self.speed = 0.0
        """Logarithm of how much slower the machine is than when the profile was made."""
        self.steps = 0
        self._outliers: dict[bool | tuple[Kind, bool], int] = {}
        """In a row, of all steps with or without drafts, and of those of a kind; steps too short count below
        0."""
        self._fine: dict[Kind, _Factors] = {}
        self._coarse: dict[tuple[int, bool], _Factors] = {}
        """By requests, and whether there are prompts: for kinds not seen yet."""

    def seconds(self, step: Step) -> float:
        return self._seconds(step, step.drafts, *self._factors(step))

    def by_drafts(self, step: Step, most: int) -> Floats:
        """Return the seconds of the step with 0, 1, ... `most` draft tokens instead of its own; never
        falling."""
        places = SCALE[: bisect_right(SCALE, most)]
        fine, coarse = self._factors(step)
        bare = step.requests + step.prefill
        seconds = _rising(
            [self._seconds(step, place, fine, coarse) for place in places],
            [fine[place].count if place in fine else THRESHOLDS.prior_weight for place in places],
        )
        factors = [s / self.profile(bare + place) for s, place in zip(seconds, places, strict=True)]
        between = np.interp(np.arange(most + 1), places, factors)
        rising: Floats = np.maximum.accumulate(self.profile.of_each(bare, bare + most) * between)
        return rising

    def _seconds(self, step: Step, drafts: int, fine: _Factors, coarse: _Factors) -> float:
        expected = self.profile(step.requests + step.prefill + drafts)
        return expected * math.exp(self.speed + _factor(fine, coarse, on_scale(drafts)))

    def _factors(self, step: Step) -> tuple[_Factors, _Factors]:
        """Return the factors of steps of its kind, and of all with as many requests."""
        kind = _kind(step)
        fine = self._fine.setdefault(kind, {})
        return fine, self._coarse.setdefault((kind.requests, step.prefill > 0), {})

    def learn(self, step: Step, seconds: float, knows_speed: bool = True) -> bool:
        """Learn from a step's latency. Return False if it was left out: it hung, or seemed to take next to no
        time, as one does whose output is read late because the process hung meanwhile. With `knows_speed`
        off it says nothing of the machine's speed, only of such steps: a drafter ran within it."""
        if not (math.isfinite(seconds) and seconds > 0):
            return False
        place = on_scale(step.drafts)
        fine, coarse = self._factors(step)
        real = math.log(seconds / self.profile(step.tokens))
        if self.steps == 0:  # the profile leaves out what vLLM does around the pass
            self.speed = real
        surprise = real - self.speed - _factor(fine, coarse, place)
        drafted = step.drafts > 0
        of_all, of_kind = (self._outliers_in_a_row(of, surprise) for of in (drafted, (_kind(step), drafted)))
        if 0 < max(of_all, of_kind) < THRESHOLDS.hangs_in_a_row:
            return False
        self.steps += 1
        if knows_speed:
            if surprise < 0 and of_all >= THRESHOLDS.hangs_in_a_row:  # what was believed before is wrong
                self.speed += surprise
                surprise = 0.0
            self.speed += THRESHOLDS.speed_rate * _bounded(surprise)
        for factors in (fine, coarse):
            factor = factors.setdefault(place, _Factor())
            factor.learn(real - self.speed - factor.value)
        return True

    def _outliers_in_a_row(self, of: bool | tuple[Kind, bool], surprise: float) -> int:
        """Return how many steps of these, with this one, took too long or too short without one between them
        that did not."""
        before = self._outliers.get(of, 0)
        if abs(surprise) <= THRESHOLDS.hang_factor:
            now = 0
        else:
            now = max(before, 0) + 1 if surprise > 0 else min(before, 0) - 1
        self._outliers[of] = now
        return abs(now)

    def steps_seen(self, step: Step) -> int:
        """Return how many steps of this kind were measured."""
        factor = self._fine.get(_kind(step), {}).get(on_scale(step.drafts))
        return factor.count if factor else 0

    def bare(self, step: Step) -> float:
        """Return seconds of the step without its drafts."""
        return self.seconds(replace(step, drafts=0))


def _kind(step: Step) -> Kind:
    per_request = step.context // max(step.requests, 1)
    return Kind(on_scale(step.requests), on_scale(step.prefill // 64), on_scale(per_request // 512))


def _factor(fine: _Factors, coarse: _Factors, place: int) -> float:
    """Return the factor of a number of drafts: of a kind seen rarely, mostly that of its like; of a number
    never seen, that of none."""
    overall = coarse.get(place) or coarse.get(0)
    if overall is None:
        return 0.0
    own = fine.get(place)
    if own is not None:
        weight = own.count / (own.count + THRESHOLDS.known_steps)
        return weight * own.value + (1 - weight) * overall.value
    if 0 in fine and 0 in coarse:  # as much slower than its like as without drafts
        return overall.value + fine[0].value - coarse[0].value
    return overall.value


def on_scale(count: int) -> int:
    """Return the place of a count on the coarse scale."""
    return SCALE[bisect_right(SCALE, count) - 1]


def _rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the nearest values that never fall: neighbours that do are given their mean. It is scipy's
    `isotonic_regression`; an engine does without scipy, which not every image has."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for value, weight in zip(values, weights, strict=True):
        mean, heavy, many = value, weight, 1
        while pools and pools[-1][0] > mean:
            before, other, some = pools.pop()
            mean = (before * other + mean * heavy) / (other + heavy)
            heavy, many = heavy + other, many + some
        pools.append((mean, heavy, many))
    return [mean for mean, _, many in pools for _ in range(many)]


def _bounded(surprise: float) -> float:
    return max(-THRESHOLDS.max_surprise, min(surprise, THRESHOLDS.max_surprise))
