"""Runs arms on the V2 model runner with asynchronous scheduling, in this process, and prints as JSON what
they wrote and what was drafted, or for a job that fails, how.

A program of its own because its environment holds from its start (`slipstream.testing.v2`). A job is a model,
requests, arms and perhaps a file `texts`. A request is a prompt and what is special about its sampling; an
arm is the arguments of `slipstream.LLM`, and `rounds`, `sampling`, `alternates` (drafts are argmax for half
of the requests and sampled for the others), `reads` (so many steps with the drafter, then as many in
which it is left out, and so on) and `rests` (it is left out of the first so many steps). What an arm named
bare writes is kept in `texts`, for arms after it.
"""

import gc
import json
import sys
import traceback
from collections.abc import Iterator
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import slipstream
from engine.runs import sampling_of
from sharing_a_core.sitecustomize import sleep_instead_of_spinning
from slipstream.planning.draft_sampling import DraftSampling


def run(model: str, requests: list[tuple[Any, dict[str, Any]]], arm: dict[str, Any]) -> dict[str, Any]:
    rounds, sampling, alternates = arm.pop("rounds", 1), arm.pop("sampling", {}), arm.pop("alternates", False)
    reads, rests = arm.pop("reads", 0), arm.pop("rests", 0)
    limits: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 8, "kv_cache_memory_bytes": 16 * 1024**2}
    engine: dict[str, Any] = {
        "dtype": "float32",
        "enforce_eager": True,
        "async_scheduling": True,
        "skip_tokenizer_init": True,
    }
    llm = slipstream.LLM(model, **(engine | limits | arm))
    config = llm.llm_engine.vllm_config
    assert config.use_v2_model_runner
    assert config.scheduler_config.async_scheduling
    if alternates:
        sampling_choice = DraftSampling()
        sampling_choice.ENOUGH = sys.maxsize
        llm.llm_engine.engine_core.engine_core.scheduler._draft_sampling = sampling_choice
    if reads:
        leave_drafter_out(llm, (step // reads % 2 == 1 for step in count()))
    if rests:
        leave_drafter_out(llm, chain(repeat(True, rests), repeat(False)))
    parameters = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True, "detokenize": False} | sampling
    prompts = [prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt} for prompt, _ in requests]
    samplings = [sampling_of({**parameters, **special}) for _, special in requests]
    outputs = [o for _ in range(rounds) for o in llm.generate(prompts, samplings, use_tqdm=False)]
    counted = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    report = {} if arm.get("speculate") == "off" or "native" in str(arm) else slipstream.drafting_report(llm)
    result = {
        "texts": [list(text.token_ids) for output in outputs for text in output.outputs],
        "ends": [text.finish_reason for output in outputs for text in output.outputs],
        "draft_tokens": counted.get("vllm:spec_decode_num_draft_tokens", 0),
        "accepted_tokens": counted.get("vllm:spec_decode_num_accepted_tokens", 0),
        "preemptions": counted.get("vllm:num_preemptions", 0),
        "report": {
            key: report.get(key)
            for key in ("draft_tokens", "accepted_tokens", "failures", "faults", "draft_sampling")
        },
    }
    del llm
    gc.collect()
    return result


def leave_drafter_out(llm: Any, of_steps: Iterator[bool]) -> None:
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    scheduler._is_without_drafter = lambda _, readable: next(of_steps) or not readable


def run_arms(
    model: str, requests: list[tuple[Any, dict[str, Any]]], arms: dict[str, dict[str, Any]], texts: str | None
) -> dict[str, Any]:
    results = {}
    for name, arm in arms.items():
        results[name] = run(model, requests, arm)
        if name == "bare" and texts:
            written = results[name]["texts"]
            known = [p + text for (p, _), text in zip(requests, written, strict=True)]
            Path(texts).write_text(json.dumps(known))
    return results


if __name__ == "__main__":
    sleep_instead_of_spinning()
    results: dict[str, Any] = {}
    for name, job in json.loads(sys.stdin.read()).items():
        try:
            results[name] = run_arms(**job)
        except Exception:
            results[name] = traceback.format_exc()
    sys.stdout.write("\nRESULT " + json.dumps(results) + "\n")
