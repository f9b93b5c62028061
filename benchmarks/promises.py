"""What plans promise and what comes of them, on recorded traces: with the correction of offers and without.

    python benchmarks/promises.py TRACE ... > benchmarks/results/promises.json     # writes docs/promises.svg

Accepted tokens are those of replays of `auto`; seconds are those of the recorded steps themselves, against
what the planner's model of them said just before.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from figure import write_figure

from slipstream.drafting.composer import Composer
from slipstream.planning.planner import Planner, StepOutcome
from slipstream.planning.step_cost import GUESS, StepCost
from slipstream.replay.simulator import replay
from slipstream.replay.trace import Trace, read_trace
from slipstream.reporting.charts import LEFT, Point, Series, line_chart
from slipstream.reporting.run_metadata import about_this_run

LOADS = ((1, 4), (4, 16), (16, 10**6))
BINS = 8  # of the survival that a step's drafts are promised to have on average


def main() -> None:
    traces = [read_trace(Path(path)) for path in sys.argv[1:]]
    found: dict[str, Any] = {"about": about_this_run(), "accepted": {}, "seconds": seconds(traces)}
    with uncorrected():
        found["accepted"]["before"] = accepted(traces)
    found["accepted"]["after"] = accepted(traces)
    for when, by_load in found["accepted"].items():
        for load, row in by_load.items():
            sys.stderr.write(f"{when:7} {load:12} {row['promised']:.0f} promised, {row['came']} came\n")
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    draw(found["accepted"])


@contextmanager
def uncorrected() -> Iterator[None]:
    correct = Composer.correct
    Composer.correct = lambda self, offers: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Composer.correct = correct  # type: ignore[method-assign]


def accepted(traces: list[Trace]) -> dict[str, Any]:
    """Return what was promised and what came, by load, and by what was promised of a token."""
    outcomes: list[StepOutcome] = []
    record = Planner.record

    def noting(self: Planner, outcome: StepOutcome) -> None:
        outcomes.append(outcome)
        record(self, outcome)

    Planner.record = noting  # type: ignore[method-assign]
    try:
        for trace in traces:
            replay(trace, "auto", closed_loop=True)  # a batch comes when the one before it is done
    finally:
        Planner.record = record  # type: ignore[method-assign]
    rows: dict[str, Any] = {}
    for low, high in LOADS:
        cells: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        for outcome in outcomes:
            step = outcome.step
            if low <= step.requests < high and step.drafts and not step.prefill:
                cell = cells[min(int(BINS * outcome.expected_accepted / step.drafts), BINS - 1)]
                cell[0] += step.drafts
                cell[1] += outcome.expected_accepted
                cell[2] += outcome.tokens - step.requests
        total = [sum(cell[column] for cell in cells.values()) for column in range(3)]
        rows[named(low, high)] = {
            "drafts": int(total[0]), "promised": total[1], "came": int(total[2]),
            "by_promise": {
                f"{at / BINS:.3f}": {"drafts": int(c[0]), "promised": c[1] / c[0], "came": c[2] / c[0]}
                for at, c in sorted(cells.items())
            },
        }  # fmt: skip
    return rows


def seconds(traces: list[Trace]) -> dict[str, Any]:
    """Return the seconds of recorded steps over what the model said before, by load and drafts."""
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for trace in traces:
        cost = StepCost(trace.profile or GUESS)
        for outcome in trace.steps:
            step = outcome.step
            if cost.steps >= 10 and not step.prefill:
                load = next(named(*load) for load in LOADS if load[0] <= step.requests < load[1])
                cell = sums[f"{load}, {'with' if step.drafts else 'without'} drafts"]
                cell[0] += 1
                cell[1] += cost.seconds(step)
                cell[2] += outcome.seconds
            cost.learn(step, outcome.seconds)
    return {
        name: {"steps": int(steps), "came_over_promised": came / promised}
        for name, (steps, promised, came) in sorted(sums.items())
    }


def named(low: int, high: int) -> str:
    return f"{low} to {high - 1}" if high < 10**6 else f"{low} or more"


def draw(found: dict[str, Any]) -> None:
    """Draw the reliability diagram of the highest load."""
    load = named(*LOADS[-1])
    series = [Series("as promised", 0, [Point(at, (at + 0.5) / BINS) for at in range(BINS)])]
    for colour, when in enumerate(("before", "after"), start=1):
        cells = found[when][load]["by_promise"].items()
        seen = [(place, cell["came"]) for place, cell in cells if cell["drafts"] > 50]
        points = [Point(round(float(place) * BINS), came) for place, came in seen]
        series.append(Series(when, colour, points))
    labels = [f"{(at + 0.5) / BINS:.2f}" for at in range(BINS)]
    title = "Share of draft tokens accepted by the share that was promised, at 16 requests or more"
    chart = line_chart(title, labels, series, x_title="promised of a draft token", unit="")
    heading = "accepted of the draft tokens verified"
    path = Path(__file__).parents[1] / "docs" / "promises.svg"
    write_figure(path, chart, heading, series, legend_x=LEFT + 20)


if __name__ == "__main__":
    main()
