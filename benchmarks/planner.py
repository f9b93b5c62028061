"""What a plan costs: the planner alone, with every request offering 8 draft tokens.

python benchmarks/planner.py > benchmarks/results/planner.json
"""

import json
import statistics
import sys
import time

import numpy as np

from slipstream.planning.planner import Planner, StepOutcome, StepState
from slipstream.planning.step_cost import PassProfile, Step, StepCost
from slipstream.reporting.run_metadata import about_this_run

PROFILE = PassProfile((1, 4, 16, 32, 64, 128), (0.02, 0.021, 0.022, 0.026, 0.035, 0.06))
CANDIDATES, STEPS = 8, 500


def measure(requests: int) -> dict[str, float]:
    planner = Planner(StepCost(PROFILE))
    random = np.random.default_rng(0)
    lengths, passes = [], []
    for _ in range(STEPS):
        survival = np.cumprod(random.uniform(0.3, 1, (requests, CANDIDATES)), 1).tolist()
        offered = {str(request): row for request, row in enumerate(survival)}
        state = StepState(Step(requests, 0, 0, 300 * requests))
        begun = time.perf_counter()
        planner.plan_drafter(state, offered, offered)
        between = time.perf_counter()
        plan = planner.plan(state, offered)
        ended = time.perf_counter()
        passes.append(between - begun)
        lengths.append(ended - between)
        step = Step(requests, plan.verified, 0, 300 * requests)
        planner.record(StepOutcome(step, 0.03, 0.0, 2 * requests))
    micro = {"lengths": lengths, "passes": passes}
    return {
        f"{name}_microseconds_{what}": round(1e6 * value, 1)
        for name, values in micro.items()
        for what, value in (
            ("median", statistics.median(values)),
            ("p95", statistics.quantiles(values, n=20)[-1]),
        )
    }


def main() -> None:
    result = {
        "about": about_this_run(),
        "candidates_per_request": CANDIDATES,
        "by_requests": {requests: measure(requests) for requests in (1, 32, 256, 1024)},
    }
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
