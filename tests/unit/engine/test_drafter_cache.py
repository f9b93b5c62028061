"""How much of the missing text a drafter reads in one call."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")

from slipstream.engine.worker.drafter_cache import DrafterCache, Span

BLOCK = 16


class Cache(DrafterCache):
    """Of requests with so many tokens each, of which the drafter has read none."""

    def __init__(self, lengths: list[int], most: int) -> None:
        blocks = -(-max(lengths) // BLOCK) + 1
        table = np.arange(len(lengths) * blocks).reshape(len(lengths), blocks)
        self._size = BLOCK
        self._table = SimpleNamespace(block_table=SimpleNamespace(np=table))
        self._filled = np.zeros(table.size, np.int64)
        batch = SimpleNamespace(
            num_reqs=len(lengths),
            num_computed_tokens_cpu=np.array(lengths),
            req_ids=[str(row) for row in range(len(lengths))],
        )
        self._runner = SimpleNamespace(input_batch=batch, drafter=SimpleNamespace(max_num_tokens=most))
        self.passes: list[int] = []

    def _run(self, common: Any, spans: list[Span]) -> None:
        self.passes.append(sum(end - start for _, start, end in spans))

    def ask(self) -> set[int]:
        ids = self._runner.input_batch.req_ids
        step = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(ids, 1))
        return self.catch_up(
            SimpleNamespace(scheduler_output=step, common_attn_metadata=None), [*range(len(ids))]
        )


def test_a_call_reads_no_more_than_a_step_may_have() -> None:
    cache = Cache([10_000, 300, 20, 20_000], most=2048)
    assert cache.ask() == {1, 2}  # those that miss least
    asked = 1
    while cache.ask() != {0, 1, 2, 3}:
        asked += 1
    assert max(cache.passes) == 2048
    assert sum(cache.passes) == 30_320
    assert asked + 1 == len(cache.passes) == -(-30_320 // 2048)


def test_nothing_is_read_twice() -> None:
    cache = Cache([100, 33], most=2048)
    assert cache.ask() == cache.ask() == {0, 1}
    assert cache.passes == [133]
