"""slipstream verify"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from slipstream.verify.checks import Wanted

EXIT_CODES = {"same": 0, "differs": 1, "incomplete": 3}  # 2: it could not be run


def verify(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(help="The target: a folder or Hugging Face id.", show_default=False)
    ] = None,
    speculate: Annotated[
        str, typer.Option(help="What is verified: auto, fixed:K, a file, JSON, as for slipstream serve.")
    ] = "auto",
    url: Annotated[
        str | None,
        typer.Option(
            help="Verify a server that is running, instead of starting two: its requests with speculation "
            "against its requests without.",
            show_default=False,
        ),
    ] = None,
    bare_url: Annotated[
        str | None,
        typer.Option(help="With --url: a server without speculation to compare with.", show_default=False),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(help="With --url.", envvar="OPENAI_API_KEY", show_default=False, show_envvar=True),
    ] = None,
    prompts: Annotated[
        int | None,
        typer.Option(min=1, max=384, help="Greedy texts to compare. Default: 200.", show_default=False),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Their length.")] = 32,
    draws: Annotated[
        int | None,
        typer.Option(
            min=0, help="Sampled texts per cell, at most; 0 for none. Default: 6000.", show_default=False
        ),
    ] = None,
    variation: Annotated[
        float | None,
        typer.Option(
            help="The total variation to rule out. Default: 0.05, and 0.1 with --short.", show_default=False
        ),
    ] = None,
    short: Annotated[
        bool, typer.Option("--short", help="For CI: 24 prompts, 3 cells of 1,500 draws, no features.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Where the certificate goes. Default: verify-MODEL.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the certificate as JSON.")] = False,
) -> None:
    """Show that speculation changes nothing, and write a certificate (HTML and JSON).

    Starts bare vLLM and the speculative server on loopback, with the same further options of
    [bold]slipstream serve[/]. Compares greedy texts token for token, log-probabilities, the distribution of
    sampled texts under nine kinds of sampling (what it can find is said before it starts), and features that
    were reported broken together with speculation. Exit code 0: all was shown to be the same; 1: something
    differs or fails; 3: nothing differs, but not all that was asked for was shown.

    [dim]slipstream verify ./model --dtype float32[/]
    [dim]slipstream verify --url http://127.0.0.1:8000[/]
    """
    from slipstream.cli.measuring import check_command
    from slipstream.errors import ConfigError
    from slipstream.verify.certificate import write
    from slipstream.verify.checks import Wanted
    from slipstream.verify.distribution import CELLS

    if (model is None) == (url is None):
        raise ConfigError("write a MODEL to start servers for it, or --url of one that is running")
    names = ("temperature 1", "top-k 5", "penalties") if short else tuple(CELLS)
    wanted = Wanted(
        prompts=prompts or (24 if short else 200),
        max_tokens=max_tokens,
        draws=(1500 if short else 6000) if draws is None else draws,
        tried=4 if short else 8,
        variation=variation or (0.1 if short else 0.05),
        cells={name: CELLS[name] for name in names if draws != 0},
        known_bad=not short,
    )
    if model is not None:
        check_command(model, context.args)
    folder = out or Path(f"verify-{Path(model or 'server').name}")
    certificate = _verify(model, speculate, url, bare_url, api_key, context.args, wanted, folder)
    files = write(certificate, folder)
    if as_json:
        sys.stdout.write(json.dumps(certificate, indent=2) + "\n")
    else:
        _show(certificate, files)
    raise typer.Exit(EXIT_CODES[certificate["verdict"]])


def _verify(
    model: str | None, speculate: str, url: str | None, bare_url: str | None, api_key: str | None,
    flags: list[str], wanted: "Wanted", folder: Path,
) -> dict[str, Any]:  # fmt: skip
    import time

    from slipstream.cli.verifying import watched
    from slipstream.serving.client import Served
    from slipstream.verify.checks import certificate, verify_model, verify_servers

    with watched() as watcher:
        if url is None:
            assert model is not None
            return verify_model(model, speculate, flags, wanted, folder, watcher)
        speculative = Served(url, None, api_key)
        bare = Served(bare_url, None, api_key) if bare_url else Served(url, "off", api_key)
        begun = time.monotonic()
        result = verify_servers(bare, speculative, wanted, watcher)
        return certificate(result, speculative.model, "as served", flags, time.monotonic() - begun)


def _show(certificate: dict[str, Any], files: list[Path]) -> None:
    from rich.console import Console

    from slipstream.verify.certificate import LEGEND, sentences, tables

    console = Console(highlight=False)
    for table in tables(certificate):
        console.print(table)
        console.print()
    first, *rest = sentences(certificate)
    if certificate["distribution"]:
        rest.append(LEGEND)
    for line in rest:
        console.print(line)
    style = {"same": "bold green", "differs": "bold red", "incomplete": "bold yellow"}
    console.print(first, style=style[certificate["verdict"]])
    sys.stdout.write("\n" + "".join(f"{file}\n" for file in files))
