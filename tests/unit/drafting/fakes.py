"""A proposer that does as it is told and notes what it was asked."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slipstream.drafting import Draft, Proposer, RequestInfo
from slipstream.drafting.composer import Composer, Offer
from slipstream.loop import SpeculationLoop
from slipstream.planning.policy import Policy, VerifyAll

Answer = Callable[[str, int], Any]


class Fake(Proposer):
    """Drafts `answer(request, most)`; every method named in `broken` raises for the request `a`."""

    def __init__(
        self,
        name: str = "fake",
        answer: Answer = lambda request, max_tokens: None,
        free: bool = True,
        expected: Sequence[float] = (),
        broken: Sequence[str] = (),
    ) -> None:
        self.name, self.free = name, free
        self.answer, self.expected, self.broken = answer, expected, broken
        self.asked: list[dict[str, int]] = []
        self.told: list[tuple[str, str]] = []

    def start(self, request: RequestInfo) -> None:
        self._called("start", request.id)

    def observe(self, request_id: str, tokens: Sequence[int]) -> None:
        self._called("observe", request_id)

    def propose(self, wanted: Mapping[str, int]) -> dict[str, Draft]:
        self.asked.append(dict(wanted))
        return {request: self.answer(request, max_tokens) for request, max_tokens in wanted.items()}

    def forget(self, request_id: str) -> None:
        self._called("forget", request_id)

    def expected_survival(self, max_tokens: int) -> Sequence[float]:
        return self.expected[:max_tokens]

    def _called(self, method: str, request_id: str) -> None:
        self.told.append((method, request_id))
        if method in self.broken and request_id == "a":
            raise RuntimeError(method)


def always(tokens: Sequence[Any], survival: Sequence[Any]) -> Answer:
    return lambda request, max_tokens: Draft(tokens[:max_tokens], survival[:max_tokens])


def draft(composer: Composer, wanted: Mapping[str, int], policy: Policy | None = None) -> dict[str, Offer]:
    """Draft as the loop does, for requests whose texts the proposers know."""
    loop = SpeculationLoop(composer, policy or VerifyAll())
    return loop.propose(wanted)[0]
