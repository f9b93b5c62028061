"""slipstream doctor"""

import json
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from slipstream.ops.doctor import Examination


def doctor(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    patches: Annotated[
        bool,
        typer.Option("--patches", help="List what Slipstream replaces in vLLM, and whether it fits."),
    ] = False,
) -> None:
    """Check a set-up before it runs: models, tokenizers, sizes, memory, options.

    Takes what [bold]slipstream serve[/] takes, MODEL first; starts nothing, loads no weights. Flags of vLLM's
    that have nothing to do with speculation are not looked at. Exit code 1 if anything fails.

    [dim]slipstream doctor ./target --drafter ./drafter --tensor-parallel-size 2[/]
    """
    from slipstream.cli.command import read_command
    from slipstream.ops.doctor import examine

    if patches:
        _list_patches(as_json)
    command = read_command(context.args)
    examination = examine(command.deployment, command.speculation)
    if as_json:
        sys.stdout.write(json.dumps({**examination.as_dict(), "notes": command.notes}, indent=2) + "\n")
    else:
        _print(examination, command.notes)
    raise typer.Exit(1 if examination.failed else 0)


def _list_patches(as_json: bool) -> NoReturn:
    """Print every symbol of vLLM's that is replaced, why, and whether it is the one that is installed; exit
    code 1 if any is not."""
    from slipstream.engine.patches import PATCHES, why_not_patched
    from slipstream.ops.host import require_vllm

    require_vllm()
    found = [(patch, why_not_patched(patch.symbol, patch.parameters)) for patch in PATCHES]
    if as_json:
        content = [
            {"patch": patch.name, "symbol": patch.symbol, "purpose": patch.purpose, "problem": problem}
            for patch, problem in found
        ]
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("", "patch", "what for"):
            table.add_column(column, no_wrap=column != "what for", overflow="fold")
        for patch, problem in found:
            state = "[yellow]off[/]" if problem else "[green]fits[/]"
            text = f"{patch.purpose}\n{patch.symbol}" + (f"\n{problem}" if problem else "")
            table.add_row(state, patch.name, _escape(text))
        Console(highlight=False).print(table)
    raise typer.Exit(1 if any(problem for _, problem in found) else 0)


def _print(examination: "Examination", notes: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    styles = {"pass": "green", "warn": "yellow", "fail": "bold red"}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("", "check", "what was found"):
        table.add_column(column, no_wrap=column != "what was found", overflow="fold")
    for finding in examination.findings:
        style = styles[finding.status]
        text = finding.reason + (f"\nfix: {finding.fix}" if finding.fix else "")
        table.add_row(f"[{style}]{finding.status}[/]", finding.check, _escape(text))
    console = Console(highlight=False)
    console.print(table)
    for note in notes:
        console.print(f"note: {_escape(note)}")
    failed, warned = len(examination.failed), len(examination.warned)
    verdict = f"{failed} of {len(examination.findings)} checks fail" if failed else "ready to start"
    choice = examination.choice
    if not failed and choice is not None and choice.method is None and not choice.left_to_vllm:
        verdict += ", without speculation"
    console.print(f"\n{verdict}{f', {warned} to read' if warned else ''}", style="red" if failed else "green")


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
