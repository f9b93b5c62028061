"""Whether a drafter that must read every step is worth its passes.

With asynchronous scheduling a drafter reads at the end of each step what the target has written, also where
nothing is drafted. A step in which it does not leaves requests for which it can draft no more
(`engine.core.drafter_reads`), so leaving it out is decided for many steps at a time.
"""

import math

from slipstream.planning.thresholds import THRESHOLDS


class Standing:
    """Sums up what the drafter brings while it runs, in bare steps; older steps fade."""

    def __init__(self) -> None:
        self.rests = 0
        self._lengthened = 1
        self._left = 0
        self._cannot_pay = False
        self._begin()

    def _begin(self) -> None:
        self._steps, self._requests, self._total = 0, 0, 0.0
        self._owed = 0.0
        """Of what reading prompts took, what has not been counted yet."""

    @property
    def runs(self) -> bool:
        return self._left == 0

    def skip(self) -> None:
        """Count a step without the drafter."""
        self._left = max(self._left - 1, 0)

    def wait(self) -> None:
        """Rest without a trial, until costs may have changed: even if all was accepted it would not pay."""
        self._left = THRESHOLDS.first_pause
        self.rests += not self._cannot_pay
        self._cannot_pay = True

    def judge(self, gain: float, requests: int, prompts: float = 0.0, answer: float = math.inf) -> None:
        """Record what a step of so many requests is expected to gain with the drafter, in bare steps;
        negative if it loses. What reading its `prompts` takes is for the `answer` that follows, of so many
        tokens: most of it is counted while that is written."""
        self._cannot_pay = False
        self._steps += 1
        self._requests += requests
        self._owed += prompts
        due = self._owed / max(min(answer / 2, THRESHOLDS.guard_memory), 1.0)
        self._owed -= due
        self._total += gain - due - self._total / THRESHOLDS.guard_memory
        tolerated = THRESHOLDS.tolerated_loss * THRESHOLDS.guard_memory
        if self._requests >= THRESHOLDS.min_read_requests and self._total < -tolerated:
            # As long as makes the loss a tolerated one, and twice as long each time in a row.
            steps = (self._owed - self._total) / THRESHOLDS.tolerated_loss * self._lengthened
            self._left = int(min(steps, THRESHOLDS.max_pause))
            self._lengthened = min(2 * self._lengthened, THRESHOLDS.max_pause)
            self.rests += 1
            self._begin()
        elif self._steps >= THRESHOLDS.guard_memory and self._total > 0:
            self._lengthened = 1
