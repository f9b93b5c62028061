"""Runs arms on the V2 model runner with asynchronous scheduling, in this process, and prints as JSON what
they wrote and what was drafted.

A program of its own because its environment holds from its start (`slipstream.testing.v2`). An arm is the
arguments of `slipstream.LLM`, and `rounds` and `sampling`.
"""

import gc
import json
import sys
from typing import Any

import slipstream


def run(model: str, prompts: list[list[int]], arm: dict[str, Any]) -> dict[str, Any]:
    rounds, sampling = arm.pop("rounds", 1), arm.pop("sampling", {})
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
    parameters = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True, "detokenize": False} | sampling
    outputs = []
    for _ in range(rounds):
        outputs += llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            slipstream.SamplingParams(**parameters),
            use_tqdm=False,
        )
    counted = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    report = {} if arm.get("speculate") == "off" or "native" in str(arm) else slipstream.drafting_report(llm)
    result = {
        "texts": [list(output.outputs[0].token_ids) for output in outputs],
        "draft_tokens": counted.get("vllm:spec_decode_num_draft_tokens", 0),
        "accepted_tokens": counted.get("vllm:spec_decode_num_accepted_tokens", 0),
        "preemptions": counted.get("vllm:num_preemptions", 0),
        "report": {key: report.get(key) for key in ("draft_tokens", "accepted_tokens", "failures", "faults")},
    }
    del llm
    gc.collect()
    return result


if __name__ == "__main__":
    asked = json.loads(sys.stdin.read())
    results = {name: run(asked["model"], asked["prompts"], arm) for name, arm in asked["arms"].items()}
    sys.stdout.write("\nRESULT " + json.dumps(results) + "\n")
