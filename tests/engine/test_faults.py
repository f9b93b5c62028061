"""Faults in one call of ten: 200 requests finish with the text they have without."""

import gc
from typing import Any

import slipstream
from engine.prompts import OTHERS
from slipstream.testing import models

PROMPTS = [f"{i}. {OTHERS[i % len(OTHERS)]}" for i in range(200)]


def run(**options: Any) -> tuple[list[list[int]], dict[str, Any] | None]:
    llm = slipstream.LLM(
        str(models.tiny_llama()),
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=32,
        kv_cache_memory_bytes=256 * 1024**2,
        **options,
    )
    sampling = slipstream.SamplingParams(temperature=0.0, max_tokens=32)
    outputs = llm.generate(PROMPTS, sampling, use_tqdm=False)
    report = slipstream.drafting_report(llm) if options["speculate"] != "off" else None
    del llm
    gc.collect()
    assert all(output.finished for output in outputs)
    return [list(output.outputs[0].token_ids) for output in outputs], report


def test_faults_cost_speed_and_nothing_else() -> None:
    bare, _ = run(speculate="off")
    speculate: dict[str, Any] = {
        "mode": "fixed", "num_draft_tokens": 3, "plugins": {"engine.planted.FaultyNgram": {}}, "suffix": {},
    }  # fmt: skip
    texts, report = run(
        speculate=speculate,
        drafter=str(models.tiny_llama()),
        worker_cls="engine.planted.FaultyDrafterWorker",
    )
    assert texts == bare
    assert report is not None
    kinds = {kind for proposer, kind, _ in report["faults"] if proposer == "faulty"}
    assert {"exception", "no probability", "wrong length", "no such token"} <= kinds
    assert "draft_model" in {proposer for proposer, _, _ in report["faults"]}
    assert sum(count for _, _, count in report["faults"]) >= 10
    assert report["accepted_tokens"]["suffix"] > 100
