"""A `Choice` as the arguments that vLLM 0.32 takes."""

from typing import Any

from slipstream.config import Choice

CPU_WORKER = "slipstream.engine.worker.CPUWorker"
TIMED_CPU_WORKER = "slipstream.engine.stopwatch.TimedCPUWorker"
STEPS_VARIABLE = "SLIPSTREAM_STEPS"  # the file that the timed worker writes


def engine_arguments(choice: Choice, platform: str) -> dict[str, Any]:
    """What Slipstream adds to the user's arguments; nothing at all without speculation."""
    ours: dict[str, Any] = {}
    if config := speculative_config(choice):
        ours["speculative_config"] = config
    if platform == "cpu" and (config or choice.left_to_vllm):
        ours["worker_cls"] = CPU_WORKER
    return ours


def speculative_config(choice: Choice) -> dict[str, Any] | None:
    """vLLM's `speculative_config`, or None for no speculation."""
    if choice.method is None:
        return None
    config: dict[str, Any] = {
        "method": choice.method,
        "num_speculative_tokens": choice.num_draft_tokens,
        **choice.vllm,
    }
    if choice.ngram is not None:
        config |= {"prompt_lookup_min": choice.ngram.min, "prompt_lookup_max": choice.ngram.max}
    if choice.custom_class is not None:
        config["model"] = choice.custom_class
    if drafter := choice.drafter:
        config |= {
            "model": drafter.model,
            "draft_tensor_parallel_size": drafter.tensor_parallel_size,
            "revision": drafter.revision,
            "quantization": drafter.quantization,
            "max_model_len": drafter.max_model_len,
        }
    return {key: value for key, value in config.items() if value is not None}
