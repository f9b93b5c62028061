"""Lookups: for how many requests the free proposers are asked, although they lately had no draft for them."""

from slipstream.planning.thresholds import THRESHOLDS


class Lookups:
    """What a lookup takes and, for requests that lately had nothing worth verifying, what it brings."""

    def __init__(self) -> None:
        self.seconds = 50e-6
        """For one request."""
        self.tokens = 1.0
        """Expected of the drafts that a lookup leads to."""

    def budget(self, candidates: int, baseline_seconds: float, requests: int) -> int:
        """Return how many of the `candidates` to look up: all, if lookups bring more than they take; else a
        few, to see whether that changes. A step without drafts takes `baseline_seconds` for its requests."""
        saved = self.tokens * baseline_seconds / max(requests, 1)
        if saved > THRESHOLDS.min_lookup_yield * self.seconds:
            return candidates
        return min(candidates, max(1, int(THRESHOLDS.lookup_share * baseline_seconds / self.seconds)))

    def record_seconds(self, requests: int, seconds: float) -> None:
        """Record what telling and asking the free proposers for these requests took, planning included."""
        if requests:
            latest = min(seconds / requests, THRESHOLDS.max_lookup_ratio * self.seconds)
            self.seconds += THRESHOLDS.lookup_time_rate * (latest - self.seconds)

    def record_yield(self, lookups: int, tokens: float) -> None:
        """Record lookups of such requests, and the tokens that their drafts are expected to bring beyond what
        the time for verifying them would."""
        if lookups:
            kept = (1 - 1 / THRESHOLDS.lookup_memory) ** lookups
            self.tokens = kept * self.tokens + (1 - kept) * tokens / lookups
