"""Which requests a drafter can draft for that was left out of some steps."""

from types import SimpleNamespace
from typing import Any

from slipstream.engine.core.drafter_reads import SHARED_BY, DrafterReads

SIZE = 4


def blocks_of(*ids: int) -> list[list[Any]]:
    """Return what vLLM's manager says of a request's blocks, of one group; 0 is its empty block."""
    return [[SimpleNamespace(block_id=block, is_null=block == 0) for block in ids]]


def step(new: dict[str, tuple[list[int], int]] | None = None, **more: list[int]) -> Any:
    """Return what vLLM gives out in a step: to new requests blocks, of which those of so many tokens were
    cached, and `more` to others."""
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=request, block_ids=(blocks,), num_computed_tokens=computed)
            for request, (blocks, computed) in (new or {}).items()
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(more), new_block_ids=[(blocks,) if blocks else None for blocks in more.values()]
        ),
    )


def after_a_miss() -> DrafterReads:
    """Of a request with the blocks 1, 2 and 3, it has read the first six tokens."""
    reads = DrafterReads([SIZE], null_block=0)
    reads.follow(step({"a": ([1, 2, 3], 0)}))
    assert reads.has_all("a")
    reads.miss("a", blocks_of(1, 2, 3), 6)
    return reads


def test_what_is_missed_is_missed_until_the_end() -> None:
    reads = after_a_miss()
    assert not reads.has_all("a")
    reads.follow(step(a=[4]))
    assert not reads.has_all("a")
    reads.forget("a")
    assert reads.has_all("a")


def test_a_cached_prefix_that_was_missed_is_not_read() -> None:
    reads = after_a_miss()
    reads.follow(step({"b": ([1, 7], 4), "c": ([1, 2, 8], 8)}))
    assert reads.has_all("b"), "of its blocks the drafter has read the cached one"
    assert not reads.has_all("c")


def test_what_follows_a_gap_counts_as_missed() -> None:
    reads = after_a_miss()
    reads.follow(step(a=[4]))
    reads.follow(step({"b": ([1, 5, 6, 4], 16)}))
    assert not reads.has_all("b")


def test_a_cached_prefix_that_was_read_stays_so() -> None:
    """A request that begins with it, while the drafter is left out, writes into its own blocks."""
    reads = DrafterReads([SIZE], null_block=0)
    reads.miss("a", blocks_of(1, 2), SIZE)
    reads.follow(step({"b": ([1, 3], SIZE)}))
    assert reads.has_all("b")


def test_blocks_that_change_hands_are_read_anew() -> None:
    reads = after_a_miss()
    reads.follow(step({"b": ([2, 9], 0), "c": ([5], 0)}))
    assert reads.has_all("b")
    reads.follow(step(c=[3]))
    reads.follow(step({"d": ([2, 3, 6], 8)}))
    assert reads.has_all("d")


def test_a_request_that_was_preempted_is_read_anew() -> None:
    reads = after_a_miss()
    reads.follow(step({"b": ([2, 3], 0)}))
    reads.follow(step({"a": ([5, 6], 0)}))
    assert reads.has_all("a")
    reads.miss("a", blocks_of(5, 6), 5)
    reads.follow(step({"a": ([5, 6, 7], 8)}))
    assert not reads.has_all("a"), "its second block was cached"


def test_the_block_that_stands_for_none_is_nobodys() -> None:
    """Groups that keep the last states only have it in the place of all others."""
    reads = after_a_miss()
    reads.follow(step(a=[0, 4]))
    reads.follow(step({"b": ([0, 0, 7], 8)}))
    assert reads.has_all("b")


def test_each_group_of_layers_has_blocks_of_its_own() -> None:
    reads = DrafterReads([SIZE, 2 * SIZE], null_block=0)
    reads.miss("a", [*blocks_of(1, 2), *blocks_of(0, 11)], SIZE)
    both = SimpleNamespace(req_id="b", block_ids=([1, 3], [0, 12]), num_computed_tokens=SIZE)
    reads.follow(
        SimpleNamespace(scheduled_new_reqs=[both], scheduled_cached_reqs=step().scheduled_cached_reqs)
    )
    assert reads.has_all("b")
    both = SimpleNamespace(req_id="c", block_ids=([1, 3], [0, 11]), num_computed_tokens=4 * SIZE)
    reads.follow(
        SimpleNamespace(scheduled_new_reqs=[both], scheduled_cached_reqs=step().scheduled_cached_reqs)
    )
    assert not reads.has_all("c")


def test_a_prefix_that_many_begin_with_is_to_be_read_again() -> None:
    reads = after_a_miss()
    for number in range(SHARED_BY):
        assert not reads.shared
        reads.follow(step({f"b{number}": ([1, 2, 20 + number], 8)}))
    assert reads.take_shared() == {2}, "of its two cached blocks the drafter has read the first"
    assert not reads.shared
    reads.follow(step({"c": ([1, 30], 4)}))
    assert reads.has_all("c"), "the second is not in the cache any more"


def test_a_block_that_changes_hands_is_shared_by_nobody() -> None:
    reads = after_a_miss()
    for number in range(SHARED_BY):
        reads.follow(step({f"b{number}": ([1, 2, 20 + number], 8)}))
    reads.follow(step({"c": ([2], 0)}))
    assert not reads.take_shared()
