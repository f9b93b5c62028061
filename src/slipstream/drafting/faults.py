"""What goes wrong in a proposer, and what follows: it is left out, first for the request, then for all
requests, for a while. Faults are forgotten as sound calls follow."""

import logging
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from slipstream.drafting.base import Draft

STALL_SECONDS = 1.0  # one call of a free proposer
DRAFTER_STALL_SECONDS = 60.0  # it may have long prompts to catch up with
FAULTS_UNTIL_OFF = 20
SOUND_CALLS_TO_FORGET = 100  # a fault
FIRST_REST = 1000  # steps without a proposer that had too many faults; twice as many each time
LONGEST_REST = 64_000

logger = logging.getLogger("slipstream")


class Faults:
    """Counts by (proposer, kind), and who is left out."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._resting: dict[str, int] = {}  # steps left, by proposer
        self._rests: dict[str, int] = {}  # how long the next rest will be
        self._muted: dict[str, set[str]] = {}
        self._recent: Counter[str] = Counter()
        self._sound: Counter[str] = Counter()  # calls since a fault was forgotten
        self._stalled: set[str] = set()  # whose last call stalled

    @property
    def off(self) -> set[str]:
        """Return the proposers that the engine does without at present."""
        return set(self._resting)

    def allows(self, proposer: str, request_id: str) -> bool:
        return proposer not in self._resting and proposer not in self._muted.get(request_id, ())

    def allowed(self, proposer: str, wanted: Mapping[str, int]) -> Mapping[str, int]:
        """Return those of the requests that the proposer may draft for."""
        if not self._muted and not self._resting:
            return wanted
        return {
            request: max_tokens for request, max_tokens in wanted.items() if self.allows(proposer, request)
        }

    def begin_step(self, running: Iterable[str]) -> None:
        """Let proposers come back whose rest is over. They stay left out for the `running` requests, of whose
        text they have missed a part."""
        for proposer in list(self._resting):
            self._resting[proposer] -= 1
            if not self._resting[proposer]:
                del self._resting[proposer]
                for request_id in running:
                    self._mute(proposer, request_id)

    def record(self, proposer: str, request_ids: Iterable[str], kind: str, detail: str) -> None:
        """Record a fault and leave the proposer out for these requests. Logged once for each kind, without
        text."""
        if self.counts[proposer, kind] == 0:
            logger.warning("%s: %s (%s); the request goes on without its drafts", proposer, kind, detail)
        self.counts[proposer, kind] += 1
        self._recent[proposer] += 1
        for request_id in request_ids:
            self._mute(proposer, request_id)
        if self._recent[proposer] >= FAULTS_UNTIL_OFF and proposer not in self._resting:
            steps = self._resting[proposer] = self._rests.get(proposer, FIRST_REST)
            self._rests[proposer] = min(2 * steps, LONGEST_REST)
            self._recent[proposer] = 0
            logger.error("%s: %d faults; it is off for %d steps", proposer, FAULTS_UNTIL_OFF, steps)

    def record_call(self, proposer: str, request_ids: Iterable[str], seconds: float, limit: float) -> None:
        """Record a call that came back. One stall may be the machine's doing; after the second in a row the
        proposer is left out for the requests of that call."""
        if seconds > limit:
            again = proposer in self._stalled
            self._stalled.add(proposer)
            self.record(proposer, request_ids if again else (), "stall", f"{seconds:.1f} s in one call")
            return
        self._stalled.discard(proposer)
        if self._recent[proposer]:
            self._sound[proposer] += 1
            if self._sound[proposer] >= SOUND_CALLS_TO_FORGET:
                self._sound[proposer] = 0
                self._recent[proposer] -= 1
                if not self._recent[proposer]:
                    self._rests.pop(proposer, None)

    def forget(self, request_id: str) -> None:
        self._muted.pop(request_id, None)

    def _mute(self, proposer: str, request_id: str) -> None:
        self._muted.setdefault(request_id, set()).add(proposer)


def problem_of(draft: Draft, max_tokens: int, vocab_size: int) -> tuple[str, str] | None:
    """Return (kind, detail) of what is wrong with a draft, or None."""
    tokens, survival = draft.tokens, draft.survival
    if len(tokens) > max_tokens or len(tokens) != len(survival):
        return (
            "wrong length",
            f"{len(tokens)} tokens, {len(survival)} estimates, at most {max_tokens} asked for",
        )
    if not set(map(type, tokens)) <= {int} or not all(0 <= token < vocab_size for token in tokens):
        return "no such token", f"{len(tokens)} tokens are not all plain ints in 0..{vocab_size - 1}"
    if not is_survival(survival):
        return "no probability", f"survival {list(survival)!r} does not fall from 1 towards 0"
    return None


def is_survival(values: Sequence[float]) -> bool:
    """Return whether these are probabilities of a prefix to survive: none above the one before. No comparison
    holds for NaN."""
    return len(values) == 0 or (
        values[-1] >= 0 and values[0] <= 1 and all(map(operator.ge, values, values[1:]))
    )
