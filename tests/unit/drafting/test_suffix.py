"""What is drafted from, and what must never be."""

import random

import pytest

from slipstream.drafting import RequestInfo
from slipstream.drafting.suffix import SharedTexts, SuffixProposer

STORY = [11, 12, 13, 14, 15, 16, 17, 18]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def proposer(max_tokens: int = 10_000, max_age: float = 60.0, share_prompts: bool = False) -> SuffixProposer:
    return SuffixProposer(SharedTexts(max_tokens, max_age), share_prompts)


def finish(suffix: SuffixProposer, tenant: str | None, prompt: list[int], answer: list[int]) -> None:
    suffix.start(RequestInfo("finished", len(prompt), tenant))
    suffix.observe("finished", prompt)
    suffix.observe("finished", answer)
    suffix.forget("finished")


def drafted(suffix: SuffixProposer, tenant: str | None, text: list[int], max_tokens: int = 8) -> list[int]:
    """Asked in the middle of a request that is then left running, so that it shares nothing."""
    suffix.start(RequestInfo("asking", len(text), tenant))
    suffix.observe("asking", text)
    draft = suffix.propose({"asking": max_tokens}).get("asking")
    return list(draft.tokens) if draft else []


@pytest.mark.parametrize("suffix", [SuffixProposer(), proposer()])
def test_the_request_s_own_text_is_enough(suffix: SuffixProposer) -> None:
    assert drafted(suffix, "t", [1, 2, 3, 4, 5, 9, 1, 2, 3]) == [4, 5, 9]
    assert drafted(suffix, "t", [1, 2, 3, 4, 5, 9, 1, 2, 3], max_tokens=1) == [4]


def test_what_follows_most_often() -> None:
    often = [1, 2, 3, 7, 1, 2, 4, 7, 1, 2, 4, 7, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2]
    assert drafted(SuffixProposer(), None, often, max_tokens=1) == [4]


def test_a_longer_match_is_drafted_further() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(drafted(SuffixProposer(), None, text + text[:2])) == 2
    assert len(drafted(SuffixProposer(), None, text + text[:4])) == 4
    assert len(drafted(SuffixProposer(per_matched_token=0.5), None, text + text[:4])) == 2


def test_finished_answers_of_the_same_tenant() -> None:
    suffix = proposer()
    assert drafted(suffix, "t", [1, *STORY[:4]]) == []
    finish(suffix, "t", [5, 6], STORY)
    assert drafted(suffix, "t", [1, *STORY[:4]]) == STORY[4:]


def test_the_likelier_of_own_and_others() -> None:
    suffix = proposer()
    finish(suffix, "t", [], STORY)
    own = [*STORY[2:5], 70, 71, 72, 9, *STORY[:5]]
    assert drafted(suffix, "t", own, max_tokens=3) == STORY[5:8], "five tokens match theirs, three ours"
    own = [*STORY[:5], 70, 71, 72, 9, 8, *STORY[:5]]
    assert drafted(suffix, "t", own, max_tokens=3) == [70, 71, 72], "equally likely: our own"


def test_prompts_are_shared_only_if_told() -> None:
    for share in (False, True):
        suffix = proposer(share_prompts=share)
        finish(suffix, "t", STORY, [1, 2, 3])
        assert drafted(suffix, "t", STORY[:4]) == (STORY[4:] if share else [])


def test_nothing_is_drafted_across_two_answers() -> None:
    suffix = proposer()
    finish(suffix, "t", [], STORY)
    finish(suffix, "t", [], [1, 2, 3])
    assert drafted(suffix, "t", STORY) == []
    assert drafted(suffix, "t", STORY[:7]) == STORY[7:]


def random_text(rng: random.Random, base: int = 0) -> list[int]:
    return [base + rng.randrange(4) for _ in range(rng.randint(0, 80))]


@pytest.mark.parametrize("seed", range(20))
def test_a_tenant_s_texts_do_not_exist_for_others(seed: int) -> None:
    """B drafts the same, and its index is the same, whether A and those without a tenant wrote or not."""
    rng = random.Random(seed)
    alone, together = proposer(), proposer()
    assert alone._shared is not None
    assert together._shared is not None
    for _ in range(15):
        ours = random_text(rng)
        finish(together, "a", random_text(rng), random_text(rng))
        finish(together, None, random_text(rng), random_text(rng))
        finish(together, "a", [], [*ours, *range(100, 120)])
        for tenant in ("b", None):
            for length in range(3, len(ours), 7):
                expected = drafted(alone, tenant, ours[:length])
                assert drafted(together, tenant, ours[:length]) == expected
                assert all(token < 100 for token in expected)
        if len(ours) >= 3:
            assert drafted(together, "a", ours)
        finish(alone, "b", ours[:5], ours[5:])
        finish(together, "b", ours[:5], ours[5:])
        mine, same = alone._shared.find("b"), together._shared.find("b")
        assert (mine is None) == (same is None)
        if mine and same:
            assert (len(mine), mine.num_bytes, mine.slice(0)) == (len(same), same.num_bytes, same.slice(0))
            assert (mine.head == same.head).all()


def test_without_a_tenant_nothing_is_shared() -> None:
    suffix = proposer(share_prompts=True)
    finish(suffix, None, STORY, STORY)
    assert suffix._shared is not None
    assert suffix._shared.num_tokens == suffix._shared.num_bytes == 0
    assert drafted(suffix, None, STORY[:4]) == []
    finish(suffix, "t", [], STORY)
    assert drafted(suffix, None, STORY[:4]) == []


def test_old_texts_are_forgotten() -> None:
    clock = Clock()
    suffix = SuffixProposer(SharedTexts(10_000, 60.0, clock))
    finish(suffix, "t", [], STORY)
    clock.now += 40
    finish(suffix, "t", [], [1, 2, 3, 4, 5, 6])
    assert drafted(suffix, "t", STORY[:4]) == STORY[4:]
    clock.now += 30
    assert drafted(suffix, "t", STORY[:4]) == []
    assert drafted(suffix, "t", [1, 2, 3]) == [4, 5, 6]
    clock.now += 40
    assert drafted(suffix, "t", [1, 2, 3]) == []
    finish(suffix, "t", [], STORY)
    assert drafted(suffix, "t", STORY[:4]) == STORY[4:]


def test_the_tenant_that_finished_longest_ago_goes_first() -> None:
    shared = SharedTexts(1000, 60.0)
    shared.add("a", range(399))
    shared.add("b", range(399))
    assert shared.num_tokens == 800
    shared.add("a", range(99))
    shared.add("c", range(399))
    assert shared.find("b") is None
    assert shared.find("a")
    assert shared.find("c")
    assert shared.num_tokens == 900
    shared.add("d", range(5000))
    assert shared.num_tokens == 1000
    assert shared.find("a") is shared.find("c") is None


def test_tenants_whose_texts_are_all_old_are_dropped() -> None:
    clock = Clock()
    shared = SharedTexts(1000, 60.0, clock)
    shared.add("a", range(10))
    clock.now += 61
    shared.add("b", range(10))
    assert shared.find("a") is None
    assert shared.num_tokens == 11


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_holds_over_all_tenants(seed: int) -> None:
    rng = random.Random(seed)
    shared = SharedTexts(300, 60.0)
    for _ in range(200):
        text = random_text(rng)
        tenant = rng.choice("abcdef")
        shared.add(tenant, text)
        assert len(text) < shared.num_tokens <= 300
        newest = shared.find(tenant)
        assert newest
        assert newest.slice(newest.end - len(text) - 1)[:-1] == text
    assert shared.num_bytes <= 6 * 512 * 16


def test_old_texts_go_whoever_comes_next_and_leave_nothing_in_memory() -> None:
    clock = Clock()
    shared = SharedTexts(1000, 60.0, clock)
    shared.add("a", [7001, 7002])
    clock.now += 30
    shared.add("a", [8001, 8002])
    text = shared.find("a")
    assert text is not None
    clock.now += 31
    shared.find("b")  # somebody else
    assert 7001 not in text.tokens[: text.end]
    assert 8001 in text.tokens[: text.end]
    clock.now += 30
    SuffixProposer(shared).propose({})  # a step, for nobody who shares
    assert shared.num_tokens == shared.num_bytes == 0
