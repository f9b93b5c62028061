"""Running an arm: one engine, some prompts one by one, then all batched, and what its metrics counted.

A step of so small a model takes about as long for 20 requests as for one, so the requests run together: all
greedy ones at first, the sampled ones as these finish, so that there are greedy, mixed and sampled batches.
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import slipstream

MAX_TOKENS = 48
TOP_1_TOKENS = 24
BATCH = 20
KV_CACHE_BYTES = 512 * 1024**2
GREEDY: dict[str, Any] = {"temperature": 0.0}
TOP_1: dict[str, Any] = {"temperature": 0.7, "top_k": 1}


@dataclass(frozen=True)
class Run:
    single: list[list[int]]
    batched: list[list[int]]
    top_1: list[list[int]]
    """The beginnings, batched and sampled at a temperature, but from the one most probable token."""
    counted: dict[str, float]

    @property
    def beginnings(self) -> list[list[int]]:
        """What `top_1` is to be."""
        return [tokens[:TOP_1_TOKENS] for tokens in self.batched]

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
    short = {**GREEDY, "max_tokens": MAX_TOKENS // 2}
    one_by_one = (
        [tokens for prompt in prompts[::4] for tokens in _generate(llm, [prompt], [short])] if single else []
    )
    samplings = [{**GREEDY, "max_tokens": MAX_TOKENS}] * len(prompts)
    if top_1:
        samplings += [{**TOP_1, "max_tokens": TOP_1_TOKENS}] * len(prompts)
    batched = _generate(llm, [*prompts, *prompts][: len(samplings)], samplings)
    run = Run(
        single=one_by_one,
        batched=batched[: len(prompts)],
        top_1=batched[len(prompts) :],
        counted=_counters(llm),
    )
    del llm
    gc.collect()
    return run


def run_program(file: Path, environment: Mapping[str, str], *arguments: str, told: str = "") -> Any:
    """Return what a program in `engine/v2` found: the JSON after RESULT in the last such line it writes. It
    finds `engine` on its path, and is told something on its standard input."""
    path = [str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(file), *arguments],
        input=told,
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    said = done.stderr.partition("nanobind")[0]  # at its end Triton's library says what it leaks
    assert lines, done.stdout[-3000:] + said[-3000:]
    return json.loads(lines[-1].removeprefix("RESULT "))


def sampling_of(options: Mapping[str, Any]) -> slipstream.SamplingParams:
    """Return sampling parameters of options that may have been JSON."""
    from vllm.sampling_params import StructuredOutputsParams

    options = dict(options)
    if "structured_outputs" in options:
        options["structured_outputs"] = StructuredOutputsParams(**options["structured_outputs"])
    if "logit_bias" in options:
        options["logit_bias"] = {int(token): bias for token, bias in options["logit_bias"].items()}
    return slipstream.SamplingParams(**options)


def _generate(llm: Any, prompts: Sequence[str], samplings: Sequence[dict[str, Any]]) -> list[list[int]]:
    parameters = [slipstream.SamplingParams(**sampling) for sampling in samplings]
    outputs = llm.generate(list(prompts), parameters, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def _counters(llm: Any) -> dict[str, float]:
    return {
        metric.name.removeprefix("vllm:"): metric.value
        for metric in llm.get_metrics()
        if isinstance(getattr(metric, "value", None), int | float)
    }
