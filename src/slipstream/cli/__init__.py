"""The `slipstream` command: thin commands over importable functions."""

import sys

import typer
from rich.console import Console
from rich.text import Text

from slipstream.cli.bench import bench, report
from slipstream.cli.doctor import doctor
from slipstream.cli.explain import explain
from slipstream.cli.pair import pair
from slipstream.cli.predict import predict
from slipstream.cli.replay import replay
from slipstream.cli.serve import serve
from slipstream.cli.top import top
from slipstream.cli.train import train
from slipstream.cli.tune import tune
from slipstream.cli.verify import verify
from slipstream.errors import SlipstreamError
from slipstream.version import __version__

app = typer.Typer(
    name="slipstream",
    help="Speculative decoding for vLLM: faster where it can be, never slower, never wrong.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
# vLLM's own flags go through untouched, so nothing in them may be taken for an option of ours.
SERVE_OPTIONS = "MODEL [OPTIONS] [any option of slipstream serve]"
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command(context_settings={**PASS_THROUGH, "help_option_names": []})(serve)
app.command(context_settings=PASS_THROUGH, options_metavar=SERVE_OPTIONS)(doctor)
app.command()(pair)
app.command()(explain)
app.command()(top)
app.command(context_settings=PASS_THROUGH, options_metavar=SERVE_OPTIONS)(bench)
app.command()(report)
app.command(context_settings=PASS_THROUGH, options_metavar=SERVE_OPTIONS)(tune)
app.command()(predict)
app.command()(replay)
app.command()(train)
app.command(
    context_settings=PASS_THROUGH, options_metavar="[MODEL] [OPTIONS] [any option of slipstream serve]"
)(verify)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        sys.stdout.write(f"slipstream {__version__}\n")
        raise typer.Exit


def main() -> None:
    """Run a command; an error that the user can fix is printed plainly, exit code 2."""
    try:
        app()
    except SlipstreamError as error:
        Console(stderr=True, highlight=False).print(
            Text("error: ", "bold red") + Text(str(error)), soft_wrap=True
        )
        sys.exit(2)
