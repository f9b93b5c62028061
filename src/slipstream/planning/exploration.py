"""Exploration: what is tried out although it does not seem to pay, and why.

Free proposers are scored on what the target writes whether their drafts are verified or not, so nothing has
to be tried out for them. What is:

- a step without drafts, to measure what the baseline takes (`baseline_is_due`);
- a step with more drafts than seem to pay, to measure what verifying takes (`may_probe_verifying`);
- a pass of the drafter more than seems to pay, to measure how good its later tokens are (`may_spend`).

The last two may take a fixed share of the time together; the first costs what drafts would have gained in it.
"""

from slipstream.planning.step_cost import Step, on_scale
from slipstream.planning.thresholds import THRESHOLDS


class Exploration:
    def __init__(self) -> None:
        self._seconds = 0.0
        self._spent = 0.0
        self._baselines: dict[tuple[int, bool], tuple[int, int]] = {}
        """By requests (on the coarse scale of costs: in a batch that drains, none stays for long), and
        whether there are prompts: steps with drafts since the last without, and steps without."""

    @property
    def share(self) -> float:
        """Return the share of the time that probes have taken, about."""
        return self._spent / self._seconds if self._seconds else 0.0

    def may_spend(self, seconds: float) -> bool:
        """Return whether a probe that costs `seconds` is within the share."""
        return self._spent + seconds <= THRESHOLDS.probe_share * self._seconds

    def spend(self, seconds: float) -> None:
        """Record what a probe costs."""
        self._spent += seconds

    def baseline_is_due(self, step: Step, gain: float) -> bool:
        """Return whether there have been enough steps with drafts like this one: at first sooner, and the
        sooner, the less the plan promises to gain. That is what a step without drafts costs, and where little
        is promised, a baseline that is a little wrong makes a loss of it."""
        since, seen = self._baselines.get(_load(step), (0, 0))
        often = max(gain / THRESHOLDS.baseline_share, THRESHOLDS.least_interval)
        return since >= min(THRESHOLDS.baseline_interval, THRESHOLDS.first_baseline * (seen + 1), often)

    def may_probe_verifying(self, times_measured: int, seconds: float) -> bool:
        """Return whether verifying more drafts has hardly been measured, and the probe can be paid for."""
        return times_measured < THRESHOLDS.steps_to_know and self.may_spend(seconds)

    def record(self, step: Step, seconds: float) -> None:
        """Record a step that was measured, drafting included."""
        self._seconds += seconds
        since, seen = self._baselines.get(_load(step), (0, 0))
        self._baselines[_load(step)] = (since + 1, seen) if step.drafts else (0, seen + 1)


def _load(step: Step) -> tuple[int, bool]:
    return on_scale(step.requests), step.prefill > 0
