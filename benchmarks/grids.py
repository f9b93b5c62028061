"""What the grids say of `auto`, in one table: against bare vLLM and against every fixed arm, cell by cell.

cd benchmarks/results && python ../grids.py grid-1 grid-2-ngram grid-3-ngram grid-3-drafter > grids.json
"""

import json
import math
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from slipstream.bench.results import load
from slipstream.bench.statistics import mean_ratio

LEAST, LEAST_LOW = 0.97, 0.93  # of bare vLLM
MOST_BEHIND = 0.05  # a fixed arm
NEAR = 0.03


def main() -> None:
    grids = {folder: load(Path(folder)) for folder in sys.argv[1:]}
    cells = [cell for folder, results in grids.items() for cell in cells_of(Path(folder).name, results)]
    summary = {
        "cells": len(cells),
        "slower_than_allowed": [
            name(cell) for cell in cells if cell["auto"]["value"] < LEAST or cell["auto"]["low"] < LEAST_LOW
        ],
        "beaten_by_fixed": [name(cell) for cell in cells if cell["best_fixed_over_auto"] > 1 + MOST_BEHIND],
        "near_the_best": statistics.mean(
            max(cell["best_fixed_over_auto"], 1 / cell["auto"]["value"]) <= 1 + NEAR for cell in cells
        ),
        "mean_by_grid_and_load": means(cells),
    }
    for cell in cells:
        fixed = "  ".join(f"{arm} {ratio['value']:.2f}" for arm, ratio in cell["fixed"].items())
        sys.stderr.write(
            f"{name(cell):44} auto {cell['auto']['value']:.2f} [{cell['auto']['low']:.2f}, "
            f"{cell['auto']['high']:.2f}]  {fixed}  kept {cell['length']:.2f}  "
            f"step {cell['step_ratio']:.2f}\n"
        )
    sys.stderr.write(json.dumps(summary, indent=1) + "\n")
    sys.stdout.write(json.dumps({"summary": summary, "cells": cells}, indent=1) + "\n")


def name(cell: dict[str, Any]) -> str:
    return f"{cell['grid']}: {cell['workload']}, {cell['load']}"


def cells_of(grid: str, results: dict[str, Any]) -> list[dict[str, Any]]:
    cells = {(cell["workload"], cell["load"], cell["arm"]): cell for cell in results["cells"]}
    found = []
    for measured in results["tokens_per_second_by_round"]:
        workload, at_once = measured["workload"], measured["load"]
        bare, auto, *fixed = (cells[workload, at_once, arm] for arm in list(measured)[2:])
        over_auto = [mean_ratio(ratios(measured, arm["arm"], "auto")).value for arm in fixed]
        found.append({
            "grid": grid, "workload": workload, "load": at_once,
            "auto": auto["speedup"], "worst_round": min(ratios(measured, "auto", "bare")),
            "fixed": {arm["arm"]: arm["speedup"] for arm in fixed},
            "best_fixed_over_auto": max(over_auto, default=0.0),
            "length": (auto.get("acceptance") or {}).get("length_all", 1.0),
            "step_ratio": auto["steps"]["seconds"] / bare["steps"]["seconds"],
            "step": {key: auto["steps"][key] for key in ("seconds", "target", "drafting", "rest")},
            "bare_step": {key: bare["steps"][key] for key in ("seconds", "target", "rest")},
        })  # fmt: skip
    return found


def ratios(measured: dict[str, Any], arm: str, other: str) -> list[float]:
    """By round."""
    return [a / b for a, b in zip(measured[arm], measured[other], strict=True)]


def means(cells: list[dict[str, Any]]) -> dict[str, float]:
    """Geometric means over workloads."""
    logs: defaultdict[str, list[float]] = defaultdict(list)
    for cell in cells:
        for key in (f"{cell['grid']}, {cell['load']}", cell["grid"]):
            logs[key].append(math.log(cell["auto"]["value"]))
    return {key: math.exp(statistics.mean(values)) for key, values in logs.items()}


if __name__ == "__main__":
    main()
