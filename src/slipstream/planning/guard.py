"""Takes speculation off when it loses against what the bare engine would do, and lets it try again."""

import math

MEMORY_STEPS = 200  # steps with drafts after which old ones have faded
FEWEST_STEPS = 16  # before a judgement
FEWEST_AGAIN = 4  # before it, after a pause, if more than LOST_AGAIN is lost
LOST_AGAIN = 8.0  # bare steps
CONFIDENT = 2.0  # standard errors
TOLERATED = 0.02  # of a bare step's time
FIRST_PAUSE = 64  # steps; doubles with each loss in a row
LONGEST_PAUSE = 4096


class Guard:
    """For each step with drafts: the time it took, less the time that the bare engine would have taken for
    the same tokens, in bare steps."""

    def __init__(self) -> None:
        self.pauses = 0
        self._pause = FIRST_PAUSE
        self._left = 0
        self._begin()

    def _begin(self) -> None:
        self._count = 0
        self._weight = self._mean = self._square = 0.0

    @property
    def allows(self) -> bool:
        return self._left == 0

    @property
    def loss(self) -> float:
        """Of each step with drafts, in bare steps, as far as is known; negative if speculation gains."""
        return self._mean

    def rest(self) -> None:
        """A step of a pause is over."""
        self._left = max(self._left - 1, 0)

    def judge(self, seconds: float, bare_seconds: float, tokens_per_request: float) -> None:
        """A step with drafts took so long and wrote so much; without drafts it takes `bare_seconds`."""
        lost = seconds / bare_seconds - tokens_per_request
        self._count += 1
        self._weight = min(self._weight + 1, MEMORY_STEPS)
        surprise = lost - self._mean
        self._mean += surprise / self._weight
        self._square += (surprise * (lost - self._mean) - self._square) / self._weight
        lost_again = self.pauses and self._count >= FEWEST_AGAIN and self._mean * self._count > LOST_AGAIN
        if self._count < FEWEST_STEPS and not lost_again:
            return
        error = math.sqrt(max(self._square, 1e-6) / self._weight)
        if self._mean - CONFIDENT * error > TOLERATED:
            self.pauses += 1
            self._left = self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._begin()
        elif self._mean + CONFIDENT * error < TOLERATED and self._count >= MEMORY_STEPS:
            self._pause = FIRST_PAUSE
