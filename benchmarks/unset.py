"""What the installed package costs a vLLM that does not speculate: SLIPSTREAM is not set.

    python benchmarks/unset.py MODEL --without PYTHON --out FILE

PYTHON is of an environment with the same packages but this one: `scripts/dev-setup` builds one below the
clone's. Both start plain vLLM, one after the other, and then write the same text in turns.
"""

import argparse
import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turns import Engine, interval_of

from slipstream.reporting.run_metadata import about_this_run

PROGRAM = """
import json, sys, time
begun = time.perf_counter()
from vllm import LLM, SamplingParams
imported = time.perf_counter()
llm = LLM(sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=512, max_num_seqs=8,
          kv_cache_memory_bytes=128 * 1024**2)
started = time.perf_counter()
prompt = {"prompt_token_ids": list(range(100, 132))}
steps, step = [], llm.llm_engine.step
def timed():
    before = time.perf_counter()
    outputs = step()
    steps.append(time.perf_counter() - before)
    return outputs
llm.llm_engine.step = timed
def tell(what):
    print("ANSWER " + json.dumps(what), flush=True)
tell({"import": imported - begun, "start": started - imported})
for _ in sys.stdin:
    steps.clear()
    sampling = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    outputs = llm.generate([prompt], sampling, use_tqdm=False)
    tell({
        "steps": steps[1:], "tokens": list(outputs[0].outputs[0].token_ids),
        "modules": sorted(name for name in sys.modules if name.partition(".")[0] == "slipstream"),
    })
"""
TEXTS = 8
"""Written by each engine in a round, in turns; the first warms it up."""


def start(python: str, model: str) -> Engine:
    """Start a plain vLLM, all in one process."""
    environment = {
        name: value for name, value in os.environ.items()
        if not name.startswith("SLIPSTREAM") and name != "PYTHONPATH"
    }  # fmt: skip
    return Engine([python, "-c", PROGRAM, model], environment)


def run_round(pythons: Mapping[str, str], order: Sequence[str], model: str) -> dict[str, dict[str, Any]]:
    """Start an engine of each, one after the other, and let them write in turns."""
    engines = {name: start(pythons[name], model) for name in order}
    found = {name: {**engine.start, "steps": []} for name, engine in engines.items()}
    for number in range(TEXTS):
        for name in order if number % 2 else reversed(order):
            answer = engines[name].ask("write")
            found[name] |= {"tokens": answer["tokens"], "modules": answer["modules"]}
            if number:
                found[name]["steps"] += answer["steps"]
    for engine in engines.values():
        engine.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--without", required=True, help="a Python with vLLM that does not have Slipstream")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    pythons = {"without": options.without, "installed": sys.executable}
    rounds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for number in range(options.rounds + 1):
        ran = run_round(pythons, sorted(pythons, reverse=bool(number % 2)), options.model)
        if number:  # the first fills caches
            for name, found in ran.items():
                rounds[name].append(found)
        sys.stderr.write(f"{number} of {options.rounds}\n")
    modules = {name: runs[0]["modules"] for name, runs in rounds.items()}
    assert not modules["without"], modules
    texts = {tuple(one["tokens"]) for runs in rounds.values() for one in runs}
    seconds = {
        name: {
            "import": [round(one["import"], 3) for one in runs],
            "start": [round(one["start"], 3) for one in runs],
            "step": [round(statistics.median(one["steps"]), 6) for one in runs],
        }
        for name, runs in rounds.items()
    }
    over = {
        what: interval_of(
            [a / b for a, b in zip(seconds["installed"][what], seconds["without"][what], strict=True)]
        )
        for what in ("import", "start", "step")
    }
    result = {
        "about": about_this_run(), "modules": modules["installed"], "texts are equal": len(texts) == 1,
        "installed over without": over, "seconds": seconds,
    }  # fmt: skip
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.stderr.write(json.dumps({**over, "equal": len(texts) == 1}, indent=1) + "\n")


if __name__ == "__main__":
    main()
