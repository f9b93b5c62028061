from slipstream.drafting import RequestInfo
from slipstream.drafting.ngram import NgramProposer


def drafted(proposer: NgramProposer, text: list[int], max_tokens: int = 3) -> list[int]:
    proposer.start(RequestInfo("a", len(text)))
    proposer.observe("a", text)
    draft = proposer.propose({"a": max_tokens}).get("a")
    proposer.forget("a")
    return list(draft.tokens) if draft else []


def test_what_followed_the_last_tokens() -> None:
    assert drafted(NgramProposer(), [1, 2, 3, 4, 5, 9, 1, 2]) == [3, 4, 5]
    assert drafted(NgramProposer(), [1, 2, 3, 4, 5, 9, 1, 2], max_tokens=1) == [3]
    assert drafted(NgramProposer(), [1, 2, 3, 4]) == []


def test_the_most_recent_of_equal_matches() -> None:
    assert drafted(NgramProposer(), [1, 2, 3, 1, 2, 4, 1, 2], max_tokens=1) == [4]


def test_a_longer_match_before_a_more_recent_one() -> None:
    text = [7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2]
    assert drafted(NgramProposer(2, 5), text, max_tokens=1) == [3]
    assert drafted(NgramProposer(2, 2), text, max_tokens=1) == [4]


def test_a_shorter_match_than_min_is_none() -> None:
    text = [1, 2, 3, 9, 1, 2]
    assert drafted(NgramProposer(3, 5), text) == []
    assert drafted(NgramProposer(1, 5), [1, 3, 1], max_tokens=1) == [3]


def test_a_repetition_goes_on() -> None:
    assert drafted(NgramProposer(), [1, 2, 3, 1, 2, 3], max_tokens=7) == [1, 2, 3, 1, 2, 3, 1]


def test_a_longer_match_is_trusted_more() -> None:
    proposer = NgramProposer()
    proposer.observe("short", [1, 2, 3, 9, 1, 2])
    proposer.observe("long", [1, 2, 3, 4, 9, 1, 2, 3])
    drafts = proposer.propose({"short": 2, "long": 2})
    assert list(drafts["short"].survival) == [2 / 3, (2 / 3) ** 2]
    assert list(drafts["long"].survival) == [3 / 4, (3 / 4) ** 2]


def test_requests_do_not_see_each_other() -> None:
    proposer = NgramProposer()
    proposer.observe("a", [1, 2, 3, 4])
    proposer.observe("b", [1, 2])
    assert proposer.propose({"a": 3, "b": 3}) == {}
    proposer.forget("a")
    proposer.forget("never there")
    proposer.observe("a", [1, 2])
    assert proposer.propose({"a": 3}) == {}


COPIED = [11, 12, 13, 14, 15, 16, 17, 18, 19]


def test_it_goes_on_behind_a_token_that_differs() -> None:
    proposer = NgramProposer()
    proposer.observe("a", [*COPIED, 9, 11, 12, 13])
    assert proposer.propose({"a": 2})["a"].tokens == [14, 15]
    proposer.observe("a", [8])
    draft = proposer.propose({"a": 3})["a"]
    assert draft.tokens == [15, 16, 17]
    assert draft.survival[0] < 1 / 2, "it is trusted less than a match"
    proposer.observe("a", [15, 16, 7])
    assert proposer.propose({"a": 3})["a"].tokens == [18, 19, 9], "again, with a match in between or without"


def test_the_more_was_right_the_more_it_is_trusted() -> None:
    proposer = NgramProposer()
    for request, right in (("a", 2), ("b", 5)):
        proposer.observe(request, [*COPIED, 9, *COPIED[:right]])
        proposer.propose({request: 1})
        proposer.observe(request, [8])
    drafts = proposer.propose({"a": 2, "b": 2})
    assert drafts["a"].survival[0] < drafts["b"].survival[0]


def test_it_goes_on_only_as_long_as_some_of_it_is_right() -> None:
    proposer = NgramProposer()
    proposer.observe("a", [*COPIED, 9, 11, 12, 13])
    proposer.propose({"a": 1})
    for token in (30, 31, 32, 33, 34, 35):
        proposer.observe("a", [token])
        found = proposer.propose({"a": 1})
    assert found
    proposer.observe("a", [36])
    assert not proposer.propose({"a": 1}), "of the last eight only one was"


def test_it_does_not_go_on_if_it_is_told_so() -> None:
    proposer = NgramProposer(resume=False)
    proposer.observe("a", [*COPIED, 9, 11, 12, 13])
    proposer.propose({"a": 1})
    proposer.observe("a", [8])
    assert not proposer.propose({"a": 1})


def test_nothing_is_kept_of_a_request_that_has_ended() -> None:
    proposer = NgramProposer()
    proposer.observe("a", [*COPIED, 9, 11, 12, 13])
    proposer.propose({"a": 1})
    proposer.forget("a")
    proposer.observe("a", [*COPIED, 8])
    assert not proposer.propose({"a": 1})
