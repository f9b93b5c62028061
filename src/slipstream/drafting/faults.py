"""What goes wrong in a proposer, and what follows: it is left out, first for the request, then for good."""

import logging
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from slipstream.drafting.base import Draft

STALL_SECONDS = 1.0  # one call of a free proposer
DRAFTER_STALL_SECONDS = 60.0  # it may have long prompts to catch up with
FAULTS_UNTIL_OFF = 20

logger = logging.getLogger("slipstream")


class Faults:
    """Counts by (proposer, kind), and who is left out."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.off: set[str] = set()
        """Proposers that the engine does without."""
        self._muted: dict[str, set[str]] = {}
        self._total: Counter[str] = Counter()

    def allows(self, proposer: str, request_id: str) -> bool:
        return proposer not in self.off and proposer not in self._muted.get(request_id, ())

    def allowed(self, proposer: str, wanted: Mapping[str, int]) -> Mapping[str, int]:
        """Of these requests, those that the proposer may draft for."""
        if not self._muted and not self.off:
            return wanted
        return {request: most for request, most in wanted.items() if self.allows(proposer, request)}

    def record(self, proposer: str, request_ids: Iterable[str], kind: str, detail: str) -> None:
        """One fault: leave the proposer out for these requests. Logged once for each kind, without text."""
        if self.counts[proposer, kind] == 0:
            logger.warning("%s: %s (%s); the request goes on without its drafts", proposer, kind, detail)
        self.counts[proposer, kind] += 1
        self._total[proposer] += 1
        for request_id in request_ids:
            self._muted.setdefault(request_id, set()).add(proposer)
        if self._total[proposer] == FAULTS_UNTIL_OFF:
            self.off.add(proposer)
            logger.error("%s: %d faults; it is off until the engine restarts", proposer, FAULTS_UNTIL_OFF)

    def forget(self, request_id: str) -> None:
        self._muted.pop(request_id, None)


def problem_of(draft: Draft, most: int, vocab_size: int) -> tuple[str, str] | None:
    """(kind, detail) of what is wrong with a draft."""
    tokens, survival = draft.tokens, draft.survival
    if len(tokens) > most or len(tokens) != len(survival):
        return "wrong length", f"{len(tokens)} tokens, {len(survival)} estimates, at most {most} asked for"
    if not set(map(type, tokens)) <= {int} or not all(0 <= token < vocab_size for token in tokens):
        return "no such token", f"{list(tokens)!r} are not all plain ints in 0..{vocab_size - 1}"
    if not is_survival(survival):
        return "no probability", f"survival {list(survival)!r} does not fall from 1 towards 0"
    return None


def is_survival(values: Sequence[float]) -> bool:
    """Probabilities of a prefix to survive: none above the one before. No comparison holds for NaN."""
    return len(values) == 0 or (
        values[-1] >= 0 and values[0] <= 1 and all(map(operator.ge, values, values[1:]))
    )
