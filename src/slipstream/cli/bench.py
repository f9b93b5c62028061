"""slipstream bench, slipstream report"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from slipstream.bench.plan import BenchmarkPlan


def bench(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="The target: a folder or Hugging Face id.")],
    arm: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=SPECULATE or SPECULATE, which is what --speculate takes: auto, off, fixed:K, a file, "
            "JSON. May be repeated. Bare vLLM is always there. Default: auto.",
            show_default=False,
        ),
    ] = None,
    arms: Annotated[
        Path | None,
        typer.Option(help="A YAML list of arms: name, speculate, environment, flags.", show_default=False),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            help="chat, code, math, summarise, edit, rag, json, tools; a file of JSON lines (Spec-Bench, "
            "MT-Bench, HumanEval, GSM8K, ShareGPT or messages), FILE#CATEGORY; 'vllm: --dataset-name ...'. "
            "May be repeated. Default: chat, code, edit.",
            show_default=False,
        ),
    ] = None,
    concurrency: Annotated[
        str, typer.Option(help="Closed loop: requests in flight. Empty for none.")
    ] = "1,4,16",
    rate: Annotated[
        str, typer.Option(help="Open loop: requests a second (Poisson), as 0.5,2.", show_default=False)
    ] = "",
    rounds: Annotated[int, typer.Option(min=2, help="Rounds per cell, at first.")] = 12,
    requests: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Requests per round; in a closed loop at least one per request in flight. Default: that, "
            "and in an open loop what arrives in ten seconds.",
            show_default=False,
        ),
    ] = None,
    waves: Annotated[
        int,
        typer.Option(
            min=1,
            help="Requests per round for each one in flight. With 1 a round ends with the slowest alone, "
            "whatever the others gained; with 3 it is more like steady traffic.",
        ),
    ] = 1,
    max_tokens: Annotated[int, typer.Option(min=2, help="Longest answer.")] = 64,
    spread: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Let --max-tokens vary by +- this share from request to request, for all arms alike. At 0 "
            "bare vLLM's requests start and end together, which traffic does not.",
        ),
    ] = 0.0,
    temperature: Annotated[float, typer.Option(min=0.0, help="At 0 (greedy) the texts are compared.")] = 0.0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on to --max-tokens. Text past its end repeats itself.")
    ] = False,
    precision: Annotated[
        float, typer.Option(help="A cell is measured again while its interval is wider than +- this.")
    ] = 0.05,
    budget: Annotated[
        str, typer.Option(help="Until when cells are measured again, from the start: 90s, 30m, 2h.")
    ] = "30m",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run; one with the same settings is resumed. Default: bench-MODEL.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Measure speculation against bare vLLM on this machine, and write a report.

    Every arm is a real server on loopback. They take turns in short rounds, so that what disturbs the
    machine disturbs all alike. Further options go to [bold]slipstream serve[/], for all arms. Leave the
    machine alone meanwhile. Ctrl-C keeps every finished round; the same command goes on from there.

    [dim]slipstream bench ./model --arm fixed:3 --arm fixed:5 --workload chat --concurrency 1,8[/]
    """
    from slipstream.bench.plan import BenchmarkPlan, Load
    from slipstream.cli.measuring import check_command, counts, numbers, seconds
    from slipstream.errors import ConfigError
    from slipstream.serving.arms import read_arms
    from slipstream.workloads.loading import load_workloads

    check_command(model, context.args)
    loads = [Load(concurrency=c) for c in counts("--concurrency", concurrency)]
    loads += [Load(rate=r) for r in numbers("--rate", rate)]
    if not loads:
        raise ConfigError("no load is given; write for example --concurrency 1,8 or --rate 2")
    plan = BenchmarkPlan(
        model=model,
        arms=read_arms(arm or [], arms),
        workloads=[
            w.spread(spread) for w in load_workloads(workload or ["chat", "code", "edit"], max_tokens, model)
        ],
        loads=loads,
        rounds=rounds,
        requests_per_round=requests,
        waves=waves,
        max_tokens=max_tokens,
        temperature=temperature,
        ignore_eos=ignore_eos,
        flags=context.args,
    )
    folder = out or Path(f"bench-{Path(model).name}")
    finished = _measure(plan, folder, precision, seconds("--budget", budget), as_json)
    raise typer.Exit(0 if finished else 130)


def _measure(plan: "BenchmarkPlan", folder: Path, precision: float, budget: float, as_json: bool) -> bool:
    from slipstream.bench.report import write_report
    from slipstream.bench.results import collect
    from slipstream.bench.rounds import Records, run
    from slipstream.cli.measuring import watched

    records = Records(folder, plan)
    finished = False
    try:
        with watched() as watcher:
            run(plan, records, watcher, precision, budget)
        finished = True
    except KeyboardInterrupt:
        sys.stderr.write("stopped; the same command goes on from here\n")
    finally:  # also when a server died: what was measured until then is worth reading
        rounds = {cell.key: records.rounds[cell.key] for cell in plan.cells}
        results = collect(records.description, rounds, precision)
        (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        if results["cells"]:
            _show(results, as_json)
            files = write_report(results, folder)
            if not as_json:
                sys.stdout.write("\n" + "".join(f"{file}\n" for file in files))
    return finished


def report(
    results: Annotated[Path, typer.Argument(help="results.json of a run, or its folder.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to. Default: beside the results.", show_default=False)
    ] = None,
) -> None:
    """Write the report of a finished benchmark again: one HTML file, and Markdown."""
    from slipstream.bench.report import write_report
    from slipstream.bench.results import load

    content = load(results)
    for file in write_report(content, out or (results if results.is_dir() else results.parent)):
        sys.stdout.write(f"{file}\n")


def _show(results: dict[str, Any], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(results, indent=2) + "\n")
        return
    from rich.console import Console
    from rich.table import Table

    from slipstream.bench.results import judge, verdicts

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("workload", "load", "arm"):
        table.add_column(column, overflow="fold")
    for column in ("tok/s", "speedup", "95%", "kept", "TPOT ms", "same text"):
        table.add_column(column, justify="right", no_wrap=True)
    for cell in results["cells"]:
        ratio, texts, acceptance = cell.get("speedup"), cell.get("texts"), cell.get("acceptance")
        table.add_row(
            cell["workload"],
            cell["load"],
            cell["arm"],
            f"{cell['tokens_per_second']['value']:.1f}",
            f"{ratio['value']:.2f}x" if ratio else "",
            f"{ratio['low']:.2f}-{ratio['high']:.2f}" + ("?" if cell["uncertain"] else "") if ratio else "",
            f"{acceptance['length']:.2f}" if acceptance else "",
            f"{cell['tpot_seconds'].get('p50', 0) * 1000:.1f}",
            f"{texts['equal']}/{texts['compared']}" if texts else "",
            style={"good": "green", "bad": "red", "": ""}[judge(cell)],
        )
    console = Console(highlight=False)
    console.print(table)
    console.print("kept: tokens per pass that had drafts; ?: the interval is wide", style="dim")
    for verdict in verdicts(results):
        console.print(f"\n{verdict}", style="bold")
