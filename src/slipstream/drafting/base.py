"""What a proposer is: anything that yields draft tokens.

Free proposers (an n-gram index, a suffix cache) run in the scheduler's process, where the text of every
request is known and where alone anything is decided. A drafter runs in the workers; its proposer there is
a stand-in that asks them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.drafting.grammar import Grammar


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft tokens, and for each the probability that it and all before it are accepted."""

    tokens: Sequence[int]
    survival: Sequence[float]


NO_DRAFT = Draft((), ())


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """What a proposer may know of a request besides its text."""

    id: str
    num_prompt_tokens: int
    tenant: str | None = None
    """Requests of the same tenant may draft from each other's text; None: from nobody else's."""
    grammar: "Grammar | None" = None
    """Of its structured output."""


class Proposer(ABC):
    """Subclass it, name it in the entry-point group `slipstream.proposers`, and run your class through
    `slipstream.testing.proposers.check_proposer`.

    A fault in any method costs the request its drafts from this proposer, never the request.
    """

    name: str
    free: bool = True
    """No model pass: asked at every step for every request."""

    def start(self, request: RequestInfo) -> None:  # noqa: B027 - optional
        """Note a request that begins; its prompt comes through `observe`."""

    @abstractmethod
    def observe(self, request_id: str, tokens: Sequence[int]) -> None:
        """Take tokens that now stand at the end of the request's text: its prompt first, then what the target
        has written."""

    @abstractmethod
    def propose(self, wanted: Mapping[str, int]) -> Mapping[str, Draft]:
        """Return drafts for these requests, of at most so many tokens each; requests may be left out."""

    @abstractmethod
    def forget(self, request_id: str) -> None:
        """Drop what is kept of a request that has ended."""

    def propose_after(self, request_id: str, tokens: Sequence[int], max_tokens: int) -> Draft:
        """Return a draft for the request as if these tokens stood at the end of its text already."""
        return NO_DRAFT

    def shared_text(self) -> Mapping[str, int] | None:
        """Return how many `tokens` of finished requests it keeps for others to draft from, how often it
        `searched` them and how often it `found` its draft there; None if it keeps none."""
        return None

    def expected_survival(self, max_tokens: int) -> Sequence[float]:
        """Return what a proposer that is not free thinks its next draft is worth, before it is asked.
        The estimate is corrected by what is seen to be accepted."""
        raise NotImplementedError


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many first tokens are the same."""
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
