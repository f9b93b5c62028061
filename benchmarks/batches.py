"""Offline batches, as `llm.generate(prompts)` runs them: `auto` and fixed K against bare vLLM, interleaved.

    python benchmarks/batches.py MODEL --dtype bfloat16 --workload chat --batch 32 --out FILE

The arms take turns (`turns.py`). All requests of a batch are there from the start and have the same limit, so
the batch is done when the slowest of them is: tokens/s are the batch's tokens over that time.

Speeds are over those of the first arm.
"""

import argparse
import json
import statistics
import sys
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from turns import BARE, Arm, Turns, greedy, interval_of, run_in_turns, save, schema_of, tell

from slipstream.workloads.loading import load_workload


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
    arguments = (options.model, options.dtype, str(options.seqs))
    arms = {name: Arm(name, __file__, *arguments, trace=options.trace) for name in names}
    cells = []
    for workload in options.workload or ["chat"]:
        loaded = load_workload(workload, options.max_tokens, options.model).spread(options.spread)
        for size in options.batch or [32]:
            cells.append(measure(arms, options.rounds, loaded.name, size, loaded.requests))
            sys.stderr.write(line(cells[-1]) + "\n")
            save(options, cells)
    for arm in arms.values():
        arm.close()


def measure(arms: dict[str, "Arm"], rounds: int, workload: str, size: int, requests: Any) -> dict[str, Any]:
    """Run `rounds` batches with all arms, and one before to warm up."""
    source = cycle(requests)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    for number in range(rounds + 1):
        batch = [[r.messages, r.max_tokens, schema_of(r.body)] for r in islice(source, size)]
        for name, found in run_in_turns(arms, batch, first=number).items():
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
            cell["speedup"][name] = interval_of(ratios)
    cell["drafting"] = {name: found[-1]["drafting"] for name, found in runs.items()}
    return cell


def line(cell: dict[str, Any]) -> str:
    first, seconds = next(iter(cell["seconds"].items()))
    ratios = "  ".join(
        f"{name} {r['value']:.3f} [{r['low']:.3f}, {r['high']:.3f}]" for name, r in cell["speedup"].items()
    )
    told = f"{first} {statistics.median(seconds):.2f} s"
    return f"{cell['workload']:10} {cell['batch']:3}  {told}  {ratios}  {cell['drafting']}"


def engine(name: str, model: str, dtype: str, seqs: str) -> None:
    """Run batches as they come in."""
    turns = Turns()
    import slipstream
    from slipstream.replay.recorder import TraceRecorder

    arguments: dict[str, Any] = {
        "dtype": dtype, "enforce_eager": True, "max_model_len": 2048, "max_num_seqs": int(seqs),
        "kv_cache_memory_bytes": 1 << 30, "disable_log_stats": True, "async_scheduling": False,
    }  # fmt: skip
    # With `off` it is vLLM as it is, but with the same threads and libraries for all arms.
    llm = slipstream.LLM(model, speculate="off" if name == BARE else name, **arguments)
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
        parameters = [greedy(limit, schema) for _, limit, schema in batch]
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
        if name != BARE:
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
