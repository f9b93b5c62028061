"""Two ranks on two cores. What is drafted is decided in one place, so the ranks cannot part ways."""

from pathlib import Path
from typing import Any

import pytest

from engine.prompts import OTHERS
from engine.runs import Run, run_arm
from slipstream.testing import models

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def bare(tiny_llama: str) -> Run:
    return run_arm(tiny_llama, OTHERS, single=False, speculate="off", tensor_parallel_size=2)


@pytest.mark.parametrize("kind", ["free", "draft_model", "medusa", "eagle", "mlp"])
def test_two_ranks(tiny_llama: str, bare: Run, kind: str) -> None:
    """The tiny random Llama repeats itself, so n-grams are accepted; it is its own draft model."""
    target = Path(tiny_llama)
    drafters: dict[str, Any] = {
        "free": {},
        "draft_model": {"drafter": {"model": tiny_llama}},
        "medusa": {"drafter": {"model": str(models.medusa_heads(target))}},
        "eagle": {"drafter": {"model": str(models.eagle_head(target)), "method": "eagle"}},
        # The classic guides promise a speculator on one rank beside a target on several.
        "mlp": {
            "drafter": {"model": str(models.mlp_speculator(target, tied=True)), "tensor_parallel_size": 1}
        },
    }
    run = run_arm(tiny_llama, OTHERS, single=False, tensor_parallel_size=2, speculate=drafters[kind])
    assert run.batched == bare.batched
    assert run.top_1 == bare.beginnings
    assert run.acceptance > {"free": 0.1, "draft_model": 0.5}.get(kind, 0.0)
