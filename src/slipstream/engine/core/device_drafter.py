"""What to expect of a drafter that the workers run at the end of every step, and whose tokens stay there."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.drafting.calibration import Calibration, Record
from slipstream.drafting.tally import Tally
from slipstream.engine.core.step_stats import prior_survival
from slipstream.methods import method_of

LOOKUP_SURVIVAL = 0.3  # of the first token of a lookup, before anything has been seen
MEMORY = 100  # tokens at a position, about, that a count reaches back; a few steps decide whether it runs
AFTER_A_REST = 20  # tokens at a position: what was counted before a long rest weighs no more than so many
TRY_EVERY = 100  # steps, after which one token of a drafter is verified to see whether it is right now


class DeviceDrafter:
    """Learns from how many of its tokens were accepted, for each request and for all."""

    def __init__(self, name: str, max_tokens: int, is_lookup: bool = False, runs_all: bool = False) -> None:
        """Take whether it is vLLM's lookup, which costs next to nothing: it runs at every step, and stands in
        for offers that turn out to be wrong. With `runs_all` vLLM runs all its passes whatever is planned."""
        self.name, self.is_lookup, self._runs_all = name, is_lookup, runs_all
        self.tally = Tally()
        self.calibration = Calibration(MEMORY)
        self._prior = prior_survival(max_tokens, LOOKUP_SURVIVAL) if is_lookup else prior_survival(max_tokens)
        self._records: dict[str, Record] = {}

    @property
    def drafts_all(self) -> bool:
        """Return whether it always drafts all its tokens, so that a plan of fewer saves no time."""
        return self.is_lookup or self._runs_all or method_of(self.name).one_pass

    def expected_survival(
        self, request_ids: Sequence[str], tokens: int | None = None
    ) -> dict[str, list[float]]:
        """Return the survival of so many of its tokens (default: all that it can draft), by request."""
        prior = self._prior[:tokens]
        if not request_ids or not prior:
            return {}
        factors = np.array([self._records.setdefault(r, Record()).factor for r in request_ids])
        rows = np.tile(prior, (len(request_ids), 1))
        _, expected = self.calibration.survival_of_all(self.name, rows, factors)
        return dict(zip(request_ids, expected.tolist(), strict=True))

    def learn(self, request_id: str, verified: int, accepted: int) -> None:
        """Learn that so many of its tokens were verified and so many of them accepted."""
        self.tally.verify(self.name, verified)
        self.tally.accept(self.name, accepted)
        stated = self._prior[:verified]
        believed = self.calibration.survival(self.name, stated)
        judged = min(verified, accepted + 1)
        self._records.setdefault(request_id, Record()).learn(believed, accepted, judged)
        self.calibration.learn(self.name, stated, accepted, judged)

    def return_from_rest(self) -> None:
        """Doubt what is known of it, after a time in which it did not draft."""
        self.calibration.doubt(AFTER_A_REST)

    def report(self) -> dict[str, Any]:
        """Return its counts since the engine's start, and how often its tokens are accepted, by its name."""
        return {**self.tally.report(), "acceptance": self.calibration.report()}

    def forget(self, request_id: str) -> None:
        self._records.pop(request_id, None)
