"""The index against searches that look everywhere."""

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from slipstream.drafting import token_index_kernels as kernels
from slipstream.drafting.token_index import LazyTokenIndex, TokenIndex
from slipstream.drafting.token_index_kernels import (
    END,
    LONGEST_MATCH,
    MIN_PATH_PROBABILITY,
    MOST_OCCURRENCES,
    append,
    hash_of,
)

Tokens = list[int]


def written(seed: int, size: int) -> Tokens:
    """A text that repeats itself, as texts do: a few phrases and some noise over a small alphabet."""
    rng = random.Random(seed)
    alphabet = rng.randint(1, 6)
    phrases = [[rng.randrange(alphabet) for _ in range(rng.randint(1, 20))] for _ in range(3)]
    tokens: Tokens = []
    while len(tokens) < size:
        tokens += rng.choice(phrases) if rng.random() < 0.7 else [rng.randrange(alphabet)]
    return tokens[:size]


def texts(longest: int = 200) -> st.SearchStrategy[Tokens]:
    return st.builds(written, st.integers(0, 2**32), st.integers(0, longest))


CUTS = st.lists(st.integers(0, 60), max_size=6)
ORDERS = st.integers(1, 4)
MOST = st.integers(1, 40)


def indexed(tokens: Sequence[int], order: int, cuts: Sequence[int] = (), limit: int = 1 << 24) -> TokenIndex:
    """Appended in pieces of these lengths, the last taking the rest."""
    text = TokenIndex(order, limit)
    for size in pieces(len(tokens), cuts):
        text.append(tokens[text.end : text.end + size])
    return text


def pieces(size: int, cuts: Sequence[int]) -> Iterator[int]:
    for cut in cuts:
        yield min(cut, size)
        size -= min(cut, size)
    yield size


def slots_of(size: int, cuts: Sequence[int] = (), limit: int = 1 << 24) -> list[int]:
    """The slots that the text had for each of its tokens when this was appended."""
    found: list[int] = []
    slots = 256
    for cut in [*cuts, size]:
        end = min(len(found) + cut, size)
        while slots < min(end, limit):
            slots *= 2
        found += [slots] * (end - len(found))
    return found


def chain(tokens: Tokens, ending: Tokens, order: int, slots: Sequence[int]) -> Tokens:
    """Where the hash is that of `ending`'s last tokens, as far as the slots of the time told hashes apart,
    the most recent place first."""

    def hashed(of: Tokens, last: int, slots: int) -> int:
        window = np.array(of[last - order + 1 : last + 1] + [0] * (4 - order), np.int32)
        return int(hash_of(window, order - 1, order, slots))

    last = len(ending) - 1
    sought = {number: hashed(ending, last, number) for number in set(slots)}
    return [
        place for place in reversed(range(order - 1, len(tokens)))
        if hashed(tokens, place, slots[place]) == sought[slots[place]]
    ]  # fmt: skip


def common_ending(a: Tokens, b: Tokens, longest: int) -> int:
    pairs = zip(reversed(a), reversed(b), strict=False)
    return min(longest, len(list(takewhile(lambda pair: pair[0] == pair[1], pairs))))


def naive_match(
    tokens: Tokens, order: int, slots: Sequence[int], max_tokens: int, longest: int
) -> tuple[Tokens, int]:
    if len(tokens) < order:
        return [], 0
    places = chain(tokens, tokens, order, slots)[1 : MOST_OCCURRENCES + 1]
    lengths = [common_ending(tokens, tokens[: place + 1], min(longest, LONGEST_MATCH)) for place in places]
    if max(lengths, default=0) < order:
        return [], 0
    place = places[lengths.index(max(lengths))]
    going_on = list(tokens)
    for step in range(max_tokens):
        going_on.append(going_on[place + 1 + step])
    return going_on[len(tokens) :], max(lengths)


def naive_continuation(
    ours: Tokens,
    theirs: Tokens | None,
    order: int,
    slots: Sequence[int],
    max_tokens: int,
    per_matched_token: float,
) -> tuple[Tokens, list[float]]:
    """`theirs` None: in our own text, which goes on into the draft."""
    source = ours if theirs is None else theirs
    if len(ours) < order or len(source) < order:
        return [], []
    places = chain(source, ours, order, slots)[: MOST_OCCURRENCES + 1]
    if theirs is None:
        places = places[1:]
    matches = [(common_ending(ours, source[: place + 1], LONGEST_MATCH), place) for place in places]
    matches = [match for match in matches if match[0] >= order][:MOST_OCCURRENCES]
    matches.sort(key=lambda match: -match[0])

    best: tuple[Tokens, list[float]] = [], []
    best_score = 0.0
    for length in sorted({length for length, _ in matches}, reverse=True):
        alive = [place for matched, place in matches if matched >= length]
        path: Tokens = []
        survival: list[float] = []
        likely, score = 1.0, 0.0
        while len(path) < min(max_tokens, int(length * per_matched_token)):
            after = [(source + path)[place + 1 + len(path)] for place in alive]
            token = max(after, key=after.count)
            likely *= after.count(token) / (len(alive) + 2.0 / length)
            if token == END or likely < MIN_PATH_PROBABILITY:
                break
            alive = [place for place, follows in zip(alive, after, strict=True) if follows == token]
            path.append(token)
            survival.append(likely)
            score += likely
        if score > best_score:
            best, best_score = (path, survival), score
    return best


def match_of(text: TokenIndex, max_tokens: int, longest: int) -> tuple[Tokens, int]:
    draft, length, distance = text.longest_match(max_tokens, longest)
    if length:
        assert text.copy_from(distance, max_tokens)[0].tolist() == draft.tolist()
    return draft.tolist(), length


def continuation_of(
    text: TokenIndex, source: TokenIndex, max_tokens: int, per_matched_token: float = 1.0
) -> tuple[Tokens, list[float]]:
    draft, survival = text.likely_continuation(source, max_tokens, per_matched_token)
    return draft.tolist(), survival.tolist()


@settings(deadline=None, max_examples=300)
@given(texts(), CUTS, ORDERS, MOST, st.integers(1, 40))
def test_the_longest_match_however_the_text_came(
    tokens: Tokens, cuts: list[int], order: int, max_tokens: int, longest: int
) -> None:
    text = indexed(tokens, order, cuts)
    assert text.slice(0) == tokens
    assert match_of(text, max_tokens, longest) == naive_match(
        tokens, order, slots_of(len(tokens)), max_tokens, longest
    )


@settings(deadline=None, max_examples=200)
@given(texts(), CUTS, st.integers(1, 100), MOST)
def test_what_stands_so_far_back(tokens: Tokens, cuts: list[int], distance: int, max_tokens: int) -> None:
    assume(tokens)
    text = indexed(tokens, 2, cuts)
    distance = min(distance, len(tokens))
    draft, share = text.copy_from(distance, max_tokens)
    expected = list(tokens)
    for _ in range(max_tokens):
        expected.append(expected[-distance])
    assert draft.tolist() == expected[len(tokens) :]
    pairs = list(zip(tokens[distance:], tokens, strict=False))
    assert share == sum(a == b for a, b in pairs[-8:]) / 8


@pytest.mark.parametrize(("between", "found"), [(63, 3), (64, 1)])
def test_only_the_64_most_recent_occurrences_are_looked_at(between: int, found: int) -> None:
    tokens = [5, 6, 1, 7] + [9, 1] * between + [5, 6, 1]
    assert match_of(indexed(tokens, 1), 1, 5) == ([7] if found == 3 else [5], found)


@settings(deadline=None, max_examples=300)
@given(texts(), CUTS, ORDERS, MOST, st.sampled_from([0.3, 1.0, 2.5]))
def test_the_likely_continuation_in_its_own_text(
    tokens: Tokens, cuts: list[int], order: int, max_tokens: int, per_matched_token: float
) -> None:
    text = indexed(tokens, order, cuts)
    draft, survival = continuation_of(text, text, max_tokens, per_matched_token)
    assert (draft, survival) == naive_continuation(
        tokens, None, order, slots_of(len(tokens)), max_tokens, per_matched_token
    )
    assert all(1 >= a >= b > 0 for a, b in zip([1.0, *survival], survival, strict=False))


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 90), max_size=4), st.integers(0, 90), ORDERS, MOST)
def test_the_likely_continuation_in_other_texts(
    seed: int, sizes: list[int], size: int, order: int, max_tokens: int
) -> None:
    """And what is drafted followed our last tokens in one of them: no draft crosses an END."""
    everything = written(seed, sum(sizes) + size)
    others, first = [], 0
    for other in sizes:
        others.append(everything[first : first + other])
        first += other
    source = [token for other in others for token in [*other, END]]
    ours = everything[first:]
    draft, survival = continuation_of(indexed(ours, 2), indexed(source, order), max_tokens)
    assert (draft, survival) == naive_continuation(
        ours, source, order, slots_of(len(source)), max_tokens, 1.0
    )
    assert all(1 >= a >= b > 0 for a, b in zip([1.0, *survival], survival, strict=False))
    if draft:
        sought = ours[-order:] + draft
        assert any(other[at : at + len(sought)] == sought for other in others for at in range(len(other)))


@settings(deadline=None, max_examples=150)
@given(texts(1500), CUTS, st.integers(5, 400), ORDERS)
@example(written(3, 1500), [700, 1, 2], 256, 2)
@example(written(4, 1500), [200, 100], 257, 3)
def test_a_limited_text_is_its_newest_tokens(tokens: Tokens, cuts: list[int], limit: int, order: int) -> None:
    text, kept = indexed(tokens, order, cuts, limit), tokens[-limit:]
    slots = slots_of(len(tokens), cuts, limit)[-limit:]
    assert text.slice(0) == kept
    assert len(text) == len(kept)
    assert text.num_bytes == indexed(kept, order).num_bytes <= 16 * max(256, 2 * limit)
    assert match_of(text, 20, 9) == naive_match(kept, order, slots, 20, 9)
    assert continuation_of(text, text, 20) == naive_continuation(kept, None, order, slots, 20, 1.0)
    asking, finished = tokens[: limit // 2], [*tokens, END]
    text, slots = indexed(finished, order, cuts, limit), slots_of(len(finished), cuts, limit)[-limit:]
    found = continuation_of(indexed(asking, 2), text, 20)
    assert found == naive_continuation(asking, finished[-limit:], order, slots, 20, 1.0)


@settings(deadline=None, max_examples=150)
@given(texts(900), st.integers(0, 900), CUTS, st.integers(0, 300), ORDERS)
def test_what_is_forgotten_is_not_found(
    tokens: Tokens, forgotten: int, cuts: list[int], later: int, order: int
) -> None:
    """Nor after the text has gone on, and grown."""
    forgotten = min(forgotten, len(tokens))
    text = indexed(tokens[: len(tokens) - later], order, cuts)
    text.forget_before(min(forgotten, text.end))
    text.append(tokens[text.end :])
    text.forget_before(forgotten)
    kept = tokens[forgotten:]
    slots = slots_of(len(tokens), [*pieces(len(tokens) - later, cuts)])[forgotten:]
    assert text.slice(0) == kept
    assert match_of(text, 20, 9) == naive_match(kept, order, slots, 20, 9)
    assert continuation_of(text, text, 20) == naive_continuation(kept, None, order, slots, 20, 1.0)


@settings(deadline=None, max_examples=40)
@given(texts(3000), st.lists(st.integers(1, 700), max_size=8), ORDERS)
def test_growing_keeps_everything(tokens: Tokens, cuts: list[int], order: int) -> None:
    text, slots = indexed(tokens, order, cuts), slots_of(len(tokens), cuts)
    assert text.slice(0) == tokens
    assert match_of(text, 20, 9) == naive_match(tokens, order, slots, 20, 9)
    assert continuation_of(text, text, 20) == naive_continuation(tokens, None, order, slots, 20, 1.0)


def test_growing_hashes_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take a second for millions of tokens, in the scheduler's thread."""
    hashed = []

    def counted(tokens: Any, back: Any, head: Any, end: int, new: Any, order: int) -> int:
        hashed.append(len(new))
        return int(append(tokens, back, head, end, new, order))

    monkeypatch.setattr(kernels, "append", counted)
    indexed(written(5, 5000), 3, [200] * 24)
    assert sum(hashed) == 5000


def test_a_match_is_not_drafted_across_an_end() -> None:
    text = indexed([1, 2, END, 4, 4, 1, 2], 2)
    assert match_of(text, 3, 5) == ([], 0)
    text = indexed([1, 2, 3, END, 4, 4, 1, 2], 2)
    assert continuation_of(text, text, 3)[0] == [3]
    assert END not in match_of(text, 3, 5)[0]


def test_nothing_follows_the_end_of_another_text() -> None:
    """Even if no END stands there."""
    assert continuation_of(indexed([1, 2, 3], 2), indexed([1, 2, 3], 3), 3) == ([], [])
    assert continuation_of(indexed([1, 2], 2), indexed([1, 2, 3], 2), 3)[0] == [3]


@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=30), min_size=1, max_size=60))
def test_growing_text_knows_when_its_end_has_stood_there(parts: list[list[int]]) -> None:
    """Never no when it has, however it grew; sometimes yes when it has not."""
    growing = LazyTokenIndex(2)
    text: list[int] = []
    for part in parts:
        growing.append(part)
        text += part
        pairs = list(pairwise(text))
        if pairs and pairs[-1] in pairs[:-1]:
            assert growing.may_repeat
    assert growing.indexed().slice(0) == text


def test_growing_text_is_seldom_wrong() -> None:
    random = np.random.default_rng(0)
    for length in (100, 600, 5000):
        growing = LazyTokenIndex(2)
        growing.append(list(range(length)))  # no pair twice
        wrong = 0
        for token in random.permutation(40_000)[:400].tolist():
            growing.append([50_000 + token])
            wrong += growing.may_repeat
        assert wrong < 80


def test_growing_text_of_order_one_is_always_looked_at() -> None:
    growing = LazyTokenIndex(1)
    growing.append([1, 2, 3])
    assert growing.may_repeat
