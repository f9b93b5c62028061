"""slipstream tune"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from slipstream.bench.tune import Tuning


def tune(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="The target: a folder or Hugging Face id.")],
    workload: Annotated[
        list[str] | None,
        typer.Option(
            help="What your traffic is like, as in slipstream bench. May be repeated. "
            "Default: chat, code, edit.",
            show_default=False,
        ),
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option(help="Try this draft model or head too, beside n-gram lookup.", show_default=False),
    ] = None,
    concurrency: Annotated[str, typer.Option(help="The loads to tune for: requests at once.")] = "1,4,16",
    max_tokens: Annotated[int, typer.Option(min=2, help="Longest answer.")] = 64,
    budget: Annotated[
        str, typer.Option(help="When to stop confirming, from the start; measuring comes first: 20m, 1h.")
    ] = "20m",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the result; a tuning that was stopped goes on there. Default: tune-MODEL.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find the speculation that is fastest for your traffic on this machine, and write its configuration.

    Measures what a step costs and what drafts are worth, predicts every K at every load, confirms the best
    and [bold]auto[/] against bare vLLM. Writes [bold]speculate.yaml[/] for slipstream serve --speculate, and
    for a fixed K [bold]speculative_config.json[/] for plain vLLM. Further options go to
    [bold]slipstream serve[/]. Leave the machine alone meanwhile. Ctrl-C keeps the steps that are done.

    [dim]slipstream tune ./model --workload my-prompts.jsonl --concurrency 1,8,32 --budget 20m[/]
    """
    from slipstream.bench.tune import Tuning
    from slipstream.cli.measuring import check_command, counts, seconds, watched
    from slipstream.errors import ConfigError
    from slipstream.workloads.loading import load_workloads

    check_command(model, context.args)
    limit = seconds("--budget", budget)
    loads = counts("--concurrency", concurrency)
    if not loads:
        raise ConfigError("no load is given; write for example --concurrency 1,8")
    tuning = Tuning(
        model,
        load_workloads(workload or ["chat", "code", "edit"], max_tokens, model),
        loads,
        drafter,
        max_tokens,
        context.args,
        out or Path(f"tune-{Path(model).name}"),
    )
    finished = False
    with watched() as watcher:
        try:
            tuning.tune(limit, watcher)
            finished = True
        except KeyboardInterrupt:
            watcher.doing("stopped; the same command goes on from here")
    if as_json:
        sys.stdout.write(json.dumps(tuning.content, indent=2) + "\n")
    elif "choice" in tuning.content:
        _print(tuning)
    raise typer.Exit(0 if finished else 130)


def _print(tuning: "Tuning") -> None:
    from rich.console import Console
    from rich.table import Table

    from slipstream.bench.tune import MOST_DRAFTS

    console = Console(highlight=False)
    table = Table(
        title="predicted speedup by K", title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for column in ("proposer", "workload", "at once"):
        table.add_column(column, no_wrap=True)
    for k in range(MOST_DRAFTS + 1):
        table.add_column(str(k), justify="right", no_wrap=True)
    for row in tuning.content["predictions"]:
        best = max(row["speedup"])
        cells = [f"[green]{x:.2f}[/]" if x == best and best > 1 else f"{x:.2f}" for x in row["speedup"]]
        table.add_row(row["candidate"], row["workload"], str(row["load"]), *cells)
    console.print(table)
    if measured := tuning.content.get("confirmation"):
        console.print("\nmeasured against bare vLLM, all workloads and loads together")
        for name, gain in measured.items():
            console.print(f"  {name}: {gain['value']:.2f}x ({gain['low']:.2f} to {gain['high']:.2f})")
    choice = tuning.content["choice"]
    loads = ", ".join(f"K={k} at {load}" for load, k in choice["num_draft_tokens"].items())
    console.print(f"\nchosen: [bold]{choice['name']}[/]{f' ({loads})' if loads else ''}: {choice['reason']}")
    folder = tuning.folder
    console.print(f"\nslipstream serve {tuning.model} --speculate {folder / 'speculate.yaml'}")
    if any(choice["num_draft_tokens"].values()):
        console.print(f'plain vLLM: --speculative-config "$(cat {folder / "speculative_config.json"})"')
