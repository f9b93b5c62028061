"""The optimizer: which draft tokens to verify, as pure functions of arrays.

Verifying k draft tokens of a request, each surviving with probability s_1 >= s_2 >= ..., brings
1 + s_1 + ... + s_k tokens, each worth what `objective` says of the request. For every number of draft tokens
in all, the best are those with most worth; so they are sorted once, and of all numbers the one is taken that
brings most worth per second. No drafts at all is always among them.
"""

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.compiled import compiled
from slipstream.planning.thresholds import THRESHOLDS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Survival = Sequence[float] | Floats

SURVIVAL_BINS = 128
"""Survival probabilities that are told apart when the drafter's passes are chosen."""


def flatten(rows: Sequence[Survival]) -> tuple[Floats, Ints]:
    """Return all rows in one array, and their lengths."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return np.fromiter(chain.from_iterable(rows), float, int(lengths.sum())), lengths


class Baseline(NamedTuple):
    """What a step brings without drafts, against which drafts are weighed."""

    worth: float
    """Of the tokens that it brings, and of the progress of those that wait for it."""
    prefill: int
    worth_per_second: float
    """Recently, with speculation as it was; 0 if none is known."""
    most_seconds: float = math.inf
    """That a step with drafts may take, drafting included."""

    def values(self, gains: Floats, seconds: Floats, drafting: float | Floats) -> Floats:
        """Return the value of each alternative: worth per second; in a step with prompts, whose time is not
        the drafts' doing, the worth beyond what the time would bring elsewhere."""
        took = seconds + drafting
        values: Floats
        if self.prefill and self.worth_per_second:
            values = self.worth + gains - self.worth_per_second * (took - seconds.min())
        else:
            values = (self.worth + gains) / took
        if self.most_seconds < math.inf:
            values = np.where((took <= self.most_seconds) | (gains == 0), values, -math.inf)
        return values


def best_or_zero(values: Floats) -> int:
    """Return the place of the best value; 0, no drafts, unless another is better by the least gain."""
    best = int(values.argmax())
    return best if values[best] > values[0] + THRESHOLDS.min_gain * abs(values[0]) else 0


class DrafterValue(NamedTuple):
    """What every number of drafter passes would bring, from none on."""

    gained: Floats
    """[requests, passes]: tokens more than what is offered already."""
    values: Floats
    """[passes]: with the best number of tokens verified."""


def value_of_passes(
    expected: Sequence[Survival],
    offered: Sequence[Survival],
    step_seconds: Callable[[int], Floats],
    drafting: Floats,
    baseline: Baseline,
) -> DrafterValue:
    """Weigh the drafter's expected tokens against what others offer for the same requests. `step_seconds(n)`
    are the seconds of a step with 0 to n draft tokens, `drafting` those of the drafter by its passes."""
    gained, tokens, gains = _sum_by_passes(*flatten(expected), *flatten(offered), len(drafting) - 1)
    seconds = step_seconds(int(tokens[:, -1].max()))[tokens]
    return DrafterValue(gained, baseline.values(gains, seconds, drafting[:, None]).max(1))


def take_likeliest(survival: Floats, lengths: Ints, sorted_survival: Floats, count: int) -> Ints:
    """Return how many tokens of each request are among the `count` likeliest of all."""
    taken: Ints = _take(survival, lengths, sorted_survival[count - 1] if count else 2.0, count)
    return taken


def compile_now() -> None:
    """Compile the kernels, which would else happen in an engine's first step."""
    one = np.zeros(1), np.ones(1, np.int64)
    _take(*one, 0.0, 0)
    _sum_by_passes(*one, *one, 1)


@compiled
def _take(values: Floats, lengths: Ints, least: float, count: int) -> Ints:
    """Count the tokens taken of each request; `least` is the survival of the last of them."""
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


@compiled
def _sum_by_passes(
    own: Floats, own_lengths: Ints, others: Floats, other_lengths: Ints, longest: int
) -> tuple[Floats, Ints, Floats]:
    """For every number of drafter passes from 0: what they bring each request more than `others`
    [requests, passes]; and with the better of both for each, the number and the sum of the draft tokens at
    least as likely as each of some survivals, which start at 1 [passes, bins]. Sorting them would take too
    long. Survivals may be weighted, so that some are above 1."""
    gained = np.zeros((len(own_lengths), longest + 1))
    counts = np.zeros((longest + 1, SURVIVAL_BINS + 1), np.int64)
    sums = np.zeros((longest + 1, SURVIVAL_BINS + 1))
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
                place = 1 + int(max(1 - value, 0.0) * (SURVIVAL_BINS - 1))  # by worth it may be above 1
                counts[passes, place] += 1
                sums[passes, place] += value
    for place in range(SURVIVAL_BINS):
        counts[:, place + 1] += counts[:, place]
        sums[:, place + 1] += sums[:, place]
    return gained, counts, sums
