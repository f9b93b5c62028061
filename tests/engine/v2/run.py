"""Runs arms one after the other in this process and prints as JSON what they wrote.

A program of its own because its environment (Triton's interpreter, V2, no engine process) holds from its
start.
"""

import gc
import json
import sys
import time
from typing import Any

from vllm import LLM, SamplingParams
from vllm.platforms.cpu import CpuPlatform

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


def allow_async() -> None:
    """Let an arm ask for asynchronous scheduling on a CPU, where vLLM always turns it off as not needed.

    It does so each time a config is made or copied, the drafter's too, and all copies share one object.
    """
    original = CpuPlatform.check_and_update_config

    def check_and_update_config(vllm_config: Any) -> None:
        wanted = vllm_config.scheduler_config.async_scheduling
        original(vllm_config)
        vllm_config.scheduler_config.async_scheduling = wanted

    CpuPlatform.check_and_update_config = staticmethod(check_and_update_config)


if __name__ == "__main__":
    allow_async()
    results = {name: run(arm) for name, arm in json.loads(sys.argv[1]).items()}
    sys.stdout.write("\nRESULT " + json.dumps(results) + "\n")
