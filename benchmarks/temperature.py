"""How many draft tokens are accepted by temperature, where drafts are argmax and where they are sampled.

    python benchmarks/temperature.py MODEL DRAFTER --out FILE

A draft model drafts K tokens at every step, alone, and all are verified, on vLLM's V2 model runner with
asynchronous scheduling (`slipstream.testing.v2`). A sampled draft is drawn from the drafter's distribution at
the request's temperature, and accepted with probability min(1, p/q).
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.reporting.run_metadata import about_this_run
from slipstream.testing import v2
from slipstream.workloads.loading import load_workload

TEMPERATURES = (0.0, 0.3, 0.7, 1.0)
METHODS = {"argmax": "greedy", "sampled": "probabilistic"}
DRAFT_TOKENS = 3
GROUP = 8  # requests; acceptance is counted by group, for its interval


def engine(method: str, model: str, drafter: str, workload: str, count: str, max_tokens: str) -> None:
    """Write at every temperature, in a process of its own, and print what was drafted and accepted."""
    import slipstream

    speculate = {
        "mode": "fixed", "num_draft_tokens": DRAFT_TOKENS, "drafter": {"model": drafter},
        "vllm": {"draft_sample_method": METHODS[method]},
    }  # fmt: skip
    llm = slipstream.LLM(
        model, speculate=speculate, dtype="float32", enforce_eager=True, async_scheduling=True,
        max_model_len=2048, max_num_seqs=GROUP, kv_cache_memory_bytes=512 << 20, disable_log_stats=False,
        seed=0,
    )  # fmt: skip
    requests = load_workload(workload, int(max_tokens), model).take(0, int(count))
    found = {}
    for temperature in TEMPERATURES:
        sampling = slipstream.SamplingParams(temperature=temperature, max_tokens=int(max_tokens))
        groups = []
        for start in range(0, len(requests), GROUP):
            before = counted(llm)
            messages = [list(request.messages or []) for request in requests[start : start + GROUP]]
            llm.chat(messages, sampling, use_tqdm=False)
            groups.append([now - then for now, then in zip(counted(llm), before, strict=True)])
        found[str(temperature)] = groups
    sys.stdout.write(f"\nRESULT {json.dumps(found)}\n")


def counted(llm: Any) -> tuple[int, int, int]:
    """Return how many drafts, draft tokens and accepted tokens there were."""
    metrics = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    prefix = "vllm:spec_decode_num_"
    return tuple(metrics[prefix + name] for name in ("drafts", "draft_tokens", "accepted_tokens"))  # type: ignore[return-value]


def summary(groups: list[list[int]]) -> dict[str, Any]:
    """Return the share of draft tokens accepted and tokens per pass, with a 95% interval over groups."""
    drafts, drafted, accepted = (np.array(column, float) for column in zip(*groups, strict=True))
    chance = np.random.default_rng(0)
    picked = chance.integers(0, len(groups), (2000, len(groups)))
    shares = accepted[picked].sum(1) / drafted[picked].sum(1)
    low, high = np.percentile(shares, (2.5, 97.5))
    return {
        "drafts": int(drafts.sum()),
        "accepted": round(float(accepted.sum() / drafted.sum()), 4),
        "low": round(float(low), 4),
        "high": round(float(high), 4),
        "tokens per pass": round(float(1 + accepted.sum() / drafts.sum()), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("drafter")
    parser.add_argument("--workload", default="chat")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found: dict[str, Any] = {"about": about_this_run(), "num_draft_tokens": DRAFT_TOKENS}
    environment = v2.environment({**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
    asked = [options.model, options.drafter, options.workload, str(options.requests), str(options.max_tokens)]
    for method in METHODS:
        command = [sys.executable, __file__, "--engine", method, *asked]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
        by_temperature = json.loads(line.removeprefix("RESULT "))
        found[method] = {temperature: summary(groups) for temperature, groups in by_temperature.items()}
        sys.stderr.write(json.dumps({method: found[method]}, indent=1) + "\n")
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "--engine":
        engine(*sys.argv[2:])
    else:
        main()
