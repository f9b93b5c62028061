"""slipstream replay"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def replay(
    trace: Annotated[Path, typer.Argument(help="A file of slipstream serve --trace.", show_default=False)],
    policy: Annotated[
        list[str] | None,
        typer.Option(help="auto, off or fixed:K; may be repeated.", show_default="auto, off"),
    ] = None,
    cost_curve: Annotated[
        Path | None,
        typer.Option(
            help="tune.json of slipstream tune, of another machine: what steps take there. Default: as in "
            "the trace.",
            show_default=False,
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(help="throughput, makespan or latency, for auto.", show_default="as recorded"),
    ] = None,
    closed_loop: Annotated[
        bool,
        typer.Option(
            help="Requests come when as many others have finished as when they came, as with clients that "
            "wait for their answers. Default: at the time they came."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Replay a recorded run under another policy or another cost, in seconds.

    A trace holds numbers only. The planner and its guard are the engine's own; the target's passes are
    simulated by what steps like them took. Drafters are not replayed, only proposers without weights.

    [dim]slipstream replay run.jsonl --policy auto --policy fixed:4 --policy off[/]
    """
    from slipstream.errors import ConfigError
    from slipstream.planning.cost import CostCurve
    from slipstream.planning.objective import Objective
    from slipstream.planning.step_cost import Step
    from slipstream.replay.simulator import measured
    from slipstream.replay.simulator import replay as simulate
    from slipstream.replay.trace import read_trace

    content = read_trace(trace)
    curve = CostCurve.load(cost_curve) if cost_curve else None

    def seconds(step: Step) -> float:
        assert curve is not None
        return curve.step(step.requests, step.drafts / max(step.requests, 1)) + curve.prefill(step.prefill)

    recorded = measured(content)
    if objective is not None and objective not in list(Objective):
        raise ConfigError(f"--objective {objective}: write {', '.join(Objective)}")
    found = {
        name: simulate(
            content,
            name,
            seconds if curve else None,
            Objective(objective) if objective else None,
            closed_loop,
        )
        for name in policy or ["auto", "off"]
    }
    if as_json:
        rows = {
            name: {
                "tokens_per_second": one.tokens_per_second,
                "seconds": one.seconds,
                "steps": one.steps,
                "draft_tokens": one.draft_tokens,
                "accepted_tokens": one.accepted_tokens,
            }
            for name, one in found.items()
        }
        result = {"recorded_tokens_per_second": recorded.tokens_per_second, "replayed": rows}
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
        return

    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("policy", "tokens/s", "steps", "drafted", "accepted"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    table.add_row(
        "as recorded",
        f"{recorded.tokens_per_second:.1f}",
        f"{recorded.steps}",
        f"{recorded.draft_tokens}",
        "",
    )
    for name, one in found.items():
        table.add_row(
            name,
            f"{one.tokens_per_second:.1f}",
            f"{one.steps}",
            f"{one.draft_tokens}",
            f"{one.accepted_tokens}",
        )
    Console(highlight=False).print(table)
