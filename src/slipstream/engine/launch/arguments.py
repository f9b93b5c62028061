"""A `ResolvedSpeculation` as the arguments that vLLM 0.32 takes."""

from collections.abc import Mapping
from typing import Any

from slipstream.config import ResolvedSpeculation
from slipstream.engine.settings import Settings
from slipstream.methods import CUSTOM_CLASS, method_of

SCHEDULER = "slipstream.engine.core.scheduler.Scheduler"
ASYNC_SCHEDULER = "slipstream.engine.core.async_scheduler.AsyncScheduler"
LOOKAHEAD_SCHEDULER = "slipstream.engine.core.lookahead_scheduler.LookaheadScheduler"
LOOKAHEAD_ASYNC_SCHEDULER = "slipstream.engine.core.lookahead_scheduler.AsyncLookaheadScheduler"
CPU_WORKER = "slipstream.engine.worker.worker.CPUWorker"
GPU_WORKER = "slipstream.engine.worker.worker.GPUWorker"
ROOM_FOR_DRAFTS = "ngram_gpu"
LONGEST_MATCH_ON_DEVICE = 8  # tokens, over which the loops of vLLM's kernel are unrolled
MANY = 1 << 20  # requests
NO_DRAFTER = "slipstream.engine.worker.drafters.NoDrafter"
TIMED_CPU_WORKER = "slipstream.engine.worker.step_times.TimedCPUWorker"
STEPS_VARIABLE = "SLIPSTREAM_STEPS"  # the file that the timed worker writes


def engine_arguments(
    choice: ResolvedSpeculation,
    platform: str,
    additional_config: Mapping[str, Any] | None = None,
    default_objective: str = "throughput",
) -> dict[str, Any]:
    """Return what Slipstream adds to the user's arguments; nothing at all without speculation."""
    ours: dict[str, Any] = {}
    if config := speculative_config(choice):
        ours["speculative_config"] = config
    if platform == "cpu" and (config or choice.left_to_vllm):
        ours["worker_cls"] = CPU_WORKER
    if config and (choice.composes or platform == "cpu"):
        ours |= {"scheduler_cls": SCHEDULER, "async_scheduling": False}
    if choice.ahead:
        ours["worker_cls"] = CPU_WORKER if platform == "cpu" else GPU_WORKER
        asynchronous = platform != "cpu"  # where vLLM schedules ahead by itself
        ours["scheduler_cls"] = LOOKAHEAD_ASYNC_SCHEDULER if asynchronous else LOOKAHEAD_SCHEDULER
        ours["async_scheduling"] = asynchronous
        asked = Settings(max_requested_tokens=choice.max_requested_tokens)
        ours["additional_config"] = {**(additional_config or {}), **asked.as_dict()}
    if choice.composes:
        if choice.asynchronous:
            ours |= {"scheduler_cls": ASYNC_SCHEDULER, "async_scheduling": True}
        ours["worker_cls"] = CPU_WORKER if platform == "cpu" else GPU_WORKER
        ours["additional_config"] = {
            **(additional_config or {}),
            **settings(choice, default_objective).as_dict(),
        }
    return ours


def settings(choice: ResolvedSpeculation, default_objective: str = "throughput") -> Settings:
    """Return what the scheduler and the workers are told."""
    ours = choice.drafter_checkpoint if choice.method and method_of(choice.method).implementation else None
    return Settings(
        free=choice.free,
        drafter=(choice.method or "") if choice.drafter else "",
        device_lookup=ROOM_FOR_DRAFTS if _looks_up_on_device(choice) else "",
        drafter_folder=str(ours.folder) if ours else "",
        plans=choice.plans,
        max_requested_tokens=choice.max_requested_tokens,
        objective=choice.objective or default_objective,
        max_tpot_ms=choice.max_tpot_ms,
        max_ttft_ms=choice.max_ttft_ms,
        share=choice.share,
    )


def speculative_config(choice: ResolvedSpeculation) -> dict[str, Any] | None:
    """Return vLLM's `speculative_config`, or None for no speculation."""
    if choice.method is None:
        return None
    if implementation := method_of(choice.method).implementation:
        return {
            "method": CUSTOM_CLASS.name,
            "model": implementation,
            "num_speculative_tokens": choice.num_draft_tokens,
        }
    if choice.asynchronous and choice.drafter is None:
        # It reserves room for drafts, and with asynchronous scheduling vLLM takes no class of ours for that.
        # Its own lookup stands in where ours turn out to be wrong.
        return {
            **choice.vllm,
            "method": ROOM_FOR_DRAFTS,
            "num_speculative_tokens": choice.num_draft_tokens,
            **_lookup_lengths(choice),
            **_graphs(choice),
        }
    config: dict[str, Any] = {
        "method": choice.method,
        "num_speculative_tokens": choice.num_draft_tokens,
        **choice.vllm,
        **_graphs(choice),
    }
    if choice.ngram is not None:
        config |= {"prompt_lookup_min": choice.ngram.min, "prompt_lookup_max": choice.ngram.max}
    if choice.method == CUSTOM_CLASS.name:
        config["model"] = choice.custom_class or NO_DRAFTER
    if drafter := choice.drafter:
        config |= {
            "model": drafter.model,
            "draft_tensor_parallel_size": drafter.tensor_parallel_size,
            "revision": drafter.revision,
            "quantization": drafter.quantization,
            "max_model_len": drafter.max_model_len,
        }
    return {key: value for key, value in config.items() if value is not None}


def _looks_up_on_device(choice: ResolvedSpeculation) -> bool:
    return choice.asynchronous and choice.drafter is None and "ngram" in choice.free


def _lookup_lengths(choice: ResolvedSpeculation) -> dict[str, int]:
    options = choice.free.get("ngram", {"min": 2, "max": 2})
    least, most = (min(options[end], LONGEST_MATCH_ON_DEVICE) for end in ("min", "max"))
    return {"prompt_lookup_min": least, "prompt_lookup_max": most}


def _graphs(choice: ResolvedSpeculation) -> dict[str, Any]:
    """Return what lets the V2 model runner capture CUDA graphs for steps without drafts, of any number of
    requests. How many tokens are drafted then is not decided by it, but by our scheduler."""
    if not choice.asynchronous:
        return {}
    return {"num_speculative_tokens_per_batch_size": [[1, 1, choice.num_draft_tokens], [2, MANY, 0]]}
