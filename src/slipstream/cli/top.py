"""slipstream top"""

import json
import sys
import time
from typing import Annotated

import typer


def top(
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None,
        typer.Option(help="Of the server.", envvar="OPENAI_API_KEY", show_default=False, show_envvar=True),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option(help="Look for one interval, print it, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same, as JSON for machines.")] = False,
) -> None:
    """Watch what a running server does with drafts.

    Tokens per second, the estimated speedup over bare vLLM, what each proposer drafts and how much of it is
    accepted, how many draft tokens the last steps had, and the last plans with their reasons. Ctrl-C ends it.
    """
    from rich.console import Console
    from rich.live import Live

    from slipstream.ops.top import Top, looks

    console = Console(highlight=False)
    watched = Top(url, api_key)
    if once or as_json or not console.is_terminal:
        time.sleep(interval)
        watched.look()
        if as_json:
            sys.stdout.write(json.dumps(watched.summary(), indent=2) + "\n")
        else:
            console.print(watched.render(console.height))
        return
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for _ in looks(watched, interval):
                live.update(watched.render(console.height), refresh=True)
    except KeyboardInterrupt:
        pass
