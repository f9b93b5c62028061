"""Prompt lookup: find the last few tokens earlier in the request's own text, propose what followed."""

from collections.abc import Mapping, Sequence

from slipstream.drafting.base import NO_DRAFT, Draft, Proposer
from slipstream.drafting.token_index import LazyTokenIndex

LEAST_SHARE = 0.25
"""Of the last few tokens, what must have been right along a match to resume it."""
RESUMED_RIGHT = 0.5
"""Of those that were right, how many are expected to be right after a wrong one; corrected by what is."""


class NgramProposer(Proposer):
    """The longest match of `min` to `max` tokens, the most recent among equals.

    A text that copies another with a word changed here and there differs from it in one token most often.
    With `resume`, where nothing matches, what follows the place after the last match is proposed, as if that
    one token was all that differed.
    """

    name = "ngram"

    def __init__(self, min: int = 2, max: int = 5, resume: bool = True) -> None:
        self._min, self._max, self._resume = min, max, resume
        self._texts: dict[str, LazyTokenIndex] = {}
        self._distances: dict[str, int] = {}
        """From the last match of a request to the end of its text then."""

    def observe(self, request_id: str, tokens: Sequence[int]) -> None:
        text = self._texts.get(request_id)
        if text is None:
            text = self._texts[request_id] = LazyTokenIndex(self._min)
        text.append(tokens)

    def propose(self, wanted: Mapping[str, int]) -> dict[str, Draft]:
        drafts = {}
        for request_id, max_tokens in wanted.items():
            draft = self._match(request_id, max_tokens)
            if not draft.tokens and request_id in self._distances:
                draft = self._go_on(request_id, max_tokens)
            if draft.tokens:
                drafts[request_id] = draft
        return drafts

    def _match(self, request_id: str, max_tokens: int) -> Draft:
        text = self._texts[request_id]
        if not text.may_repeat:
            return NO_DRAFT
        tokens, length, distance = text.indexed().longest_match(max_tokens, self._max)
        if not length:
            return NO_DRAFT
        if self._resume:
            self._distances[request_id] = distance
        # A longer match is more often right; how often is learnt from what is accepted.
        return _draft(tokens.tolist(), length / (length + 1))

    def _go_on(self, request_id: str, max_tokens: int) -> Draft:
        """Return what follows the place after the last match, as long as some of it has been right."""
        tokens, share = self._texts[request_id].indexed().copy_from(self._distances[request_id], max_tokens)
        if share < LEAST_SHARE:
            del self._distances[request_id]
            return NO_DRAFT
        return _draft(tokens.tolist(), RESUMED_RIGHT * share)

    def propose_after(self, request_id: str, tokens: Sequence[int], max_tokens: int) -> Draft:
        found, survival = self._texts[request_id].indexed().continuation_after(tokens, max_tokens, 1.0)
        return Draft(found.tolist(), survival.tolist())

    def forget(self, request_id: str) -> None:
        self._texts.pop(request_id, None)
        self._distances.pop(request_id, None)


def _draft(tokens: list[int], right: float) -> Draft:
    """Return a draft of which each token is right so often, if those before it are."""
    return Draft(tokens, [right ** (j + 1) for j in range(len(tokens))])
