"""A text with an index of where its parts occurred before: what n-gram lookup and suffix decoding search.

A hash chain, as in LZ77 compression: every position points back to the last one that ended with the same
few tokens. Appending costs a fixed time per token, searching a fixed time per occurrence looked at, and a
text that has reached its limit forgets its oldest tokens by overwriting them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.drafting import token_index_kernels as kernels
from slipstream.drafting.token_index_kernels import END, LONGEST_MATCH, Ints

_SMALLEST = 256


class TokenIndex:
    """At most `limit` tokens, the newest ones, indexed by their last `order` tokens."""

    def __init__(self, order: int, limit: int = 1 << 24) -> None:
        self.order = order
        self.limit = limit
        self.end = 0  # tokens ever appended
        self.oldest = 0  # what stands before is forgotten
        self.tokens: Ints = np.empty(_SMALLEST, np.int32)
        self.back = np.zeros(_SMALLEST, np.uint32)  # distance to the previous place of the chain; 0: none
        self.head = np.full(_SMALLEST, -1, np.int64)  # by hash: the newest place of the chain

    def __len__(self) -> int:
        return self.end - self.oldest

    @property
    def num_slots(self) -> int:
        return len(self.tokens)

    @property
    def num_bytes(self) -> int:
        return self.tokens.nbytes + self.back.nbytes + self.head.nbytes

    def append(self, tokens: Sequence[int] | Ints) -> None:
        new = np.asarray(tokens, np.int32)
        self._make_room(len(new))
        self.end = kernels.append(self.tokens, self.back, self.head, self.end, new, self.order)
        self.oldest = max(self.oldest, self.end - self.limit)

    def slice(self, first: int) -> list[int]:
        """Return the tokens from position `first` on."""
        return self.array(first).tolist()

    def array(self, first: int) -> Ints:
        """Return the tokens from position `first` on, as an array."""
        places = np.arange(max(first, self.oldest), self.end) & (len(self.tokens) - 1)
        return self.tokens[places]

    def forget_before(self, position: int) -> None:
        """Leave nothing of what stands there in memory."""
        first = max(self.oldest, self.end - len(self.tokens))
        self.oldest = max(self.oldest, position)
        self.tokens[np.arange(first, self.oldest) & (len(self.tokens) - 1)] = END

    def _make_room(self, more: int) -> None:
        """Double the slots until the text fits, without hashing its tokens again, which takes a second for
        millions of them in the scheduler's thread: the chain of a slot becomes that of both slots into which
        it splits, and a search skips the places that do not match."""
        needed = min(self.end + more, self.limit)
        while len(self.tokens) < needed:
            self.tokens = np.concatenate([self.tokens, np.empty_like(self.tokens)])
            self.back = np.concatenate([self.back, np.zeros_like(self.back)])
            self.head = np.concatenate([self.head, self.head])

    def longest_match(self, max_tokens: int, longest: int) -> tuple[Ints, int, int]:
        """Return (what followed the longest earlier occurrence of the end of this text, its length, how far
        back it stands)."""
        draft = np.empty(max_tokens, np.int32)
        count, length, distance = kernels.longest_match(
            self.tokens, self.back, self.end, self.oldest, self.order, min(longest, LONGEST_MATCH), draft
        )
        return draft[:count], length, distance

    def copy_from(self, distance: int, max_tokens: int) -> tuple[Ints, float]:
        """Return (what stands so far before the tokens to come, the share of the last few tokens that are
        those so far before them)."""
        draft = np.empty(max_tokens, np.int32)
        count, same = kernels.copy_from(self.tokens, self.end, self.oldest, distance, draft)
        return draft[:count], same / kernels.RECENT

    def continuation_after(
        self, further: Sequence[int], max_tokens: int, per_matched_token: float
    ) -> tuple[Ints, NDArray[np.float64]]:
        """Return what most often followed the end of this text and these `further` tokens, in this text."""
        query = np.empty(LONGEST_MATCH, np.int32)
        end = np.concatenate([self.array(self.end - LONGEST_MATCH), np.asarray(further, np.int32)])
        length = min(len(end), LONGEST_MATCH)
        query[:length] = end[len(end) - length :]
        draft = np.empty(max_tokens, np.int32)
        survival = np.empty(max_tokens, np.float64)
        count = kernels.likely_continuation(
            query, length, 0, False,
            self.tokens, self.back, self.head, self.end, self.oldest, self.order,
            per_matched_token, draft, survival,
        )  # fmt: skip
        return draft[:count], survival[:count]

    def likely_continuation(
        self, source: "TokenIndex", max_tokens: int, per_matched_token: float
    ) -> tuple[Ints, NDArray[np.float64]]:
        """Return (what most often followed the end of this text in `source`, the probability of each
        prefix)."""
        draft = np.empty(max_tokens, np.int32)
        survival = np.empty(max_tokens, np.float64)
        count = kernels.likely_continuation(
            self.tokens, self.end, self.oldest, source is self,
            source.tokens, source.back, source.head, source.end, source.oldest, source.order,
            per_matched_token, draft, survival,
        )  # fmt: skip
        return draft[:count], survival[:count]


class LazyTokenIndex:
    """A request's own text. It is indexed only once its end may have occurred before: mostly it has not, and
    then two tokens tell."""

    def __init__(self, order: int) -> None:
        self._text = TokenIndex(order)
        self._waiting: list[int] = []  # to be indexed
        self._pairs = bytearray(1 << 12)  # by hash: whether such a pair of tokens has stood in the text
        self._tokens = 0
        self._last = 0
        self._repeats = False

    @property
    def may_repeat(self) -> bool:
        """Return whether its last two tokens have stood there before, or others that look like them. One
        token alone, which would do for an order of 1, is not looked for."""
        return self._repeats or self._text.order == 1

    def append(self, tokens: Sequence[int]) -> None:
        self._waiting.extend(tokens)
        self._tokens += len(tokens)
        if self._tokens > len(self._pairs) // 8:
            self._rebuild()
            return
        pairs, mask, last, repeats = self._pairs, len(self._pairs) - 1, self._last, 0
        for token in tokens:
            place = _pair(last, token) & mask
            repeats = pairs[place]
            pairs[place] = 1
            last = token
        self._last, self._repeats = last, bool(repeats)

    def indexed(self) -> TokenIndex:
        if self._waiting:
            self._text.append(self._waiting)
            self._waiting.clear()
        return self._text

    def _rebuild(self) -> None:
        """Make the set of pairs again from all the text, with room for more."""
        tokens = np.concatenate([[0], self.indexed().array(0)])
        slots = 1 << (16 * len(tokens)).bit_length()
        self._pairs = bytearray(slots)
        places = _pair(tokens[:-1], tokens[1:]) & (slots - 1)
        np.frombuffer(self._pairs, np.uint8)[places[:-1]] = 1
        last = int(places[-1])
        self._repeats = bool(self._pairs[last])
        self._pairs[last] = 1
        self._last = int(tokens[-1])


def _pair(first: Any, second: Any) -> Any:
    """Return a number for two tokens, or for each two of two arrays, spread evenly."""
    return first * 0x9E3779B1 + second >> 4
