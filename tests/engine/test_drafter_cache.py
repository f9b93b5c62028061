"""A draft model that does not run at every step catches up with what it has missed.

The target is its own draft model, in float32: as long as its keys and values are right, every one of
its tokens is accepted.
"""

import gc
from typing import Any

import slipstream
from engine.prompts import PROMPTS
from slipstream.checkpoints import open_checkpoint
from slipstream.testing import models


def drafted(worker: str) -> tuple[int, float]:
    """(how many tokens the draft model drafted, the share of them that was accepted)."""
    drafter = str(models.tiny_llama())
    llm = slipstream.LLM(
        drafter,
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=8,
        max_num_batched_tokens=256,  # prompts come in parts
        kv_cache_memory_bytes=256 * 1024**2,
        speculate={"mode": "fixed", "num_draft_tokens": 3, "plugins": {"engine.planted.FaultyNgram": {}}},
        drafter=drafter,
        worker_cls=f"engine.planted.{worker}",
    )
    sampling = slipstream.SamplingParams(temperature=0.0, max_tokens=56)
    for _ in range(2):  # the second time with cached prefixes
        llm.generate(PROMPTS, sampling, use_tqdm=False)
    report: dict[str, Any] = slipstream.drafting_report(llm)
    counted = llm.llm_engine.engine_core.call_utility("drafting_counts")
    assert counted["drafter"] == ["draft_model", "tiny-llama", open_checkpoint(drafter).fingerprint]
    del llm
    gc.collect()
    tokens = report["draft_tokens"]["draft_model"]
    return tokens, report["accepted_tokens"]["draft_model"] / tokens


def test_every_draft_is_right_if_nothing_is_missing() -> None:
    tokens, accepted = drafted("SkippingWorker")
    assert tokens > 200
    assert accepted > 0.995


def test_a_draft_model_states_how_sure_it_is() -> None:
    tokens, accepted = drafted("ConfidentWorker")
    assert tokens > 200
    assert accepted > 0.995


def test_drafts_are_wrong_without_catching_up() -> None:
    _, accepted = drafted("ForgetfulWorker")
    assert accepted < 0.9
