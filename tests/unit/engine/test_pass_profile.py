"""How much is measured when the engine starts."""

import pytest

pytest.importorskip("vllm")

from slipstream.engine.worker.pass_profile import COARSE, FEWEST, FINE, MOST_SECONDS, Passes, passes_to_time


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
