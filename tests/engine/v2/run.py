"""Runs arms one after the other in this process and prints as JSON what they wrote.

A program of its own because its environment (V2 or not, no engine process) holds from its
start.
"""

import gc
import json
import sys
import time
from typing import Any

from vllm import LLM, SamplingParams, envs
from vllm.platforms import cpu

from slipstream.engine.patches import fix_kernel_search
from slipstream.testing.site.sitecustomize import allow_async

MAX_TOKENS = 24
PROMPTS = [[5, 17, 9], [200, 3, 77, 41, 8], [100, 101], [42, 7, 7, 9, 11, 13, 60]]


def run(arm: dict[str, Any]) -> dict[str, Any]:
    begun = time.monotonic()
    llm = LLM(
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_model_len=128,
        max_num_seqs=len(PROMPTS),
        max_num_batched_tokens=128,
        kv_cache_memory_bytes=16 * 1024**2,
        disable_log_stats=False,
        **arm,
    )
    config = llm.llm_engine.vllm_config
    sampling = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    result = {
        "texts": [list(output.outputs[0].token_ids) for output in outputs],
        "counted": {
            metric.name.removeprefix("vllm:spec_decode_num_"): metric.value
            for metric in llm.get_metrics()
            if metric.name.startswith("vllm:spec_decode_num_") and hasattr(metric, "value")
        },
        "v2": config.use_v2_model_runner,
        "async": config.scheduler_config.async_scheduling,
        "seconds": time.monotonic() - begun,
    }
    del llm
    gc.collect()
    return result


if __name__ == "__main__":
    fix_kernel_search()
    if not envs.VLLM_USE_V2_MODEL_RUNNER:
        allow_async(cpu)
    results = {name: run(arm) for name, arm in json.loads(sys.argv[1]).items()}
    sys.stdout.write("\nRESULT " + json.dumps(results) + "\n")
