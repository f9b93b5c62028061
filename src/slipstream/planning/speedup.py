"""How much faster the engine is than without drafts, estimated while it runs."""

import math

STEPS_REMEMBERED = 1000
BASELINES_REMEMBERED = 200
CONFIDENCE = 1.96


class SpeedupEstimate:
    """Compares what steps took with what the engine would have taken for the same tokens without drafts. How
    sure that is follows from how well the times of steps without drafts are predicted."""

    def __init__(self) -> None:
        self.seconds = self.bare_seconds = 0.0
        """Since the start."""
        self._lately = self._bare_lately = 0.0
        self._baselines = 0
        self._error = self._square = 0.0  # of the logarithm of predicted times

    def record(self, seconds: float, bare_seconds: float) -> None:
        """Record what a step took, and what its tokens would have taken without drafts."""
        self.seconds += seconds
        self.bare_seconds += bare_seconds
        kept = 1 - 1 / STEPS_REMEMBERED
        self._lately = kept * self._lately + seconds
        self._bare_lately = kept * self._bare_lately + bare_seconds

    def record_baseline(self, seconds: float, predicted: float) -> None:
        """Record what a step without drafts took, and what was predicted."""
        self._baselines = min(self._baselines + 1, BASELINES_REMEMBERED)
        error = math.log(seconds / predicted)
        self._error += (error - self._error) / self._baselines
        self._square += (error**2 - self._square) / self._baselines

    def interval(self) -> tuple[float, float, float] | None:
        """Return the speedup lately, and its limits; None before a step without drafts has been measured."""
        if self._baselines < 2 or not self._lately:
            return None
        variance = max(self._square - self._error**2, 0.0) / (self._baselines - 1)
        unsure = math.exp(abs(self._error) + CONFIDENCE * math.sqrt(variance))
        speedup = self._bare_lately / self._lately
        return speedup, speedup / unsure, speedup * unsure
