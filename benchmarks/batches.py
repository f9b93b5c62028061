"""Offline batches, as `llm.generate(prompts)` runs them: `auto` and fixed K against bare vLLM, interleaved.

    python benchmarks/batches.py MODEL --dtype bfloat16 --workload chat --batch 32 --out FILE

Every arm is an engine of its own in a process of its own. All work on the same batch and take turns of about
a second, between two steps: on a shared machine the speed of memory changes within seconds, and batches one
after the other were seen to scatter by a quarter. In an arm's process the clock stands still while it waits,
for its planner too. All requests of a batch are there from the start and have the same limit, so the batch is
done when the slowest of them is: tokens/s are the batch's tokens over that time.

`auto@v2` and so on is the same on vLLM's V2 model runner with asynchronous scheduling
(`slipstream.testing.v2`). Speeds are over those of the first arm.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from slipstream.bench.statistics import mean_ratio
from slipstream.reporting.run_metadata import about_this_run
from slipstream.testing import v2
from slipstream.workloads.loading import load_workload

BARE = "bare"
V2 = "@v2"
PAUSED = {"paused": True}
TURN = 1.0  # seconds; a turn ends with the step that goes beyond


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
    cells = []
    for workload in options.workload or ["chat"]:
        loaded = load_workload(workload, options.max_tokens, options.model).spread(options.spread)
        for size in options.batch or [32]:
            cells.append(measure(arms, options.rounds, loaded.name, size, loaded.requests))
            sys.stderr.write(line(cells[-1]) + "\n")
            shown = {name: str(value) for name, value in vars(options).items() if name != "model"}
            found = {"about": about_this_run(), "options": shown, "cells": cells}
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    for arm in arms.values():
        arm.close()


def measure(arms: dict[str, "Arm"], rounds: int, workload: str, size: int, requests: Any) -> dict[str, Any]:
    """Run `rounds` batches with all arms, and one before to warm up."""
    source = cycle(requests)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    for number in range(rounds + 1):
        batch = [[r.messages, r.max_tokens, _schema(r.body)] for r in islice(source, size)]
        order = list(arms)[number % len(arms) :] + list(arms)[: number % len(arms)]
        for name, found in run_in_turns({name: arms[name] for name in order}, batch).items():
            if number:
                runs[name].append(found)
    cell: dict[str, Any] = {"workload": workload, "batch": size, "seconds": {}, "tokens": {}, "speedup": {}}
    for name, found in runs.items():
        cell["seconds"][name] = [round(one["seconds"], 4) for one in found]
        cell["tokens"][name] = [one["tokens"] for one in found]
        first = next(iter(runs))
        if name != first:
            ratios = [
                one["tokens"] / one["seconds"] / (bare["tokens"] / bare["seconds"])
                for one, bare in zip(found, runs[first], strict=True)
            ]
            interval = mean_ratio(ratios)
            cell["speedup"][name] = {"value": interval.value, "low": interval.low, "high": interval.high}
    cell["drafting"] = {name: found[-1]["drafting"] for name, found in runs.items()}
    return cell


def line(cell: dict[str, Any]) -> str:
    first, seconds = next(iter(cell["seconds"].items()))
    ratios = "  ".join(
        f"{name} {r['value']:.3f} [{r['low']:.3f}, {r['high']:.3f}]" for name, r in cell["speedup"].items()
    )
    told = f"{first} {statistics.median(seconds):.2f} s"
    return f"{cell['workload']:10} {cell['batch']:3}  {told}  {ratios}  {cell['drafting']}"


def run_in_turns(arms: dict[str, "Arm"], batch: Any) -> dict[str, dict[str, Any]]:
    for arm in arms.values():
        arm.send(batch)
    found: dict[str, dict[str, Any]] = {}
    while len(found) < len(arms):
        for name, arm in arms.items():
            if name not in found:
                answer = arm.take_turn()
                if answer != PAUSED:
                    found[name] = answer
    return found


def _schema(body: Mapping[str, Any]) -> Any:
    form = body.get("response_format")
    return None if form is None else form["json_schema"]["schema"]


class Arm:
    """A process with an engine."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        environment = dict(os.environ)
        if name.endswith(V2):
            environment = v2.environment(environment)
        if options.trace and not name.startswith(BARE):
            options.trace.mkdir(parents=True, exist_ok=True)
            environment["SLIPSTREAM_TRACE"] = str(options.trace / f"{name.replace(':', '-')}.jsonl")
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--engine", name, options.model, options.dtype, str(options.seqs)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self._answer()

    def send(self, what: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def take_turn(self) -> dict[str, Any]:
        """Let it run until its turn or its batch is over, and return which."""
        self.send("go")
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


class Turns:
    """The side of an engine: it waits between two steps when its turn is over, and its clock stands still."""

    def __init__(self) -> None:
        self._clock = time.perf_counter
        self._waited = 0.0
        self._begun = 0.0
        time.perf_counter = self.now  # type: ignore[assignment]

    def now(self) -> float:
        return self._clock() - self._waited

    def wait(self) -> None:
        begun = self._clock()
        assert json.loads(sys.stdin.readline()) == "go"
        self._waited += self._clock() - begun
        self._begun = self.now()

    def between_steps(self) -> None:
        if self.now() - self._begun > TURN:
            tell(PAUSED)
            self.wait()


def tell(what: dict[str, Any]) -> None:
    sys.stdout.write(f"ANSWER {json.dumps(what)}\n")
    sys.stdout.flush()


def engine(name: str, model: str, dtype: str, seqs: str) -> None:
    """Run batches as they come in."""
    turns = Turns()
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    import slipstream
    from slipstream.replay.recorder import TraceRecorder

    arguments: dict[str, Any] = {
        "dtype": dtype, "enforce_eager": True, "max_model_len": 2048, "max_num_seqs": int(seqs),
        "kv_cache_memory_bytes": 1 << 30, "disable_log_stats": True,
    }  # fmt: skip
    # With `off` it is vLLM as it is, but with the same threads and libraries for all arms.
    speculate = name.removesuffix(V2)
    arguments["async_scheduling"] = name.endswith(V2)
    llm = slipstream.LLM(model, speculate="off" if speculate == BARE else speculate, **arguments)
    step = llm.llm_engine.step

    def in_turn() -> Any:
        turns.between_steps()
        return step()

    llm.llm_engine.step = in_turn  # type: ignore[method-assign]
    unwritten: list[TraceRecorder] = []
    write = TraceRecorder.write_requests
    TraceRecorder.write_requests = lambda recorder: unwritten.append(recorder)  # type: ignore[method-assign]
    tell({"ready": True})
    before = {"draft_tokens": 0, "accepted_tokens": 0}
    for text in sys.stdin:
        batch = json.loads(text)
        parameters = [
            SamplingParams(
                temperature=0, max_tokens=limit,
                structured_outputs=None if schema is None else StructuredOutputsParams(json=schema),
            )
            for _, limit, schema in batch
        ]  # fmt: skip
        turns.wait()
        begun = turns.now()
        outputs = llm.chat([messages for messages, _, _ in batch], parameters, use_tqdm=False)
        seconds = turns.now() - begun
        told: dict[str, Any] = {
            "seconds": seconds,
            "tokens": sum(len(o.outputs[0].token_ids) for o in outputs),
        }
        while unwritten:
            write(unwritten.pop())
        told["drafting"] = None
        if speculate != BARE:
            report = slipstream.drafting_report(llm)
            now = {key: sum(report[key].values()) for key in before}
            planner = report.get("planner") or {}
            told["drafting"] = {
                **{key: now[key] - before[key] for key in before},
                "pauses": planner.get("pauses"), "loss": round(planner.get("loss") or 0.0, 3),
            }  # fmt: skip
            before = now
        tell(told)


if __name__ == "__main__":
    if sys.argv[1] == "--engine":
        engine(*sys.argv[2:])
    else:
        main()
