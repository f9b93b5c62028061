"""slipstream predict"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from slipstream.planning.cost import CostCurve

BAR = 30


def predict(
    alpha: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, help="Acceptance rate: the chance of a draft token, given those before."
        ),
    ] = 0.6,
    draft_tokens: Annotated[
        int | None, typer.Option(min=0, help="K. Default: the best one.", show_default=False)
    ] = None,
    cost: Annotated[
        float,
        typer.Option(min=0.0, help="c: one draft pass as a share of one target pass; 0 for n-gram lookup."),
    ] = 0.0,
    cost_curve: Annotated[
        Path | None,
        typer.Option(
            help="tune.json of slipstream tune: what verifying costs on your machine under load. Without it, "
            "verifying is taken to be free (memory-bound, one request at a time).",
            show_default=False,
        ),
    ] = None,
    concurrency: Annotated[str, typer.Option(help="Requests at once, with --cost-curve.")] = "1,4,16",
    most: Annotated[int, typer.Option(min=1, help="Largest K looked at.")] = 8,
    price: Annotated[
        float | None, typer.Option(help="Price of the machine per hour, in any currency.", show_default=False)
    ] = None,
    tokens_per_second: Annotated[
        float | None,
        typer.Option(min=0.001, help="Of bare vLLM, for --price without --cost-curve.", show_default=False),
    ] = None,
    bench: Annotated[
        Path | None,
        typer.Option(
            help="Results of slipstream bench: predict each of its cells from its acceptance and the cost "
            "curve, beside what was measured.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Predict what speculation gives: tokens per pass, speedup, best K, break-even, cost per million tokens.

    [dim]slipstream predict --alpha 0.7 --cost 0.05[/]
    [dim]slipstream predict --alpha 0.7 --cost-curve tune-model/tune.json --concurrency 1,8,32 --price 2.5[/]
    """
    from slipstream.cli.measuring import numbers
    from slipstream.errors import ConfigError
    from slipstream.planning.cost import CostCurve
    from slipstream.planning.prediction import flat_curve

    curve = CostCurve.load(cost_curve) if cost_curve else flat_curve(max(most, draft_tokens or 0))
    if bench is not None:
        if cost_curve is None:
            raise ConfigError("--bench needs --cost-curve; slipstream tune writes one")
        _against_bench(bench, curve, as_json)
        return
    loads = [int(x) for x in numbers("--concurrency", concurrency)] if cost_curve else [1]
    rows = [_at_load(curve, load, alpha, draft_tokens, cost, most) for load in loads]
    if price is not None:
        _add_price(rows, price, bool(cost_curve), tokens_per_second)
    lost_at = _first_loss(curve, alpha, rows[0]["num_draft_tokens"], cost) if cost_curve else None
    if as_json:
        content = {"alpha": alpha, "cost": cost, "loads": rows, "loses_from": lost_at}
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
        return
    _print(rows, alpha, cost, bool(cost_curve), lost_at)


def _at_load(
    curve: "CostCurve", load: int, alpha: float, draft_tokens: int | None, cost: float, most: int
) -> dict[str, Any]:
    from slipstream.planning.prediction import (
        Acceptance,
        Situation,
        break_even_alpha,
        expected_tokens,
        predicted_speedup,
        tokens_per_second,
    )

    situation = Situation(load)
    pass_seconds = curve.step(load, 0)
    speedups = [
        predicted_speedup(curve, Acceptance.constant(alpha, k), situation, cost * k * pass_seconds)
        for k in range(max(most, draft_tokens or 0) + 1)
    ]
    best = max(range(len(speedups)), key=lambda k: speedups[k])
    k = best if draft_tokens is None else draft_tokens
    return {
        "requests": load,
        "num_draft_tokens": k,
        "tokens_per_pass": expected_tokens(alpha, k),
        "speedup": speedups[k],
        "best_num_draft_tokens": best,
        "best_speedup": speedups[best],
        "break_even_alpha": break_even_alpha(curve, max(k, 1), situation, cost),
        "speedup_by_num_draft_tokens": speedups,
        "bare_tokens_per_second": tokens_per_second(curve, None, situation),
    }


def _add_price(rows: list[dict[str, Any]], price: float, has_curve: bool, bare: float | None) -> None:
    from slipstream.errors import ConfigError
    from slipstream.planning.prediction import price_per_million_tokens

    if not has_curve and bare is None:
        raise ConfigError(
            "--price needs to know the speed: give --cost-curve, or --tokens-per-second of bare vLLM"
        )
    for row in rows:
        speed = bare if bare is not None else row["bare_tokens_per_second"]
        row["bare_price_per_million"] = price_per_million_tokens(price, speed)
        row["price_per_million"] = price_per_million_tokens(price, speed * row["speedup"])


def _first_loss(curve: "CostCurve", alpha: float, k: int, cost: float) -> int | None:
    from slipstream.planning.prediction import Acceptance, break_even_load

    return break_even_load(curve, Acceptance.constant(alpha, k), cost, 4 * curve.requests[-1]) if k else None


def _print(
    rows: list[dict[str, Any]], alpha: float, cost: float, has_curve: bool, lost_at: int | None
) -> None:
    from rich.bar import Bar
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    for row in rows:
        speedups = row["speedup_by_num_draft_tokens"]
        if has_curve:
            console.print(f"\n[bold]{row['requests']} at once[/]")
        plot = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("K", "speedup", ""):
            plot.add_column(column, justify="left" if column == "" else "right")
        for k, value in enumerate(speedups):
            style = "green" if value > 1.0005 else "red" if value < 0.9995 else ""
            mark = " best" if k == row["best_num_draft_tokens"] else ""
            bar = Bar(max(speedups), 0, value, width=BAR, color=style or "white")
            plot.add_row(str(k), f"{value:.2f}x{mark}", bar, style=style)
        console.print(plot)
        alone = row["break_even_alpha"]
        k = max(row["num_draft_tokens"], 1)
        tokens, gain = row["tokens_per_pass"], row["speedup"]
        console.print(f"K = {row['num_draft_tokens']}: {tokens:.2f} tokens per pass, {gain:.2f}x")
        console.print(
            f"with K = {k} it pays from an acceptance rate of {alone:.2f}"
            if alone is not None
            else f"with K = {k} it does not pay at any acceptance rate"
        )
        if "price_per_million" in row:
            price, bare = row["price_per_million"], row["bare_price_per_million"]
            console.print(f"a million tokens cost {price:.2f} instead of {bare:.2f}")
    if lost_at is not None:
        console.print(f"\nwith K = {rows[0]['num_draft_tokens']} it loses from {lost_at} requests at once on")
    assumption = (
        "the measured cost of verifying" if has_curve else "verifying taken to be free (memory-bound)"
    )
    console.print(
        f"\nat an acceptance rate of {alpha:.2f}, a draft pass at {cost:g} of a target pass, {assumption}",
        style="dim",
    )


def _against_bench(path: Path, curve: "CostCurve", as_json: bool) -> None:
    from slipstream.bench.predicted import predict_cells
    from slipstream.bench.results import load

    rows = predict_cells(load(path), curve)
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("workload", "load", "arm"):
        table.add_column(column, no_wrap=True)
    for column in ("predicted", "measured", "95%", "off by"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["workload"], row["load"], row["arm"], f"{row['predicted']:.2f}x", f"{row['measured']:.2f}x",
            f"{row['low']:.2f}-{row['high']:.2f}", f"{row['predicted'] / row['measured'] - 1:+.0%}",
        )  # fmt: skip
    console = Console(highlight=False)
    console.print(table)
    near = sum(abs(row["predicted"] / row["measured"] - 1) <= 0.15 for row in rows)
    inside = sum(row["low"] <= row["predicted"] <= row["high"] for row in rows)
    console.print(
        f"\nwithin 15%: {near} of {len(rows)}; inside the measured interval: {inside} of {len(rows)}"
    )
