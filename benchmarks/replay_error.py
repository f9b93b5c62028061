"""How near a replay comes to what was measured: every trace replayed under the policy that was recorded.

For traces of batches (`batches.py --trace`): a batch comes when the one before it is done.

python benchmarks/replay_error.py NAME=POLICY=TRACE ... > benchmarks/results/replay-error.json
"""

import json
import sys
from pathlib import Path

from slipstream.replay.simulator import measured, replay
from slipstream.replay.trace import read_trace
from slipstream.reporting.run_metadata import about_this_run


def main() -> None:
    rows = []
    for argument in sys.argv[1:]:
        name, policy, path = argument.split("=")
        trace = read_trace(Path(path))
        real, simulated = measured(trace), replay(trace, policy, closed_loop=True)
        rows.append({
            "run": name, "policy": policy, "objective": str(trace.objective), "requests": len(trace.requests),
            "tokens": [real.tokens, simulated.tokens],
            "steps": [real.steps, simulated.steps],
            "draft_tokens": [real.draft_tokens, simulated.draft_tokens],
            "tokens_per_second": [real.tokens_per_second, simulated.tokens_per_second],
            "error": simulated.tokens_per_second / real.tokens_per_second - 1,
        })  # fmt: skip
        sys.stderr.write(f"{name:32} {policy:8} {rows[-1]['error']:+.3f}  {rows[-1]}\n")
    sys.stdout.write(json.dumps({"about": about_this_run(), "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
