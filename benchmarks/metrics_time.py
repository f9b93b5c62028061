"""What the metrics cost: the engine is asked for its counts once a second, and the server exports them.

    python benchmarks/metrics_time.py MODEL --out FILE

An engine in this process writes for 32 requests at once, and is asked after every step. `counts` is in the
engine's process, between two steps; `export` in the API server's.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from slipstream.reporting.run_metadata import about_this_run
from slipstream.workloads.loading import load_workload

REQUESTS = 32
MAX_TOKENS = 48


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import msgspec
    import prometheus_client

    import slipstream
    from slipstream.engine.server.metrics import SECONDS, Exporter

    llm = slipstream.LLM(
        options.model, dtype="float32", enforce_eager=True, max_model_len=2048, max_num_seqs=REQUESTS,
        kv_cache_memory_bytes=1 << 30,
    )  # fmt: skip
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    exporter = Exporter("m", prometheus_client.CollectorRegistry())
    times: dict[str, list[float]] = {"step": [], "counts": [], "export": []}
    step = llm.llm_engine.step

    def asked_after() -> Any:
        begun = time.perf_counter()
        outputs = step()
        stepped = time.perf_counter()
        counts = msgspec.msgpack.decode(msgspec.msgpack.encode(scheduler.counts()))
        counted = time.perf_counter()
        exporter.export("0", counts)
        times["step"].append(stepped - begun)
        times["counts"].append(counted - stepped)
        times["export"].append(time.perf_counter() - counted)
        return outputs

    llm.llm_engine.step = asked_after  # type: ignore[method-assign]
    requests = load_workload("edit", MAX_TOKENS, options.model).take(0, 2 * REQUESTS)
    sampling = slipstream.SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    llm.chat([list(request.messages or []) for request in requests], sampling, use_tqdm=False)
    seconds = {name: statistics.median(values) for name, values in times.items()}
    found = {
        "about": about_this_run(), "requests": REQUESTS, "steps": len(times["step"]),
        "seconds between two questions": SECONDS,
        "microseconds": {name: round(value * 1e6) for name, value in seconds.items()},
        "share of the engine's time": round(seconds["counts"] / SECONDS, 6),
        "share of a step that is asked in": round(seconds["counts"] / seconds["step"], 6),
    }  # fmt: skip
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    sys.stderr.write(json.dumps({k: v for k, v in found.items() if k != "about"}, indent=1) + "\n")


if __name__ == "__main__":
    main()
