"""The searches of a token index, compiled by numba without its parallel mode, whose threads would disturb
torch's."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.compiled import compiled

END = -1  # stands between two texts in one index; no token equals it
MOST_OCCURRENCES = 64  # looked at per search, the most recent first
LONGEST_MATCH = 32
MIN_PATH_PROBABILITY = 0.1
RECENT = 8  # tokens in which two places of a text are compared

Ints = NDArray[np.int32]


@compiled
def hash_of(tokens: Ints, last: int, order: int, slots: int) -> Any:
    value = np.uint64(1469598103934665603)
    mask = len(tokens) - 1
    for place in range(last - order + 1, last + 1):
        value = (value ^ np.uint64(tokens[place & mask])) * np.uint64(1099511628211)
    value ^= value >> np.uint64(31)
    return value & np.uint64(slots - 1)


@compiled
def append(tokens: Ints, back: Any, head: Any, end: int, new: Ints, order: int) -> int:
    mask = len(tokens) - 1
    for token in new:
        tokens[end & mask] = token
        back[end & mask] = 0
        if end >= order - 1:
            slot = hash_of(tokens, end, order, len(head))
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
    """Return how many tokens before and at `their_last` equal the last ones of our text."""
    our_mask, their_mask = len(ours) - 1, len(theirs) - 1
    max_tokens = min(longest, our_end - our_oldest, their_last + 1 - their_oldest)
    for length in range(max_tokens):
        if ours[(our_end - 1 - length) & our_mask] != theirs[(their_last - length) & their_mask]:
            return length
    return max_tokens


@compiled
def longest_match(
    tokens: Ints, back: Any, end: int, oldest: int, order: int, longest: int, draft: Ints
) -> tuple[int, int, int]:
    """Fill the draft; return how many tokens it has, how many matched, and how far back."""
    mask = len(tokens) - 1
    if end == 0 or len(draft) == 0:
        return 0, 0, 0
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
        return 0, 0, 0
    count = _copy(tokens, end, best_place, draft)
    return count, best_length if count else 0, end - 1 - best_place


@compiled
def copy_from(tokens: Ints, end: int, oldest: int, distance: int, draft: Ints) -> tuple[int, int]:
    """Fill the draft with what stands so far before the tokens to come. Return how many tokens it has, and
    how many of the last `RECENT` of the text are those so far before them."""
    mask = len(tokens) - 1
    same = 0
    for place in range(max(end - RECENT, oldest + distance), end):
        same += tokens[place & mask] == tokens[(place - distance) & mask]
    return _copy(tokens, end, end - 1 - distance, draft), same


@compiled
def _copy(tokens: Ints, end: int, place: int, draft: Ints) -> int:
    """Fill the draft with what follows a place of the same text. Return how many tokens it has."""
    for step in range(len(draft)):
        token = _token_after(tokens, end, place, step, draft, True)
        if token == END:
            return step
        draft[step] = token
    return len(draft)


@compiled
def _token_after(tokens: Ints, end: int, place: int, step: int, draft: Ints, same: bool) -> Any:
    """Return what stands `step` tokens after a place. Past the end of our own text the draft itself goes on:
    a text that repeats goes on repeating."""
    source = place + 1 + step
    if source < end:
        return tokens[source & (len(tokens) - 1)]
    return draft[source - end] if same else END


@compiled
def likely_continuation(
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
    place = head[hash_of(ours, our_end - 1, order, len(head))]
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
    """Return (the token that follows at most of the places, at how many); among equals the most recent."""
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
