"""Offline batches, as `llm.generate(prompts)` runs them: `auto` and fixed K against bare vLLM, interleaved.

    python benchmarks/batches.py MODEL --dtype bfloat16 --workload chat --batch 32 --out FILE

Every arm is an engine of its own in a process of its own; one runs while the others wait. All requests of a
batch are there from the start and have the same limit, so the batch is done when the slowest of them is:
tokens/s are the batch's tokens over that time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from slipstream.bench.statistics import mean_ratio
from slipstream.reporting.run_metadata import about_this_run
from slipstream.workloads.loading import load_workload

BARE = "bare"
PAUSE, TRACE_PAUSE = 0.5, 3.0  # seconds between arms, until threads that wait for work sleep


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--workload", action="append")
    parser.add_argument("--batch", action="append", type=int)
    parser.add_argument("--arms", default="bare,auto,fixed:3")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--spread", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trace", type=Path, help="folder: record every arm but bare")
    parser.add_argument("--seqs", type=int, default=64)
    options = parser.parse_args()
    names = options.arms.split(",")
    arms = {name: Arm(name, options) for name in names}
    pause = TRACE_PAUSE if options.trace else PAUSE
    cells = []
    for workload in options.workload or ["chat"]:
        loaded = load_workload(workload, options.max_tokens, options.model).spread(options.spread)
        for size in options.batch or [32]:
            cells.append(measure(arms, options.rounds, pause, loaded.name, size, loaded.requests))
            sys.stderr.write(line(cells[-1]) + "\n")
            shown = {name: str(value) for name, value in vars(options).items() if name != "model"}
            found = {"about": about_this_run(), "options": shown, "cells": cells}
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    for arm in arms.values():
        arm.close()


def measure(
    arms: dict[str, "Arm"], rounds: int, pause: float, workload: str, size: int, requests: Any
) -> dict[str, Any]:
    """Run `rounds` batches with every arm, in turn first, and one before to warm up."""
    source = cycle(requests)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    for number in range(rounds + 1):
        batch = [[r.messages, r.max_tokens] for r in islice(source, size)]
        order = list(arms)[number % len(arms) :] + list(arms)[: number % len(arms)]
        for name in order:
            found = arms[name].run(batch)
            time.sleep(pause)
            if number:
                runs[name].append(found)
    cell: dict[str, Any] = {"workload": workload, "batch": size, "seconds": {}, "tokens": {}, "speedup": {}}
    for name, found in runs.items():
        cell["seconds"][name] = [round(one["seconds"], 4) for one in found]
        cell["tokens"][name] = [one["tokens"] for one in found]
        if name != BARE and BARE in runs:
            ratios = [
                one["tokens"] / one["seconds"] / (bare["tokens"] / bare["seconds"])
                for one, bare in zip(found, runs[BARE], strict=True)
            ]
            interval = mean_ratio(ratios)
            cell["speedup"][name] = {"value": interval.value, "low": interval.low, "high": interval.high}
    cell["drafting"] = {name: found[-1]["drafting"] for name, found in runs.items()}
    return cell


def line(cell: dict[str, Any]) -> str:
    seconds = statistics.median(cell["seconds"].get(BARE, [0.0]))
    ratios = "  ".join(
        f"{name} {r['value']:.3f} [{r['low']:.3f}, {r['high']:.3f}]" for name, r in cell["speedup"].items()
    )
    return f"{cell['workload']:10} {cell['batch']:3}  bare {seconds:.2f} s  {ratios}  {cell['drafting']}"


class Arm:
    """A process with an engine."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        environment = dict(os.environ)
        if options.trace and name != BARE:
            options.trace.mkdir(parents=True, exist_ok=True)
            environment["SLIPSTREAM_TRACE"] = str(options.trace / f"{name.replace(':', '-')}.jsonl")
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--engine", name, options.model, options.dtype, str(options.seqs)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self._answer()

    def run(self, batch: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(batch) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            if text.startswith("ANSWER "):
                found: dict[str, Any] = json.loads(text.removeprefix("ANSWER "))
                return found
        raise SystemExit("an engine ended")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def engine(name: str, model: str, dtype: str, seqs: str) -> None:
    """Run batches as they come in."""
    from vllm import SamplingParams

    import slipstream

    arguments: dict[str, Any] = {
        "dtype": dtype, "enforce_eager": True, "max_model_len": 2048, "max_num_seqs": int(seqs),
        "kv_cache_memory_bytes": 1 << 30, "disable_log_stats": True,
    }  # fmt: skip
    # With `off` it is vLLM as it is, but with the same threads and libraries for all arms.
    llm = slipstream.LLM(model, speculate="off" if name == BARE else name, **arguments)
    sys.stdout.write('ANSWER {"ready": true}\n')
    sys.stdout.flush()
    before = {"draft_tokens": 0, "accepted_tokens": 0}
    for text in sys.stdin:
        batch = json.loads(text)
        limits = [SamplingParams(temperature=0, max_tokens=limit) for _, limit in batch]
        begun = time.perf_counter()
        outputs = llm.chat([messages for messages, _ in batch], limits, use_tqdm=False)
        seconds = time.perf_counter() - begun
        told: dict[str, Any] = {
            "seconds": seconds,
            "tokens": sum(len(o.outputs[0].token_ids) for o in outputs),
        }
        told["drafting"] = None
        if name != BARE:
            report = slipstream.drafting_report(llm)
            now = {key: sum(report[key].values()) for key in before}
            planner = report.get("planner") or {}
            told["drafting"] = {
                **{key: now[key] - before[key] for key in before},
                "pauses": planner.get("pauses"), "loss": round(planner.get("loss") or 0.0, 3),
            }  # fmt: skip
            before = now
        sys.stdout.write(f"ANSWER {json.dumps(told)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "--engine":
        engine(*sys.argv[2:])
    else:
        main()
