"""slipstream pair"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

WITHOUT = """
Without a drafter: n-gram lookup and suffix decoding need none and are what `auto` takes
    slipstream serve {target}
or make one for this target
    slipstream train {target} --method eagle
"""


def pair(
    target: Annotated[str, typer.Argument(help="The target: a folder or Hugging Face id.")],
    among: Annotated[
        list[str] | None,
        typer.Option(
            help="Candidates: ids, model folders, or folders of them. May be repeated. "
            "Default: the local Hugging Face cache, and what the catalogue has for the target.",
            show_default=False,
        ),
    ] = None,
    acceptance: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Acceptance rate to assume for the prediction.")
    ] = 0.6,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Rank possible drafters for a target by compatibility and predicted speedup.

    Without --among also those that have been published for the target, by a catalogue of well-known ones;
    their sizes are asked of the Hugging Face hub.

    The prediction is for one request at a time on a memory-bound machine, from the size ratio and an
    [bold]assumed[/] acceptance rate; only measuring tells the real one (a drafter made by
    [bold]slipstream train[/] has been measured). Exit code 1 if nothing fits.
    """
    from slipstream.checkpoints import open_checkpoint
    from slipstream.checkpoints.catalogue import published_drafters
    from slipstream.ops.pairing import find_candidates, rank_drafters

    checkpoint = open_checkpoint(target)
    published = [] if among else published_drafters(checkpoint)
    candidates = rank_drafters(checkpoint, find_candidates(among or []), acceptance, published)
    fits = any(candidate.compatible for candidate in candidates)
    if as_json:
        content = {"target": target, "acceptance": acceptance, "drafters": [c.as_dict() for c in candidates]}
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
        raise typer.Exit(0 if fits else 1)

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    if not candidates:
        console.print("no candidates found; name some with --among DIR_OR_ID")
        console.print(WITHOUT.format(target=target), markup=False)
        raise typer.Exit(1)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("drafter", overflow="fold")
    for column in ("method", "size", "best K", "predicted"):
        table.add_column(column, no_wrap=True)
    notes = []
    for c in candidates:
        size = f"{c.size_ratio:.1%}" if c.size_ratio is not None else "unknown"
        gain = f"{c.predicted_speedup:.2f}x" if c.predicted_speedup is not None else "-"
        tokens = "-" if c.num_draft_tokens is None else str(c.num_draft_tokens)
        style = "" if c.compatible else "dim"
        folder = Path(c.name).expanduser()
        name = escape(folder.name if folder.is_dir() else c.name)
        table.add_row(name, c.method, size, tokens, gain, style=style)
        notes += [(f"{name}: {escape(c.reason)}", style)] if c.reason else []
    console.print(table)
    if notes:
        console.print()
    for note, style in notes:
        console.print(note, style=style)
    console.print(
        f"\npredicted at an assumed acceptance rate of {acceptance:.2f}, one request at a time", style="dim"
    )
    if not fits:
        console.print(WITHOUT.format(target=target), markup=False)
    raise typer.Exit(0 if fits else 1)
