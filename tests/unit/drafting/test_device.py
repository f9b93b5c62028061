"""Drafts that only the workers know, weighed with lookup drafts."""

import pytest

from slipstream.drafting.composer import Offer
from slipstream.drafting.device import NOT_DRAFTED, UNKNOWN, Drafted

DRAFTED = Drafted("draft_model", 2, 0.01, {"a": [0.5, 0.25], "b": [0.9, 0.8]})


def test_a_lookup_draft_is_worth_what_follows_the_step_under_way() -> None:
    offers = {"a": Offer("ngram", [1, 2, 3], [0.9, 0.8, 0.7]), "b": Offer("ngram", [1], [0.9])}
    assert NOT_DRAFTED.combine(offers, {"a": 1, "b": 1}) == {"a": [0.8, 0.7]}
    assert list(offers) == ["a"], "of b nothing is left to verify"


def test_where_lookup_is_wrong_the_drafters_tokens_are_verified() -> None:
    offers = {"a": Offer("ngram", [1, 2, 3, 4], [0.9, 0.8, 0.7, 0.6])}
    combined = DRAFTED.combine(offers, {"a": 1, "b": 1})
    assert combined["a"] == pytest.approx([0.8 + 0.1 * 0.5, 0.7 + 0.1 * 0.25, 0.6])
    assert combined["b"] == [0.9, 0.8]
    assert "a" in offers


def test_a_lookup_draft_that_is_worse_than_the_drafters_is_dropped() -> None:
    offers = {"b": Offer("ngram", [1, 2], [0.9, 0.3])}
    assert DRAFTED.combine(offers, {"b": 1})["b"] == [0.9, 0.8]
    assert not offers


def test_without_a_step_under_way_offers_are_what_they_are() -> None:
    offers = {"a": Offer("ngram", [1, 2], [0.9, 0.8])}
    assert NOT_DRAFTED.combine(offers, {}) == {"a": [0.9, 0.8]}


def test_requests_have_limits() -> None:
    assert DRAFTED.cut({"a": 1, "b": 0}).survival == {"a": [0.5]}


def test_the_drafters_tokens_are_not_known() -> None:
    draft = DRAFTED.draft("a", skipped=3, length=2)
    assert list(draft.tokens) == [UNKNOWN] * 5
    assert list(draft.survival) == [1, 1, 1, 0.5, 0.25]


def test_a_drafter_that_is_tried_out_has_tokens_verified() -> None:
    tried = Drafted("draft_model", 1, 0.01, {"a": [0.1], "b": [0.1]}, is_probe=True)
    assert tried.probe({"a": 0}, {}, 4) == {"a": 1, "b": 1}
    assert DRAFTED.probe({"a": 0}, {}, 4) == {"a": 0}


def test_a_lookup_stands_in_for_offers_only() -> None:
    lookup = Drafted("ngram_gpu", 2, 0.0, {"a": [0.3, 0.2], "b": [0.3, 0.2]}, only_beside_offers=True)
    offers = {"a": Offer("suffix", [1, 2, 3], [0.9, 0.8, 0.7])}
    combined = lookup.combine(offers, {"a": 1, "b": 1})
    assert combined == {"a": pytest.approx([0.8 + 0.1 * 0.3, 0.7 + 0.1 * 0.2])}
    short = {"a": Offer("suffix", [1, 2], [0.8, 0.1])}
    assert set(lookup.combine(short, {"a": 1})) == set(short) == {"a"}, "it would never be verified itself"
