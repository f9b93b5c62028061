"""A load that rises from 1 to 64 requests at once and falls again, then traffic that changes from editing to
chat and back, in one run: tokens per second over time for bare vLLM, `auto` and a fixed K.

    python benchmarks/ramp.py MODEL benchmarks/results/ramp

All arms go through the same phases, in turns; a phase has some rounds of one answer per request in flight.
"""

import json
import sys
from pathlib import Path
from typing import Any

from slipstream.bench.plan import Cell, Load, Plan
from slipstream.bench.rounds import Bench
from slipstream.bench.statistics import mean_ratio
from slipstream.reporting.charts import Point, Series, line_chart
from slipstream.reporting.run_metadata import about_this_run
from slipstream.serving.arms import Arm
from slipstream.serving.servers import running
from slipstream.workloads.loading import load_workloads

ARMS = (Arm("bare"), Arm("auto", "auto"), Arm("fixed-5", "fixed:5"))
RAMP = [("edit", load) for load in (1, 4, 16, 64, 16, 4, 1)] + [("edit", 4), ("chat", 4), ("edit", 4)]
ROUNDS = 3  # per phase; the first is for getting used to it: 48 tokens are about as many steps
PASSES = 2  # through all phases
MAX_TOKENS = 48
SPREAD = 0.5  # of the answers' limits, or bare vLLM's requests all end in the same step
STYLE = (
    "<style>svg{font:11px sans-serif;background:#fff}.grid{stroke:#ddd}.tick{fill:#555}polyline{fill:none;"
    "stroke-width:2}.c0{stroke:#888;fill:#888}.c1{stroke:#0a6cce;fill:#0a6cce}.c2{stroke:#d9730d;fill:#d9730d}"
    "</style>"
)


def say(what: str) -> None:
    sys.stderr.write(f"{what}\n")


def measure(model: str, folder: Path) -> list[dict[str, Any]]:
    workloads = {w.name: w.spread(SPREAD) for w in load_workloads(["edit", "chat"], MAX_TOKENS, model)}
    plan = Plan(
        model=model,
        arms=ARMS,
        workloads=list(workloads.values()),
        loads=[Load(concurrency=load) for load in sorted({load for _, load in RAMP})],
        rounds=ROUNDS,
        requests_per_round=None,
        waves=1,
        max_tokens=MAX_TOKENS,
        temperature=0.0,
        ignore_eos=True,
        flags=["--enforce-eager", "--max-model-len", "2048"],
    )
    points = []
    with running(model, ARMS, plan.flags, folder / "servers", say) as servers:
        bench = Bench(plan, servers)
        number = 0
        for number_of_pass in range(PASSES):
            for phase, (workload, load) in enumerate(RAMP):
                for round_of_phase in range(ROUNDS):
                    record = bench.round(Cell(workloads[workload], Load(concurrency=load)), number)
                    number += 1
                    rates = {name: arm["tokens"] / arm["seconds"] for name, arm in record["arms"].items()}
                    point = {
                        "pass": number_of_pass, "phase": phase, "workload": workload, "at_once": load,
                        "round": round_of_phase, "tokens_per_second": rates,
                    }  # fmt: skip
                    say(json.dumps(point))
                    points.append(point)
    return points


def against_the_envelope(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By workload and load, over all its phases, each after its first round: auto against bare and fixed."""
    found = []
    for workload, load in dict.fromkeys(RAMP):
        settled = [
            p["tokens_per_second"]
            for p in points
            if (p["workload"], p["at_once"]) == (workload, load) and p["round"] > 0
        ]
        ratios = {
            arm: mean_ratio([rates["auto"] / rates[arm] for rates in settled]) for arm in ("bare", "fixed-5")
        }
        found.append({
            "workload": workload, "at_once": load, "rounds": len(settled),
            "auto_against": {arm: ratio.as_dict() for arm, ratio in ratios.items()},
            "auto_against_the_better": min(ratio.value for ratio in ratios.values()),
        })  # fmt: skip
    return found


def chart(points: list[dict[str, Any]]) -> str:
    """Of the first pass, per request in flight, so that 1 and 64 fit into one picture."""
    first = [p for p in points if p["pass"] == 0]
    labels = [f"{p['workload'][0]}{p['at_once']}" if p["round"] == 1 else "" for p in first]
    series = [
        Series(arm.name, colour, [
            Point(x, p["tokens_per_second"][arm.name] / p["at_once"]) for x, p in enumerate(first)
        ])
        for colour, arm in enumerate(ARMS)
    ]  # fmt: skip
    svg = line_chart(
        "tokens per second and request in flight",
        labels,
        series,
        x_title="over time; e: edit, c: chat, with so many at once",
        from_zero=True,
    )
    names = "".join(
        f'<text class="c{colour}" x="280" y="{24 + 14 * colour}" stroke="none">{arm.name}</text>'
        for colour, arm in enumerate(ARMS)
    )
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(
        "</svg>", names + STYLE + "</svg>"
    )


def main() -> None:
    model, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    points = measure(model, folder)
    result = {
        "about": about_this_run(),
        "envelope": against_the_envelope(points),
        "points": points,
    }
    (folder / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    (folder / "ramp.svg").write_text(chart(points) + "\n")


if __name__ == "__main__":
    main()
