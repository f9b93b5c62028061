"""How much is measured when the engine starts."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from slipstream.engine.worker.pass_profile import (
    COARSE,
    FEWEST,
    FINE,
    MOST_SECONDS,
    Passes,
    _DrafterTimer,
    passes_to_time,
)


class Speculator:
    """Of the V2 model runner; notes how many tokens it was asked for, None if not told."""

    def __init__(self, **attributes: Any) -> None:
        self.asked: list[int | None] = []
        self.__dict__ |= attributes

    def propose(self, input_batch: Any, num_speculative_tokens: int | None = None) -> str:
        self.asked.append(num_speculative_tokens)
        return f"{input_batch.num_reqs} {num_speculative_tokens}"


@pytest.mark.parametrize(
    ("speculator", "asked", "passes"),
    [(Speculator(draft_tokens=()), [None, 1], [1, 5]), (Speculator(drafts=()), [None], [5])],
)
def test_one_pass_is_timed_beside_all_of_them(
    speculator: Speculator, asked: list[int | None], passes: list[int]
) -> None:
    """But of vLLM's lookup, which has no passes."""
    runner = SimpleNamespace(
        device=SimpleNamespace(type="cpu"),
        speculator=speculator,
        speculative_config=SimpleNamespace(num_speculative_tokens=5),
    )
    timer = _DrafterTimer(runner)
    for number in (8, 8, 1):
        assert speculator.propose(input_batch=SimpleNamespace(num_reqs=number)) == f"{number} None"
    assert speculator.asked == 3 * asked
    found = {(requests, passes): seconds for requests, passes, seconds in timer.by_requests}
    assert sorted(found) == [(requests, number) for requests in (1, 8) for number in passes]
    timer.restore()
    assert speculator.propose(SimpleNamespace(num_reqs=3), num_speculative_tokens=2) == "3 2"


@pytest.mark.parametrize(
    ("seconds", "passes"),
    [(0.02, FINE), (0.1, FINE), (0.2, COARSE), (2.4, FEWEST)],
)
def test_the_slower_a_pass_the_fewer_are_timed(seconds: float, passes: Passes) -> None:
    """0.02 s: SmolLM2 with AMX; 0.2 s: without; 2.4 s: a model of 1.5B parameters without."""
    assert passes_to_time(seconds) is passes


@pytest.mark.parametrize("seconds", [0.001, 0.1, 0.125, 0.5, 1.0])
def test_measuring_takes_no_longer_than_stated(seconds: float) -> None:
    assert passes_to_time(seconds).most_seconds(seconds) <= MOST_SECONDS
