"""Running an arm: one engine, some prompts one by one, then all batched, and what its metrics counted."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import slipstream

MAX_TOKENS = 48
BATCH = 8
KV_CACHE_BYTES = 512 * 1024**2


@dataclass(frozen=True)
class Run:
    single: list[list[int]]
    batched: list[list[int]]
    top_1: list[list[int]]
    """Batched, sampled at a temperature, but from the one most probable token."""
    counted: dict[str, float]

    @property
    def acceptance(self) -> float:
        return self.counted["spec_decode_num_accepted_tokens"] / self.counted["spec_decode_num_draft_tokens"]


def run_arm(
    target: str, prompts: Sequence[str], single: bool = True, top_1: bool = True, **speculation: Any
) -> Run:
    """Greedy, float32: there the engine's own numerics do not depend on how tokens are batched."""
    llm = slipstream.LLM(
        target,
        dtype="float32",
        enforce_eager=True,
        enable_prefix_caching=True,
        max_model_len=1024,
        max_num_seqs=BATCH,
        kv_cache_memory_bytes=KV_CACHE_BYTES,
        **speculation,
    )
    one_by_one = [tokens for prompt in prompts[::4] for tokens in _generate(llm, [prompt])] if single else []
    run = Run(
        single=one_by_one,
        batched=_generate(llm, prompts),
        top_1=_generate(llm, prompts, temperature=0.7, top_k=1) if top_1 else [],
        counted=_counters(llm),
    )
    del llm
    gc.collect()
    return run


def _generate(llm: Any, prompts: Sequence[str], temperature: float = 0.0, **sampled: Any) -> list[list[int]]:
    sampling = slipstream.SamplingParams(temperature=temperature, max_tokens=MAX_TOKENS, **sampled)
    outputs = llm.generate(list(prompts), sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def _counters(llm: Any) -> dict[str, float]:
    return {
        metric.name.removeprefix("vllm:"): metric.value
        for metric in llm.get_metrics()
        if isinstance(getattr(metric, "value", None), int | float)
    }
