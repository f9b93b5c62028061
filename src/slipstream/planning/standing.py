"""Whether a drafter that must read every step is worth its passes.

With asynchronous scheduling a drafter reads at the end of each step what the target has written, also where
nothing is drafted. A step in which it does not leaves requests for which it can draft no more
(`engine.core.drafter_reads`), so leaving it out is decided for many steps at a time.
"""

from slipstream.planning.thresholds import THRESHOLDS


class Standing:
    """Sums up what the drafter brings while it runs, in bare steps. Older steps fade, and the sum is bounded
    above, so that a loss which begins after long gains is noticed soon."""

    def __init__(self) -> None:
        self.rests = 0
        self._lengthened = 1
        self._left = 0
        self._waited = 0
        """Steps without a trial."""
        self._without = 0
        """Steps without it, so far."""
        self._since = 0
        """Requests, over the steps with it, since the last one without."""
        self._begin()

    def _begin(self) -> None:
        self._steps, self._requests, self._total = 0, 0, 0.0

    @property
    def runs(self) -> bool:
        return self._left == 0

    @property
    def has_waited(self) -> bool:
        """Return whether it has rested so long without a trial that it should have one."""
        return self._waited >= THRESHOLDS.max_pause

    @property
    def knows_bare(self) -> bool:
        """Return whether enough steps without the drafter were seen to tell what it takes beside them."""
        return self._without >= THRESHOLDS.bare_steps

    @property
    def knew_lately(self) -> bool:
        """Return whether that was seen so lately that what steps take longer now is the drafter's; later the
        machine may be slower, or the texts longer."""
        return self.knows_bare and self._since <= 4 * THRESHOLDS.requests_unmeasured

    def skip(self) -> None:
        """Count a step without the drafter."""
        self._left = max(self._left - 1, 0)
        self._without += 1
        self._since = 0
        if self._without == THRESHOLDS.bare_steps:  # what was judged before was judged by a guess
            self._begin()

    def measure(self, loses_it: bool) -> None:
        """Rest for a few steps if it is time to see what steps take without the drafter: seldom, once that is
        known. Before that, it is done sooner where no request has been read so far and loses it."""
        due = THRESHOLDS.requests_unmeasured
        if self.knows_bare:
            due *= 128
        elif not loses_it:
            due //= 8
        if self._since >= due:
            self._left = THRESHOLDS.bare_steps

    def wait(self) -> None:
        """Rest without a trial, until costs may have changed: by what is known it would not pay."""
        self._left = THRESHOLDS.first_pause
        self.rests += not self._waited
        self._waited += self._left

    def judge(self, gain: float, requests: int) -> None:
        """Record what a step of so many requests is expected to gain with the drafter, in bare steps;
        negative if it loses."""
        self._waited = 0
        self._since += requests
        self._steps += 1
        self._requests += requests
        self._total += gain - self._total / THRESHOLDS.guard_memory
        self._total = min(self._total, THRESHOLDS.max_drafter_credit)
        tolerated = THRESHOLDS.tolerated_loss * THRESHOLDS.guard_memory
        if self._requests >= THRESHOLDS.min_read_requests and self._total < -tolerated:
            # As long as makes the loss a tolerated one, and twice as long each time in a row.
            steps = -self._total / THRESHOLDS.tolerated_loss * self._lengthened
            self._left = int(min(steps, THRESHOLDS.max_pause))
            self._lengthened = min(2 * self._lengthened, THRESHOLDS.max_pause)
            self.rests += 1
            self._begin()
            return
        if self._steps >= THRESHOLDS.guard_memory and self._total > 0:
            self._lengthened = 1
        self.measure(loses_it=True)
