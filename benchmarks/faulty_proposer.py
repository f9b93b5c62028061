"""A proposer for soak tests: it fails in one call of ten, and stalls in one of a thousand."""

import random
import time
from collections.abc import Mapping, Sequence

from slipstream.drafting.base import Draft, Proposer

FAILS, STALLS = 0.1, 0.001  # of calls
STALL_SECONDS = 0.5


class FaultyProposer(Proposer):
    name = "faulty"

    def __init__(self) -> None:
        self._chance = random.Random(0)
        self._last: dict[str, int] = {}

    def observe(self, request_id: str, tokens: Sequence[int]) -> None:
        self._last[request_id] = tokens[-1]

    def propose(self, wanted: Mapping[str, int]) -> dict[str, Draft]:
        if self._chance.random() < FAILS:
            raise RuntimeError("planted")
        if self._chance.random() < STALLS:
            time.sleep(STALL_SECONDS)
        return {request: Draft([self._last[request]], [0.5]) for request, most in wanted.items() if most}

    def forget(self, request_id: str) -> None:
        self._last.pop(request_id, None)
