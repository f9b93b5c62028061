"""Running requests, as an engine describes them to the speculation loop."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from slipstream.drafting.grammar import Grammar

AUTO = -1
OFF = 0


class RunningRequest(ABC):
    """A running request, as an engine describes it."""

    __slots__ = (
        "empty_lookups",
        "grammar",
        "id",
        "num_observed",
        "observed_prompt",
        "pace",
        "priority",
        "requested",
        "tenant",
    )

    def __init__(self, request_id: str, requested: int = AUTO, tenant: str | None = None) -> None:
        self.id = request_id
        self.requested = requested
        """Draft tokens per step that it asks for; or AUTO, or OFF."""
        self.tenant = tenant
        self.grammar: Grammar | None = None
        """Of its structured output, if drafts are made by it."""
        self.priority = 0
        """vLLM's: the lower, the more urgent."""
        self.num_observed = 0  # tokens that the proposers have been told
        self.observed_prompt = -1  # tokens of its prompt when they were told first
        self.pace = 0.0
        """Tokens per step that it would write if all that is offered were verified; 0: not known yet."""
        self.empty_lookups = 0  # in a row, without a draft worth verifying

    @property
    @abstractmethod
    def tokens(self) -> Sequence[int]:
        """Return its text so far, the prompt included."""

    @property
    @abstractmethod
    def num_prompt_tokens(self) -> int: ...

    @property
    @abstractmethod
    def tokens_left(self) -> int:
        """Return how many tokens it may still write."""

    @property
    def tokens_under_way(self) -> int:
        """Return how many tokens a step under way writes if all its drafts are accepted; 0: there is none."""
        return 0

    @property
    @abstractmethod
    def max_draft_tokens(self) -> int:
        """Return how many draft tokens the next step could verify."""
