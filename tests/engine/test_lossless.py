"""Promise 1: greedy output is the target's, token for token, whatever drafts.

Float32, 20 prompts x up to 48 tokens, 20 at a time and some one by one, prefix caching on, against bare vLLM.
Sampling with top_k=1 must give the same text again: it takes the sampler's random path, where vLLM on CPU
reads uninitialised memory, and dies on an empty batch, unless it is patched (slipstream.engine.patches).
Two planted bugs show what this test can and cannot see: drafts from a wrong context cost acceptance
only, wrong acceptance changes the text.
"""

from typing import Any

import pytest

from engine.prompts import PROMPTS
from engine.runs import Run, run_arm
from slipstream.testing import models

NGRAM: dict[str, Any] = {
    "speculative_config": {
        "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 5,
    }
}  # fmt: skip


@pytest.fixture(scope="module")
def bare(smollm2: str) -> Run:
    run = run_arm(smollm2, PROMPTS, speculate="off")
    assert "spec_decode_num_drafts" not in run.counted
    assert sum(len(tokens) for tokens in run.batched) > 800
    assert run.top_1 == run.beginnings
    return run


@pytest.fixture(scope="module")
def ngram(smollm2: str) -> Run:
    return run_arm(smollm2, PROMPTS, single=False, **NGRAM)


def check_equal(run: Run, bare: Run) -> None:
    assert run.single in (bare.single, [])
    assert run.batched == bare.batched
    assert run.top_1 == bare.beginnings
    assert run.counted["spec_decode_num_draft_tokens"] > 0
    assert run.counted["prefix_cache_hits"] > 0


def test_vllms_own_ngram(ngram: Run, bare: Run) -> None:
    check_equal(ngram, bare)
    assert ngram.acceptance > 0.2


def test_free_proposers(smollm2: str, bare: Run) -> None:
    """n-gram lookup and suffix decoding: what `auto` is without a drafter."""
    run = run_arm(smollm2, PROMPTS)
    check_equal(run, bare)
    assert run.acceptance > 0.2


@pytest.mark.parametrize("kind", ["draft_model", "medusa", "eagle", "mlp"])
def test_composed_with(kind: str, smollm2: str, bare: Run) -> None:
    """Free proposers and a drafter of each kind; all but the draft model have random weights."""
    drafters: dict[str, Any] = {
        "draft_model": {"model": str(models.drafter())},
        "medusa": {"model": str(models.medusa_heads())},
        "eagle": {"model": str(models.eagle_head()), "method": "eagle"},
        "mlp": {"model": str(models.mlp_speculator())},
    }
    options = {"mode": "fixed", "num_draft_tokens": 3, "ngram": {}, "suffix": {}, "drafter": drafters[kind]}
    run = run_arm(smollm2, PROMPTS, single=False, speculate=options)
    check_equal(run, bare)


def test_planned_with_a_draft_model(smollm2: str, bare: Run) -> None:
    """`auto`: the planner says when the drafter runs and how much is verified."""
    run = run_arm(smollm2, PROMPTS, speculate={"drafter": {"model": str(models.drafter())}})
    check_equal(run, bare)


def test_padded_draft_model(smollm2: str, padded_drafter: str, bare: Run) -> None:
    """vLLM refuses this pair as it stands; Slipstream tells it to map the vocabularies."""
    run = run_arm(smollm2, PROMPTS, single=False, top_1=False, drafter=padded_drafter)
    assert run.batched == bare.batched
    assert run.acceptance > 0.1


def test_planted_off_by_one_in_the_drafts_context(smollm2: str, bare: Run, ngram: Run) -> None:
    worker = "engine.planted.ShiftedContextWorker"
    run = run_arm(smollm2, PROMPTS, single=False, top_1=False, worker_cls=worker, **NGRAM)
    assert run.batched == bare.batched
    assert run.acceptance < 0.5 * ngram.acceptance


def test_vllms_own_worker_dies_of_top_k(smollm2: str) -> None:
    """Show what our worker patches. When this fails, vLLM is fixed and the patch can go."""
    from vllm.v1.engine.exceptions import EngineDeadError

    worker = "vllm.v1.worker.cpu_worker.CPUWorker"
    with pytest.raises(EngineDeadError):
        run_arm(smollm2, PROMPTS[-2:], single=False, worker_cls=worker, **NGRAM)


def test_planted_wrong_acceptance(smollm2: str, bare: Run) -> None:
    worker = "engine.planted.AcceptsTooMuchWorker"
    run = run_arm(smollm2, PROMPTS, single=False, top_1=False, worker_cls=worker, **NGRAM)
    assert run.batched != bare.batched
