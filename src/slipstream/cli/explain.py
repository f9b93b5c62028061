"""slipstream explain"""

import json
import sys
from typing import Annotated

import typer


def explain(
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None,
        typer.Option(help="Of the server.", envvar="OPENAI_API_KEY", show_default=False, show_envvar=True),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Show what the planner of a running server believes, and why it chose its last plans.

    How often each proposer's tokens are accepted, by position; what a step takes with more draft tokens in
    it; and of the last steps: how many tokens were offered, how many verified, what was expected of it
    against a step without drafts, and why.
    """
    from slipstream.ops.explain import fetch, render

    report = fetch(url, api_key)
    if as_json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
        return
    from rich.console import Console

    Console(highlight=False).print(render(report))
