"""A draft model that does not run at every step catches up with what it has missed.

The target is its own draft model, in float32: as long as its keys and values are right, every one of
its tokens is accepted.
"""

import gc
from typing import Any

import pytest

import slipstream
from engine.prompts import PROMPTS
from slipstream.engine.report import drafting_report
from slipstream.testing import models


def share_accepted(worker: str) -> float:
    llm = slipstream.LLM(
        str(models.tiny_llama()),
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=8,
        max_num_batched_tokens=256,  # prompts come in parts
        kv_cache_memory_bytes=256 * 1024**2,
        speculate={"num_draft_tokens": 3, "plugins": {"engine.planted.FaultyNgram": {}}},
        drafter=str(models.tiny_llama()),
        worker_cls=f"engine.planted.{worker}",
    )
    sampling = slipstream.SamplingParams(temperature=0.0, max_tokens=40)
    for _ in range(2):  # the second time with cached prefixes
        llm.generate(PROMPTS, sampling, use_tqdm=False)
    report: dict[str, Any] = drafting_report(llm)
    del llm
    gc.collect()
    assert report["draft_tokens"]["draft_model"] > 200
    return float(report["accepted_tokens"]["draft_model"] / report["draft_tokens"]["draft_model"])


@pytest.mark.parametrize(("worker", "right"), [("SkippingWorker", True), ("ForgetfulWorker", False)])
def test_every_draft_is_right_if_nothing_is_missing(worker: str, right: bool) -> None:
    share = share_accepted(worker)
    assert (share > 0.995) if right else (share < 0.9), share
