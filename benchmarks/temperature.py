"""How many draft tokens are accepted by temperature, where drafts are argmax and where they are sampled. In
counts: no times are taken.

    python benchmarks/temperature.py [MODEL DRAFTER] --out FILE

A draft model drafts K tokens at every step and all are verified, on vLLM's V2 model runner with asynchronous
scheduling (`slipstream.testing.v2`). A sampled draft is drawn from the drafter's distribution q at the
request's temperature and accepted with probability min(1, p/q), an argmax draft with p. Intervals are over
prompts, which are the same for both. Without models, SmolLM2 drafts with its own first layers.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.bench.statistics import Interval
from slipstream.reporting.run_metadata import about_this_run
from slipstream.testing import models, v2
from slipstream.workloads.loading import load_workloads

TEMPERATURES = (0.0, 0.3, 0.7, 1.0)
METHODS = {"argmax": "greedy", "sampled": "probabilistic"}
AT_ONCE = 8
RESAMPLES = 10_000


def engine(asked: dict[str, Any], method: str) -> None:
    """Write at every temperature and print how many tokens of each prompt's drafts were accepted: runs in a
    process of its own, whose environment is that of V2."""
    import slipstream

    speculate = {
        "mode": "fixed", "num_draft_tokens": asked["draft_tokens"], "drafter": {"model": asked["drafter"]},
        "plugins": {"slipstream.testing.proposers.Silent": {}},  # alone, the drafter would not be counted
        "vllm": {"draft_sample_method": METHODS[method]},
    }  # fmt: skip
    llm = slipstream.LLM(
        asked["model"], speculate=speculate, dtype=asked["dtype"], enforce_eager=True, async_scheduling=True,
        max_model_len=2048, max_num_seqs=AT_ONCE, kv_cache_memory_bytes=512 << 20, seed=0,
    )  # fmt: skip
    drafter = llm.llm_engine.engine_core.engine_core.scheduler._device_drafter
    learn = drafter.learn
    drafts: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)

    def seen(request_id: str, verified: int, accepted: int) -> None:
        drafts[int(request_id.partition("-")[0])].append((verified, accepted))
        learn(request_id, verified, accepted)

    drafter.learn = seen
    workloads = load_workloads(asked["workloads"], asked["max_tokens"], asked["model"])
    conversations = [
        list(request.messages or [])
        for workload in workloads
        for request in workload.requests[: asked["requests"]]
    ]
    for temperature in TEMPERATURES:
        sampling = slipstream.SamplingParams(temperature=temperature, max_tokens=asked["max_tokens"])
        llm.chat(conversations, sampling, use_tqdm=False)
    count = len(conversations)
    found = [
        [drafts[place * count + number] for number in range(count)] for place in range(len(TEMPERATURES))
    ]
    report = slipstream.drafting_report(llm)["draft_tokens"]
    assert report == {drafter.name: sum(n for of in drafts.values() for n, _ in of)}, report
    sys.stdout.write(f"\nRESULT {json.dumps(found)}\n")


def counts_of(prompts: list[list[tuple[int, int]]], draft_tokens: int) -> NDArray[np.int64]:
    """Return [prompts, K, 3]: tokens at that position that were verified, judged (those before them were
    accepted) and accepted."""
    counts = np.zeros((len(prompts), draft_tokens, 3), np.int64)
    for number, drafts in enumerate(prompts):
        for verified, accepted in drafts:
            counts[number, :verified, 0] += 1
            counts[number, : min(accepted + 1, verified), 1] += 1
            counts[number, :accepted, 2] += 1
    return counts


def compare(by_method: dict[str, NDArray[np.int64]]) -> dict[str, Any]:
    """Return the acceptance of every method and the difference of the second to the first, with 95% intervals
    over prompts."""
    found: dict[str, Any] = {}
    shares = {}
    for method, counts in by_method.items():
        drafted, accepted = counts[:, :, 0].sum(1), counts[:, :, 2].sum(1)
        picked = np.random.default_rng(0).integers(len(counts), size=(RESAMPLES, len(counts)))
        resampled = accepted[picked].sum(1) / drafted[picked].sum(1)
        shares[method] = np.append(resampled, accepted.sum() / drafted.sum())
        judged, kept = counts[:, :, 1].sum(0), counts[:, :, 2].sum(0)
        found[method] = {
            "drafts": int(counts[:, 0, 0].sum()),
            "draft_tokens": int(drafted.sum()),
            "accepted_tokens": int(accepted.sum()),
            "acceptance": interval_of(shares[method]),
            "by_position": (kept / np.maximum(judged, 1)).round(4).tolist(),
            "tokens_per_draft": round(1 + float(accepted.sum() / counts[:, 0, 0].sum()), 4),
        }
    first, second = shares
    found[f"{second} - {first}"] = interval_of(shares[second] - shares[first])
    return found


def interval_of(resampled: NDArray[np.float64]) -> dict[str, float]:
    """Return the last of these values, which is of all prompts as they are, with the others' interval."""
    low, high = np.quantile(resampled[:-1], (0.025, 0.975))
    values = Interval(float(resampled[-1]), float(low), float(high)).as_dict()
    return {name: round(value, 4) for name, value in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("drafter", nargs="?")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--workload", action="append")
    parser.add_argument("--requests", type=int, default=24, help="of each workload, at each temperature")
    parser.add_argument("--draft-tokens", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    asked = {
        "model": options.model or str(models.smollm2()),
        "drafter": options.drafter or str(models.drafter()),
        "dtype": options.dtype,
        "workloads": options.workload or ["chat", "code"],
        "requests": options.requests,
        "draft_tokens": options.draft_tokens,
        "max_tokens": options.max_tokens,
    }
    environment = v2.environment({**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
    counts: dict[str, list[NDArray[np.int64]]] = {}
    for method in METHODS:
        command = [sys.executable, __file__, "--engine", json.dumps(asked), method]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
        by_temperature = json.loads(line.removeprefix("RESULT "))
        counts[method] = [counts_of(prompts, options.draft_tokens) for prompts in by_temperature]
    found = {
        "about": about_this_run(),
        **{name: asked[name] for name in ("workloads", "requests", "draft_tokens", "max_tokens", "dtype")},
        "temperatures": {
            str(temperature): compare({method: of[place] for method, of in counts.items()})
            for place, temperature in enumerate(TEMPERATURES)
        },
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    sys.stderr.write(json.dumps(found["temperatures"], indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--engine"]:
        engine(json.loads(sys.argv[2]), sys.argv[3])
    else:
        main()
