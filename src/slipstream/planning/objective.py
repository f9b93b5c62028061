"""What a plan is judged by: how much a token of each request is worth, and who waits for the step.

The optimizer takes the plan with most worth per second, where a token of an average request is worth 1:

    throughput  every token is worth the same
    makespan    a token is worth what it takes off the time until all requests are done (`makespan_worth`)
    latency     as throughput; requests that wait for their first token count as much as those that write,
                drafts may make a step they wait for only a little longer, and `priority` counts

docs/objective.md derives them.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from slipstream.planning.thresholds import THRESHOLDS

Floats = NDArray[np.float64]

LEAST_PACE = 1e-6  # tokens per step beyond the first: so that nothing is divided by 0
MAX_PRIORITY = 4  # levels that are told apart


class Objective(StrEnum):
    THROUGHPUT = "throughput"
    MAKESPAN = "makespan"
    LATENCY = "latency"


@dataclass(frozen=True)
class Bounds:
    """Seconds that an operator asks the planner to keep, where the engine without drafts keeps them."""

    per_token: float | None = None
    first_token: float | None = None


def makespan_worth(tokens_left: Floats, pace: Floats, end_rate: float, step_seconds: Floats) -> Floats:
    """Return what a token of each request takes off the time until all are done, in units of the average.

    The batch is done with its slowest request, however fast the others are. Tokens that a request needs to be
    done by then are worth the average; any other only takes it out of a step in which others are running.
    `tokens_left` are limits, and a request writes `pace` tokens per step if all its drafts are verified. Each
    token ends the text with probability `end_rate`: of such a text nobody knows when it is done, and its
    tokens are worth the average too.
    """
    count = len(tokens_left)
    own_share = float(step_seconds[count] - step_seconds[count - 1]) * count / float(step_seconds[count])
    steps = float(np.quantile(tokens_left / pace, 1 - THRESHOLDS.late_share))
    needed = np.clip((tokens_left / steps - 1) / np.maximum(pace - 1, LEAST_PACE), 0, 1)
    ends_by_itself = 1 - np.exp(-end_rate * tokens_left)
    average = ends_by_itself + (1 - ends_by_itself) * needed
    worth: Floats = average + (1 - average) * own_share
    return worth


def priority_worth(priority: int) -> float:
    """Return what a token of a request with vLLM's `priority` is worth: half for every level less urgent."""
    return 2.0 ** -max(min(priority, MAX_PRIORITY), -MAX_PRIORITY)


class Traffic:
    """Counts who comes and who ends, fading: whether a request that ends is followed by another, and how
    likely a token is to be its text's last."""

    def __init__(self) -> None:
        self._places = 0  # of requests that have ended and that no other has followed
        self._followed = 0.0
        self._finished = 0.0
        self._ended = 0.0  # before their limits
        self._tokens = 0.0
        self._prompts = 0.0  # tokens of prompts that were read
        self.newcomers = 0.0
        """In a step, that come while others are running."""
        self.prompt_seconds = 0.0
        """Of a step with prompts."""

    def arrive(self, others_run: bool) -> None:
        """Note a request. The requests of a batch come together, and follow none that has ended."""
        if not others_run:
            self._places = 0
            return
        self.newcomers += 1 / THRESHOLDS.newcomer_memory
        if self._places:
            self._places -= 1
            self._followed += 1

    def record(self, seconds: float, has_prompts: bool) -> None:
        """Note what a step took."""
        self.newcomers *= 1 - 1 / THRESHOLDS.newcomer_memory
        if has_prompts:
            weight = THRESHOLDS.prompt_rate if self.prompt_seconds else 1.0
            self.prompt_seconds += weight * (seconds - self.prompt_seconds)

    def finish(self, tokens: int, at_limit: bool, prompt: int = 0) -> None:
        keep = 1 - 1 / THRESHOLDS.traffic_memory
        self._places += 1
        self._followed *= keep
        self._finished = keep * self._finished + 1
        self._ended = keep * self._ended + (not at_limit)
        self._tokens = keep * self._tokens + tokens
        self._prompts = keep * self._prompts + prompt

    @property
    def refill(self) -> float:
        """Return the share of finished requests that another one follows."""
        return min(self._followed / (self._finished + 1), 1.0)

    @property
    def answer_tokens(self) -> float:
        """Return how long answers are; infinite if none has ended."""
        return max(self._tokens / self._finished, 1.0) if self._finished else math.inf

    @property
    def prompt_tokens(self) -> float:
        """Return how many tokens of a prompt are read for each answer."""
        return self._prompts / self._finished if self._finished else 0.0

    @property
    def end_rate(self) -> float:
        """Return the probability that a token ends its text."""
        return self._ended / self._tokens if self._tokens else 0.0
