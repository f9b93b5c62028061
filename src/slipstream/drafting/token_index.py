"""A text with an index of where its parts occurred before: what n-gram lookup and suffix decoding search.

A hash chain, as in LZ77 compression: every position points back to the last one that ended with the same
few tokens. Appending costs a fixed time per token, searching a fixed time per occurrence looked at, and a
text that has reached its limit forgets its oldest tokens by overwriting them.

Compiled by numba without its parallel mode, whose threads would disturb torch's.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.compiled import compiled

END = -1  # stands between two texts in one index; no token equals it
MOST_OCCURRENCES = 64  # looked at per search, the most recent first
LONGEST_MATCH = 32
MIN_PATH_PROBABILITY = 0.1
_SMALLEST = 256

Ints = NDArray[np.int32]


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
        self.end = _append(self.tokens, self.back, self.head, self.end, new, self.order)
        self.oldest = max(self.oldest, self.end - self.limit)

    def slice(self, first: int) -> list[int]:
        """The tokens from position `first` on."""
        return self.array(first).tolist()

    def array(self, first: int) -> Ints:
        """The same as an array."""
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

    def longest_match(self, max_tokens: int, longest: int) -> tuple[Ints, int]:
        """(what followed the longest earlier occurrence of the end of this text, its length)."""
        draft = np.empty(max_tokens, np.int32)
        count, length = _longest_match(
            self.tokens, self.back, self.end, self.oldest, self.order, min(longest, LONGEST_MATCH), draft
        )
        return draft[:count], length

    def likely_continuation(
        self, source: "TokenIndex", max_tokens: int, per_matched_token: float
    ) -> tuple[Ints, NDArray[np.float64]]:
        """(what most often followed the end of this text in `source`, the probability of each prefix)."""
        draft = np.empty(max_tokens, np.int32)
        survival = np.empty(max_tokens, np.float64)
        count = _likely_continuation(
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
        """Its last two tokens have stood there before, or others that look like them. One token alone, which
        would do for an order of 1, is not looked for."""
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
        """With room for more pairs, from all the text."""
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
    """A number for two tokens, or for each two of two arrays, spread evenly."""
    return first * 0x9E3779B1 + second >> 4


@compiled
def _hash(tokens: Ints, last: int, order: int, slots: int) -> Any:
    value = np.uint64(1469598103934665603)
    mask = len(tokens) - 1
    for place in range(last - order + 1, last + 1):
        value = (value ^ np.uint64(tokens[place & mask])) * np.uint64(1099511628211)
    value ^= value >> np.uint64(31)
    return value & np.uint64(slots - 1)


@compiled
def _append(tokens: Ints, back: Any, head: Any, end: int, new: Ints, order: int) -> int:
    mask = len(tokens) - 1
    for token in new:
        tokens[end & mask] = token
        back[end & mask] = 0
        if end >= order - 1:
            slot = _hash(tokens, end, order, len(head))
            distance = end - head[slot]
            if head[slot] >= 0 and distance <= mask:
                back[end & mask] = distance
            head[slot] = end
        end += 1
    return end


@compiled
def _match_length(
    ours: Ints, our_end: int, our_oldest: int, theirs: Ints, their_last: int, their_oldest: int, longest: int
) -> int:
    """How many tokens before and at `their_last` equal the last ones of our text."""
    our_mask, their_mask = len(ours) - 1, len(theirs) - 1
    max_tokens = min(longest, our_end - our_oldest, their_last + 1 - their_oldest)
    for length in range(max_tokens):
        if ours[(our_end - 1 - length) & our_mask] != theirs[(their_last - length) & their_mask]:
            return length
    return max_tokens


@compiled
def _longest_match(
    tokens: Ints, back: Any, end: int, oldest: int, order: int, longest: int, draft: Ints
) -> tuple[int, int]:
    mask = len(tokens) - 1
    if end == 0 or len(draft) == 0:
        return 0, 0
    best_length, best_place = 0, -1
    place = end - 1
    for _ in range(MOST_OCCURRENCES):
        distance = back[place & mask]
        if distance == 0 or place - distance < oldest:
            break
        place -= distance
        length = _match_length(tokens, end, oldest, tokens, place, oldest, longest)
        if length > best_length:
            best_length, best_place = length, place
            if length == longest:
                break
    if best_length < order:
        return 0, 0
    for step in range(len(draft)):
        token = _token_after(tokens, end, best_place, step, draft, True)
        if token == END:
            return step, best_length if step else 0
        draft[step] = token
    return len(draft), best_length


@compiled
def _token_after(tokens: Ints, end: int, place: int, step: int, draft: Ints, same: bool) -> Any:
    """What stands `step` tokens after a place. Past the end of our own text the draft itself goes on: a text
    that repeats goes on repeating."""
    source = place + 1 + step
    if source < end:
        return tokens[source & (len(tokens) - 1)]
    return draft[source - end] if same else END


@compiled
def _likely_continuation(
    ours: Ints, our_end: int, our_oldest: int, same: bool,
    theirs: Ints, back: Any, head: Any, end: int, oldest: int, order: int,
    per_matched_token: float, draft: Ints, survival: Any,
) -> int:  # fmt: skip
    """Suffix decoding: for every match length, follow the most frequent next token among the occurrences
    while the path is likely enough; keep the path with the highest sum of probabilities."""
    if our_end - our_oldest < order or end - oldest < order:
        return 0
    mask = len(theirs) - 1
    places = np.empty(MOST_OCCURRENCES, np.int64)
    lengths = np.empty(MOST_OCCURRENCES, np.int64)
    found = 0
    place = head[_hash(ours, our_end - 1, order, len(head))]
    for _ in range(MOST_OCCURRENCES + 1):
        if place < oldest or found == MOST_OCCURRENCES:
            break
        if not same or place != end - 1:
            length = _match_length(ours, our_end, our_oldest, theirs, place, oldest, LONGEST_MATCH)
            if length >= order:
                at = found  # keep the longest first; among equals the most recent
                while at > 0 and lengths[at - 1] < length:
                    places[at], lengths[at] = places[at - 1], lengths[at - 1]
                    at -= 1
                places[at], lengths[at] = place, length
                found += 1
        distance = back[place & mask]
        if distance == 0:
            break
        place -= distance

    best_score, best_count = 0.0, 0
    path = np.empty(len(draft), np.int32)
    probability = np.empty(len(draft), np.float64)
    following = np.empty(MOST_OCCURRENCES, np.int64)
    for shortest in range(found):
        if shortest + 1 < found and lengths[shortest + 1] == lengths[shortest]:
            continue
        length = lengths[shortest]
        budget = min(len(draft), int(length * per_matched_token))
        alive = shortest + 1
        for index in range(alive):
            following[index] = places[index]
        likely, score, count = 1.0, 0.0, 0
        while count < budget and alive > 0:
            token, votes = _most_frequent(theirs, end, following, alive, count, path, same)
            # One occurrence is weak evidence, a long match strong.
            likely *= votes / (alive + 2.0 / length)
            if token == END or likely < MIN_PATH_PROBABILITY:
                break
            path[count], probability[count] = token, likely
            score += likely
            kept = 0
            for index in range(alive):
                if _token_after(theirs, end, following[index], count, path, same) == token:
                    following[kept] = following[index]
                    kept += 1
            alive = kept
            count += 1
        if score > best_score:
            best_score, best_count = score, count
            draft[:count] = path[:count]
            survival[:count] = probability[:count]
    return best_count


@compiled
def _most_frequent(
    tokens: Ints, end: int, places: Any, alive: int, step: int, draft: Ints, same: bool
) -> tuple[int, int]:
    """(the token that follows at most of the places, at how many); among equals the most recent."""
    best_token, best_votes = END, 0
    for first in range(alive):
        token = _token_after(tokens, end, places[first], step, draft, same)
        votes = 0
        for other in range(alive):
            if _token_after(tokens, end, places[other], step, draft, same) == token:
                votes += 1
        if votes > best_votes:
            best_token, best_votes = token, votes
        if 2 * best_votes >= alive:
            break
    return best_token, best_votes
