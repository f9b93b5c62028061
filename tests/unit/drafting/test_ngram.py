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
