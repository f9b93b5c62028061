"""Plain vLLM, started without Slipstream, with SLIPSTREAM in its environment."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from e2e.server import QUICK, SMALL

PROGRAM = """
import json, os, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    llm = LLM(dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=8, disable_log_stats=False,
              kv_cache_memory_bytes=64 * 1024**2, **asked)
    sampling = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    outputs = llm.generate(["one two one two one", "a b c a b c a"], sampling, use_tqdm=False)
    config = llm.llm_engine.vllm_config
    counted = {m.name: getattr(m, "value", 0) for m in llm.get_metrics()}
    print("RESULT " + json.dumps({
        "texts": [list(o.outputs[0].token_ids) for o in outputs],
        "scheduler": config.scheduler_config.get_scheduler_cls().__module__,
        "accepted": counted.get("vllm:spec_decode_num_accepted_tokens", 0),
        "settings": config.additional_config.get("slipstream") if config.additional_config else None,
        "modules": sorted(m for m in sys.modules if m.startswith("slipstream")),
    }))
"""

ASYNC_PROGRAM = """
import asyncio, json, sys
from prometheus_client import REGISTRY
from vllm import AsyncEngineArgs, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

async def write(engine, number, prompt):
    sampling = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    async for output in engine.generate(prompt, sampling, str(number)):
        tokens = list(output.outputs[0].token_ids)
    return tokens

async def main():
    asked = json.loads(sys.argv[1])
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(
        dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=8,
        kv_cache_memory_bytes=64 * 1024**2, **asked))
    prompts = ["one two one two one", "a b c a b c a"]
    texts = await asyncio.gather(*(write(engine, *numbered) for numbered in enumerate(prompts)))
    samples = [sample for metric in REGISTRY.collect() for sample in metric.samples]
    print("RESULT " + json.dumps({
        "texts": texts,
        "accepted": sum(s.value for s in samples if s.name == "vllm:spec_decode_num_accepted_tokens_total"),
    }))
    engine.shutdown()

if __name__ == "__main__":
    asyncio.run(main())
"""


def run(
    model: str,
    environ: Mapping[str, str],
    base: Mapping[str, str] = QUICK,
    program: str = PROGRAM,
    **arguments: Any,
) -> tuple[dict[str, Any], str]:
    """Return what plain vLLM did in a process of its own, and what it logged."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLIPSTREAM")}
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps({"model": model, **arguments})],
        env={**environment, **base, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(lines[-1].removeprefix("RESULT ")) if lines else {}, done.stdout + done.stderr


@pytest.fixture(scope="module")
def bare(tiny_llama: str) -> dict[str, Any]:
    return run(tiny_llama, {})[0]


def test_without_it_nothing_of_ours_is_loaded(bare: dict[str, Any]) -> None:
    assert bare["scheduler"].startswith("vllm.")
    assert bare["modules"] == [
        "slipstream",
        "slipstream.engine",
        "slipstream.engine.plugin",
        "slipstream.version",
    ]


def test_it_speculates_and_writes_the_same(tiny_llama: str, bare: dict[str, Any]) -> None:
    """With processes that are spawned, as a user's are."""
    found, log = run(tiny_llama, {"SLIPSTREAM": "fixed:3"}, SMALL)
    assert found, log[-3000:]
    assert found["scheduler"] == "slipstream.engine.core.scheduler"
    assert found["texts"] == bare["texts"]
    assert found["accepted"] > 0
    assert found["settings"]["objective"] == "makespan"


def test_an_async_engine_speculates_and_writes_the_same(tiny_llama: str, bare: dict[str, Any]) -> None:
    found, log = run(tiny_llama, {"SLIPSTREAM": "fixed:3"}, program=ASYNC_PROGRAM)
    assert found, log[-3000:]
    assert found["texts"] == bare["texts"]
    assert found["accepted"] > 0


def test_what_does_not_fit_is_bare_vllm_and_one_warning(tiny_llama: str, bare: dict[str, Any]) -> None:
    found, log = run(tiny_llama, {"SLIPSTREAM": "fixed:no"})
    assert found["texts"] == bare["texts"]
    assert found["scheduler"].startswith("vllm.")
    assert log.count("Slipstream is off") == 1
    found, log = run(tiny_llama, {"SLIPSTREAM": "fixed:no", "SLIPSTREAM_REQUIRED": "1"})
    assert not found
    assert "fixed:no" in log


def test_vllms_own_arguments_are_in_place_of_auto(tiny_llama: str, bare: dict[str, Any]) -> None:
    found, log = run(tiny_llama, {"SLIPSTREAM": "auto"}, spec_method="ngram", spec_tokens=2)
    assert found, log[-3000:]
    assert found["texts"] == bare["texts"]
    assert found["scheduler"] == "slipstream.engine.core.scheduler"


def test_what_vllm_refuses_is_bare_vllm(tiny_llama: str, bare: dict[str, Any]) -> None:
    """With LoRA vLLM wants room for all drafts of all requests in a step."""
    small: dict[str, Any] = {
        "enable_lora": True,
        "max_num_batched_tokens": 16,
        "enable_chunked_prefill": True,
    }
    found, log = run(tiny_llama, {"SLIPSTREAM": "auto"}, **small)
    assert found, log[-3000:]
    assert found["texts"] == bare["texts"]
    assert found["scheduler"].startswith("vllm.")
    assert log.count("Slipstream is off") == 1
