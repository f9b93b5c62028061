"""A proposer that does as it is told and notes what it was asked."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slipstream.drafting import Draft, Proposer, RequestInfo

Answer = Callable[[str, int], Any]


class Fake(Proposer):
    """Drafts `answer(request, most)`; every method named in `broken` raises for the request `a`."""

    def __init__(
        self,
        name: str = "fake",
        answer: Answer = lambda request, most: None,
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
        return {request: self.answer(request, most) for request, most in wanted.items()}

    def forget(self, request_id: str) -> None:
        self._called("forget", request_id)

    def expected_survival(self, most: int) -> Sequence[float]:
        return self.expected[:most]

    def _called(self, method: str, request_id: str) -> None:
        self.told.append((method, request_id))
        if method in self.broken and request_id == "a":
            raise RuntimeError(method)


def always(tokens: Sequence[Any], survival: Sequence[Any]) -> Answer:
    return lambda request, most: Draft(tokens[:most], survival[:most])
