"""What a pass of the target takes by the tokens in it: where that takes a step, the planner's profile must
measure both sides.

    python benchmarks/passes.py MODEL > benchmarks/results/passes-NAME.json
"""

import json
import re
import sys
import tempfile
from pathlib import Path

from slipstream.reporting.run_metadata import about_this_run
from slipstream.serving.arms import Arm
from slipstream.serving.servers import running

WORKER = "passes_worker.EveryCountWorker"


def main() -> None:
    model = sys.argv[1]
    flags = ["--enforce-eager", "--max-model-len", "2048", "--worker-cls", WORKER]
    arm = Arm("auto", "auto", {"PYTHONPATH": str(Path(__file__).parent)})
    with (
        tempfile.TemporaryDirectory() as folder,
        running(model, [arm], flags, Path(folder), timed=False) as servers,
    ):
        log = servers["auto"].log.read_text()
    said = re.findall(r"([\d.]+) ms for (\d+)", log)
    result = {
        "about": about_this_run(),
        "milliseconds": {int(tokens): float(milliseconds) for milliseconds, tokens in said},
    }
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
