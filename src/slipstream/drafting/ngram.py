"""Prompt lookup: find the last few tokens earlier in the request's own text, propose what followed."""

from collections.abc import Mapping, Sequence

from slipstream.drafting.base import Draft, Proposer
from slipstream.drafting.token_index import LazyTokenIndex


class NgramProposer(Proposer):
    """The longest match of `min` to `max` tokens, the most recent among equals."""

    name = "ngram"

    def __init__(self, min: int = 2, max: int = 5) -> None:
        self._min, self._max = min, max
        self._texts: dict[str, LazyTokenIndex] = {}

    def observe(self, request_id: str, tokens: Sequence[int]) -> None:
        text = self._texts.get(request_id)
        if text is None:
            text = self._texts[request_id] = LazyTokenIndex(self._min)
        text.append(tokens)

    def propose(self, wanted: Mapping[str, int]) -> dict[str, Draft]:
        drafts = {}
        for request_id, max_tokens in wanted.items():
            text = self._texts[request_id]
            if not text.may_repeat:
                continue
            tokens, length = text.indexed().longest_match(max_tokens, self._max)
            if length:
                # A longer match is more often right; how often is learnt from what is accepted.
                right = length / (length + 1)
                drafts[request_id] = Draft(tokens.tolist(), [right ** (j + 1) for j in range(max_tokens)])
        return drafts

    def propose_after(self, request_id: str, tokens: Sequence[int], max_tokens: int) -> Draft:
        found, survival = self._texts[request_id].indexed().continuation_after(tokens, max_tokens, 1.0)
        return Draft(found.tolist(), survival.tolist())

    def forget(self, request_id: str) -> None:
        self._texts.pop(request_id, None)
