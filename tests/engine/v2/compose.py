"""Runs arms on the V2 model runner with asynchronous scheduling, in this process, and prints as JSON what
they wrote and what was drafted.

A program of its own because its environment holds from its start (`slipstream.testing.v2`). A request is a
prompt and what is special about its sampling; an arm is the arguments of `slipstream.LLM`, and `rounds`,
`sampling` and `alternates` (drafts are argmax for half of the requests and sampled for the others). What an
arm named bare writes is kept in the file `texts`, for arms after it.
"""

import gc
import json
import sys
from pathlib import Path
from typing import Any

import slipstream
from engine.runs import sampling_of
from slipstream.planning.draft_sampling import DraftSampling


def run(model: str, requests: list[tuple[Any, dict[str, Any]]], arm: dict[str, Any]) -> dict[str, Any]:
    rounds, sampling, alternates = arm.pop("rounds", 1), arm.pop("sampling", {}), arm.pop("alternates", False)
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


if __name__ == "__main__":
    asked = json.loads(sys.stdin.read())
    results = {}
    for name, arm in asked["arms"].items():
        results[name] = run(asked["model"], asked["requests"], arm)
        if name == "bare" and asked["texts"]:
            texts = results[name]["texts"]
            known = [p + text for (p, _), text in zip(asked["requests"], texts, strict=True)]
            Path(asked["texts"]).write_text(json.dumps(known))
    sys.stdout.write("\nRESULT " + json.dumps(results) + "\n")
