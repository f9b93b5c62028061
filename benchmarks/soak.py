"""Two tensor-parallel ranks under changing load for some minutes: every rank writes down what it verified and
what it sampled in each step, and they must agree.

    python benchmarks/soak.py TARGET DRAFTER MINUTES OUT
"""

import json
import random
import sys
import time
from pathlib import Path

WORKER = "soak_worker.RecordingWorker"
SEED = 0


def main() -> None:
    from slipstream.reporting.run_metadata import about_this_run
    from slipstream.serving.arms import Arm
    from slipstream.serving.client import Served
    from slipstream.serving.servers import running
    from slipstream.verify.checks import conversations

    target, drafter, minutes, out = sys.argv[1], sys.argv[2], float(sys.argv[3]), Path(sys.argv[4])
    out.mkdir(parents=True, exist_ok=True)
    environment = {"SOAK_FOLDER": str(out.resolve()), "PYTHONPATH": str(Path(__file__).parent)}
    arm = Arm("auto", json.dumps({"drafter": {"model": drafter}}), environment)
    flags = [
        "--tensor-parallel-size", "2", "--enforce-eager", "--max-model-len", "2048", "--worker-cls", WORKER,
        "--gpu-memory-utilization", "0.5",
    ]  # fmt: skip
    source = random.Random(SEED)
    asked = 0
    with running(target, [arm], flags, out / "servers", timed=False) as servers:
        served = Served(servers["auto"].url)
        prompts = conversations(served, 48, ["edit", "chat", "code"])
        ends = time.monotonic() + 60 * minutes
        while time.monotonic() < ends:
            at_once = source.choice((1, 2, 4, 8, 16))
            requests = [
                {"prompt": source.choice(prompts), "max_tokens": source.randrange(8, 64),
                 "temperature": source.choice((0, 0, 1))}
                for _ in range(at_once)
            ]  # fmt: skip
            asked += len(served.ask(requests, at_once))
        counters = served.counters()
    ranks = [(out / f"rank-{rank}.txt").read_text().split() for rank in (0, 1)]
    steps = min(map(len, ranks))
    result = {
        "about": about_this_run(),
        "minutes": minutes,
        "requests": asked,
        "steps": steps,
        "steps_with_drafts": sum(not step.startswith("0:") for step in ranks[0][:steps]),
        "steps_in_which_ranks_differ": sum(a != b for a, b in zip(*ranks, strict=False)),
        "counters": counters,
    }
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
