"""Two ranks on two cores: the drafts must be the same on both, or the ranks part ways."""

import pytest

from engine.prompts import OTHERS
from engine.runs import Run, run_arm


@pytest.fixture(scope="module")
def bare(tiny_llama: str) -> Run:
    return run_arm(tiny_llama, OTHERS, single=False, speculate="off", tensor_parallel_size=2)


@pytest.mark.parametrize("proposer", ["ngram", "draft_model"])
def test_two_ranks(tiny_llama: str, bare: Run, proposer: str) -> None:
    """The tiny random Llama as its own drafter; it repeats itself, so n-grams are accepted too."""
    drafter = {"drafter": tiny_llama} if proposer == "draft_model" else {}
    run = run_arm(tiny_llama, OTHERS, single=False, tensor_parallel_size=2, **drafter)
    assert run.batched == bare.batched
    assert run.top_1 == bare.batched
    assert run.acceptance > (0.9 if drafter else 0.1)
