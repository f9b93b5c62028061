"""`results.json`: everything that a report says, and where it was measured."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.bench.analysis import analyse, throughput
from slipstream.bench.plan import Load
from slipstream.errors import ConfigError

Rounds = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
Results = Mapping[str, Any]
Entry = Mapping[str, Any]


def collect(description: Mapping[str, Any], rounds: Rounds, precision: float) -> dict[str, Any]:
    arms = [arm["name"] for arm in description["plan"]["arms"]]
    return {
        **description,
        "precision": precision,
        "cells": analyse(rounds, arms, precision),
        # What the intervals were made of, in the order measured.
        "tokens_per_second_by_round": [
            {
                "workload": w,
                "load": load,
                **{arm: [round(throughput(r, arm), 3) for r in some] for arm in arms},
            }
            for (w, load), some in rounds.items()
            if some
        ],
    }


def load(path: Path) -> dict[str, Any]:
    file = path / "results.json" if path.is_dir() else path
    try:
        content: dict[str, Any] = json.loads(file.read_text())
        content["cells"]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{file}: no results of slipstream bench ({error})") from None
    return content


def judge(cell: Entry) -> str:
    """Return `good` or `bad` beyond doubt, else nothing."""
    ratio = cell.get("speedup")
    if not ratio:
        return ""
    return "good" if ratio["low"] > 1 else "bad" if ratio["high"] < 1 else ""


class View:
    """Results as a report asks for them."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.bare, *self.others = [arm["name"] for arm in results["plan"]["arms"]]
        self.loads = [Load(**entry) for entry in results["plan"]["loads"]]
        found = {cell["workload"] for cell in results["cells"]}
        self.workloads = [w["name"] for w in results["plan"]["workloads"] if w["name"] in found]
        self._cells = {(c["workload"], c["load"], c["arm"]): c for c in results["cells"]}

    def cell(self, workload: str, load: Load, arm: str) -> Entry | None:
        return self._cells.get((workload, load.name, arm))

    def over_loads(self, workload: str, arm: str) -> list[tuple[Load, Entry]]:
        return [(load, cell) for load in self.loads if (cell := self.cell(workload, load, arm))]

    def mean_speedup(self, arm: str) -> float:
        """Return the geometric mean over all cells."""
        ratios = [c["speedup"]["value"] for c in self._cells.values() if c["arm"] == arm]
        return float(np.exp(np.mean(np.log(ratios)))) if ratios else 0.0


def verdicts(results: Results) -> list[str]:
    """Return what to do, in plain words: first overall, then per workload."""
    view = View(results)
    if not view.others:
        return []
    lines = []
    best = max(view.others, key=view.mean_speedup)
    if view.mean_speedup(best) > 1:
        gain = f"{view.mean_speedup(best):.2f}x {view.bare} on average"
        where = f"{_count(view.workloads, 'workload')} and {_count(view.loads, 'load')}"
        lines.append(f"Of these, use {best}: {gain} over {where}.")
    else:
        lines.append(f"Over everything measured, use {view.bare}: no arm is faster on average.")
    return lines + [_verdict(view, workload) for workload in view.workloads]


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'s' if len(things) > 1 else ''}"


def _verdict(view: View, workload: str) -> str:
    gains = {
        arm: max((c["speedup"]["low"] for _, c in view.over_loads(workload, arm)), default=0.0)
        for arm in view.others
    }
    best = max(gains, key=lambda arm: gains[arm])
    cells = view.over_loads(workload, best)
    if gains[best] <= 1:
        return f"{workload}: use {view.bare}; no arm is faster beyond doubt at any load."
    top_load, top = max(cells, key=lambda pair: pair[1]["speedup"]["low"])
    line = f"{workload}: use {best}, {top['speedup']['value']:.2f}x at {top_load.name}; "
    losing = next((load for load, c in cells if c["speedup"]["high"] < 1), None)
    if losing is not None:
        return line + f"it loses at {losing.name}{_crossing(cells)}."
    unclear = next((load for load, c in cells if c["speedup"]["low"] <= 1), None)
    if unclear is not None:
        return line + f"at {unclear.name} it can no longer be told from {view.bare}{_crossing(cells)}."
    return line + "it pays at every load measured."


def _crossing(cells: Sequence[tuple[Load, Entry]]) -> str:
    """Return where the line through the speedups falls below 1."""
    points = [(load.concurrency, c["speedup"]["value"]) for load, c in cells if load.concurrency]
    for (x0, y0), (x1, y1) in pairwise(points):
        if y0 >= 1 > y1:
            return f" (it stops paying at about {x0 + (x1 - x0) * (y0 - 1) / (y0 - y1):.0f} at once)"
    return ""
