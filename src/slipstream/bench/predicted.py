"""What the formulas say about cells that were measured."""

from collections.abc import Mapping
from typing import Any

from slipstream.bench.results import View
from slipstream.planning.cost import CostCurve
from slipstream.planning.prediction import Acceptance, Situation, predicted_speedup


def predict_cells(results: Mapping[str, Any], curve: CostCurve) -> list[dict[str, Any]]:
    """Return predicted and measured speedup of every cell under a closed loop that drafted anything. From the
    cell come counts only (acceptance, lengths of prompts and answers) and the time of drafting; no other
    time."""
    view = View(results)
    rows = []
    for workload in view.workloads:
        for load in view.loads:
            bare = view.cell(workload, load, view.bare)
            for arm in view.others:
                cell = view.cell(workload, load, arm)
                if not (bare and cell and load.concurrency and "survival" in cell.get("acceptance", {})):
                    continue
                situation = Situation(
                    load.concurrency,
                    prompt_tokens=bare["prompt_tokens"] / bare["requests"],
                    output_tokens=bare["tokens"] / bare["requests"],
                )
                accepted = Acceptance.from_dict(cell["acceptance"])
                rows.append(
                    {
                        "workload": workload,
                        "load": load.name,
                        "arm": arm,
                        "predicted": predicted_speedup(curve, accepted, situation, cell["steps"]["drafting"]),
                        "measured": cell["speedup"]["value"],
                        "low": cell["speedup"]["low"],
                        "high": cell["speedup"]["high"],
                    }
                )
    return rows
