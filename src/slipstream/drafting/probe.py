"""A proposer that measures: its drafts are always wrong, so that a step's cost is seen without its gain."""

from collections.abc import Mapping, Sequence

import numpy as np

from slipstream.drafting.base import Draft, Proposer


class WrongDraftsInTurn(Proposer):
    """0, 1, ... `most` wrong draft tokens in turn for every request."""

    name = "probe"

    def __init__(self, most: int) -> None:
        self._most, self._turn = most, -1
        self._random = np.random.default_rng(0)

    def observe(self, request_id: str, tokens: Sequence[int]) -> None:
        pass

    def propose(self, wanted: Mapping[str, int]) -> dict[str, Draft]:
        self._turn = (self._turn + 1) % (self._most + 1)
        drafts = {}
        for request_id, most in wanted.items():
            length = most - self._most + self._turn  # with the tokens under way, which are not verified
            if self._turn and length > 0:
                drafts[request_id] = Draft(self._random.integers(256, size=length).tolist(), [0.5] * length)
        return drafts

    def forget(self, request_id: str) -> None:
        pass
