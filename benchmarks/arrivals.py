"""Requests that come one after the other, against bare vLLM: first tokens, time per token, whole answers.

    python benchmarks/arrivals.py MODEL --dtype float32 --workload edit --rate 0.8 --out FILE
    python benchmarks/arrivals.py MODEL --rate 0.5 --rate 1 --rate 2 --arms bare,throughput,fixed:5 --out FILE

They come at the same times in all arms (Poisson), however soon others are done: in a closed loop an arm that
is faster is sent more prompts a second. The arms take turns (`turns.py`), and the times are by each one's own
clock. First tokens are those of requests that join others which are being written, in every arm: these wait
for the step under way. Time per token (TPOT) is of each answer after its first token, by its tokens.
"""

import argparse
import json
import random
import sys
from collections import deque
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from turns import BARE, Arm, Turns, greedy, interval_of, run_in_turns, save, schema_of, tell

from slipstream.workloads.loading import load_workload

ARMS: dict[str, Any] = {
    BARE: "off",
    "throughput": {"objective": "throughput"},
    "latency": {"objective": "latency"},
    "fixed:3": "fixed:3",
    "fixed:5": "fixed:5",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--workload", action="append")
    parser.add_argument("--rate", type=float, action="append", help="requests a second")
    parser.add_argument("--requests", type=int, default=32, help="a round")
    parser.add_argument("--arms", default="bare,throughput,latency")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--spread", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    arms = {name: Arm(name, __file__, options.model, options.dtype) for name in options.arms.split(",")}
    cells = []
    for workload in options.workload or ["chat"]:
        loaded = load_workload(workload, options.max_tokens, options.model).spread(options.spread)
        for rate in options.rate or [1.0]:
            cells.append(measure(arms, options.rounds, options.requests, loaded, rate))
            sys.stderr.write(json.dumps({k: v for k, v in cells[-1].items() if k != "rounds"}) + "\n")
            save(options, cells)
    for arm in arms.values():
        arm.close()


def measure(arms: dict[str, Arm], rounds: int, count: int, workload: Any, rate: float) -> dict[str, Any]:
    """Run so many rounds with all arms, and one before to warm up."""
    source = cycle(workload.requests)
    runs = []
    for number in range(rounds + 1):
        clock, chance = 0.0, random.Random(number)
        asked = []
        for request in islice(source, count):
            asked.append([clock, request.messages, request.max_tokens, schema_of(request.body)])
            clock += chance.expovariate(rate)
        found = run_in_turns(arms, asked, first=number)
        if number:
            runs.append(found)
    return {"workload": workload.name, "rate": rate, **summary(runs, next(iter(arms))), "rounds": runs}


def summary(runs: list[dict[str, Any]], first: str) -> dict[str, Any]:
    """Return times by arm, and their ratios to those of the first, with intervals over rounds."""
    told: dict[str, Any] = {}
    for name in runs[0]:
        joined = [_joined(run, name) for run in runs]
        told[name] = {
            "ttft_p50": float(np.percentile(np.concatenate(joined), 50)),
            "ttft_p95": float(np.percentile(np.concatenate(joined), 95)),
            "requests": sum(map(len, joined)),
            "tpot_p50": float(np.percentile(np.concatenate([_tpot(run, name) for run in runs]), 50)),
            "tpot_p95": float(np.percentile(np.concatenate([_tpot(run, name) for run in runs]), 95)),
        }
        if name == first:
            continue
        for what, of in (("p50", 50), ("p95", 95)):
            for which, times in (("ttft", _joined), ("ttft_of_all", _all), ("tpot", _tpot)):
                told[name][f"{which}_{what}_over_{first}"] = interval_of(
                    [
                        np.percentile(times(run, name), of) / np.percentile(times(run, first), of)
                        for run in runs
                    ]
                )
        told[name][f"end_to_end_over_{first}"] = interval_of(
            [np.mean(run[name]["latency"]) / np.mean(run[first]["latency"]) for run in runs]
        )
    return {"arms": told}


def _all(run: dict[str, Any], name: str) -> list[float]:
    times: list[float] = run[name]["ttft"]
    return times


def _tpot(run: dict[str, Any], name: str) -> list[float]:
    """Return the seconds per token after the first, of each answer that has more than one."""
    found = run[name]
    return [
        (last - first) / (tokens - 1)
        for first, last, tokens in zip(found["ttft"], found["latency"], found["tokens"], strict=True)
        if tokens > 1
    ]


def _joined(run: dict[str, Any], name: str) -> list[float]:
    """Return the times of the requests that join others in every arm. A faster arm is often idle when one
    comes: those that still join others there are those that come closest together."""
    in_all = np.all([found["joined"] for found in run.values()], axis=0)
    return [seconds for seconds, joined in zip(run[name]["ttft"], in_all, strict=True) if joined]


def engine(name: str, model: str, dtype: str) -> None:
    """Write what comes in, round by round."""
    turns = Turns()
    import slipstream

    llm = slipstream.LLM(
        model, speculate=ARMS[name], dtype=dtype, enforce_eager=True, max_model_len=2048, max_num_seqs=64,
        kv_cache_memory_bytes=1 << 30, enable_prefix_caching=False, disable_log_stats=True,
    )  # fmt: skip
    tokenizer = llm.get_tokenizer()
    tell({"ready": True})
    for text in sys.stdin:
        asked = json.loads(text)
        prompts = [
            tokenizer.apply_chat_template(m, add_generation_prompt=True, tokenize=False)
            for _, m, _, _ in asked
        ]
        tokens = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
        first: dict[int, float] = {}
        last: dict[int, float] = {}
        joined: dict[int, bool] = {}
        written: dict[int, int] = {}
        waiting = deque(range(len(asked)))
        turns.wait()
        begun = turns.now()
        while waiting or llm.llm_engine.has_unfinished_requests():
            turns.between_steps()
            now = turns.now() - begun
            while waiting and asked[waiting[0]][0] <= now:
                number = waiting.popleft()
                came, _, limit, schema = asked[number]
                parameters = greedy(limit, schema)
                joined[number] = any(first[other] <= came < last.get(other, now) for other in first)
                llm.llm_engine.add_request(str(number), {"prompt_token_ids": tokens[number]}, parameters)
            if not llm.llm_engine.has_unfinished_requests():
                turns.skip(asked[waiting[0]][0] - now)
                continue
            outputs = llm.llm_engine.step()
            now = turns.now() - begun
            for output in outputs:
                number = int(output.request_id)
                first.setdefault(number, now)
                if output.finished:
                    last[number] = now
                    written[number] = len(output.outputs[0].token_ids)
        numbers = range(len(asked))
        tell(
            {
                "ttft": [round(first[number] - asked[number][0], 4) for number in numbers],
                "latency": [round(last[number] - asked[number][0], 4) for number in numbers],
                "joined": [joined[number] for number in numbers],
                "tokens": [written[number] for number in numbers],
                "seconds": round(turns.now() - begun, 3),
            }
        )


if __name__ == "__main__":
    if sys.argv[1] == "--engine":
        engine(*sys.argv[2:])
    else:
        main()
