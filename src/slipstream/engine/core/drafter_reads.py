"""Of which requests the drafter on the V2 model runner has read the whole text.

Target and drafter share block tables. A step in which the drafter does not run leaves its part of the blocks
with what was there before: another text's keys. So the blocks of such steps are kept in mind until they are
given to another text, and a request with one of them, or whose cached prefix has one, has no drafts of the
drafter until its end. Such a prefix that many requests share is taken out of the cache, to be read again.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

Blocks = Sequence[Sequence[int]]
"""Ids of a request's blocks, by group of layers with the same kind of attention."""

SHARED_BY = 4
"""Requests that begin with the same cached block: a text that many share, not a conversation that goes on."""


class DrafterReads:
    def __init__(self, block_sizes: Sequence[int], null_block: int) -> None:
        """Take the tokens in a block of each group, and the block that stands where a group keeps none."""
        self._block_sizes, self._null_block = block_sizes, null_block
        self._missed: set[int] = set()
        """Blocks that the drafter has not read, or not all of them, or only after a gap."""
        self._lost: set[str] = set()
        """Requests with such blocks."""
        self._found: Counter[int] = Counter()
        """Such blocks, by how many requests began with them."""
        self.shared: set[int] = set()
        """Those that many requests began with."""

    def has_all(self, request_id: str) -> bool:
        return request_id not in self._lost

    def follow(self, scheduler_output: Any) -> None:
        """Note which blocks vLLM has given to whom for a step."""
        if not self._missed and not self._lost:
            return
        for new in scheduler_output.scheduled_new_reqs:  # and those that go on after a preemption
            self._begin(new.req_id, new.block_ids, new.num_computed_tokens)
        cached = scheduler_output.scheduled_cached_reqs
        for request_id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            for group in blocks or ():
                self._give(request_id, group)

    def _begin(self, request_id: str, blocks: Blocks, computed: int) -> None:
        """Give a request its blocks, of which those of so many tokens were cached."""
        self.forget(request_id)
        cached = [computed // size for size in self._block_sizes]
        missed = {
            block
            for group, n in zip(blocks, cached, strict=True)
            for block in self._missed.intersection(group[:n])
        }
        if missed:
            self._lost.add(request_id)
            self._found.update(missed)
            self.shared |= {block for block in missed if self._found[block] >= SHARED_BY}
        for group, n in zip(blocks, cached, strict=True):
            self._give(request_id, group[n:])

    def _give(self, request_id: str, blocks: Sequence[int]) -> None:
        self._forget_found(blocks)
        if request_id in self._lost:
            self._missed.update(blocks)
            self._missed.discard(self._null_block)
        else:
            self._missed.difference_update(blocks)

    def miss(self, request_id: str, blocks: Sequence[Sequence[Any]], position: int) -> None:
        """Note that the drafter does not read what is written of a request from this position on. `blocks`
        are all of the request's, as vLLM describes them."""
        self._lost.add(request_id)
        for size, group in zip(self._block_sizes, blocks, strict=True):
            self._missed.update(block.block_id for block in group[position // size :] if not block.is_null)

    def take_shared(self) -> set[int]:
        """Return the blocks that many requests began with, once: they are being taken out of the cache."""
        shared, self.shared = self.shared, set()
        self._forget_found(shared)
        return shared

    def _forget_found(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._found.pop(block, None)
            self.shared.discard(block)

    def forget(self, request_id: str) -> None:
        self._lost.discard(request_id)
