"""The guard pauses speculation that is slower than the engine without it, and lets it try again."""

import math

from slipstream.planning.thresholds import THRESHOLDS


class Guard:
    """Averages, over steps with drafts, the time that each took less the time that the engine without drafts
    would have taken for the same tokens, in such steps."""

    def __init__(self) -> None:
        self.pauses = 0
        self._pause = THRESHOLDS.first_pause
        self._left = 0
        self._begin()

    def _begin(self) -> None:
        self._count = 0
        self._weight = self._mean = self._square = 0.0

    def restart(self) -> None:
        """Forget what was judged, which was by other costs."""
        self._pause, self._left = THRESHOLDS.first_pause, 0
        self._begin()

    @property
    def allows(self) -> bool:
        return self._left == 0

    @property
    def loss(self) -> float:
        """Return the loss of each step with drafts, in baseline steps, as far as is known; negative if
        speculation gains."""
        return self._mean

    def rest(self) -> None:
        """Count a step of a pause."""
        self._left = max(self._left - 1, 0)

    def judge(self, seconds: float, bare_seconds: float, tokens_per_request: float) -> None:
        """Record the latency and the output of a step with drafts; without, it takes `bare_seconds`."""
        lost = seconds / bare_seconds - tokens_per_request
        self._count += 1
        self._weight = min(self._weight + 1, THRESHOLDS.guard_memory)
        surprise = lost - self._mean
        self._mean += surprise / self._weight
        self._square += (surprise * (lost - self._mean) - self._square) / self._weight
        lost_again = (
            self.pauses
            and self._count >= THRESHOLDS.min_judged_again
            and self._mean * self._count > THRESHOLDS.loss_again
        )
        if self._count < THRESHOLDS.min_judged_steps and not lost_again:
            return
        error = THRESHOLDS.confidence * math.sqrt(max(self._square, 1e-6) / self._weight)
        if self._mean - error > THRESHOLDS.tolerated_loss:
            self.pauses += 1
            self._left = self._pause
            self._pause = min(2 * self._pause, THRESHOLDS.max_pause)
            self._begin()
        elif self._mean + error < THRESHOLDS.tolerated_loss and self._count >= THRESHOLDS.guard_memory:
            self._pause = THRESHOLDS.first_pause
