"""Starting vLLM: the offline engine and the OpenAI-compatible server."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slipstream.config import Choice, Deployment
from slipstream.engine import environment
from slipstream.engine.arguments import speculative_config
from slipstream.engine.patches import when_configured
from slipstream.engine.report import report_choice, report_engine
from slipstream.ops.doctor import Examination
from slipstream.ops.host import installed_vllm

if TYPE_CHECKING:
    from vllm import LLM


def start_llm(
    deployment: Deployment, examination: Examination, arguments: Mapping[str, Any], notes: Sequence[str]
) -> "LLM":
    """A running `vllm.LLM`."""
    choice = examination.require_sound()
    surroundings = _surroundings(deployment, choice)
    report_choice(choice, examination.warned, surroundings, notes)
    with environment.applied(surroundings), when_configured(report_engine):
        from vllm import LLM

        # vLLM's LLM drops its statistics by default, and `get_metrics` would fail.
        return LLM(
            model=deployment.model,
            speculative_config=speculative_config(choice),
            **{"disable_log_stats": False, **arguments},
        )


def start_server(
    deployment: Deployment, examination: Examination, flags: Sequence[str], notes: Sequence[str]
) -> None:
    """Run `vllm serve` in this process with the chosen speculation; returns when the server stops."""
    choice = examination.require_sound()
    surroundings = _surroundings(deployment, choice)
    report_choice(choice, examination.warned, surroundings, notes)
    with environment.applied(surroundings), when_configured(report_engine):
        from vllm.entrypoints.cli.main import main

        sys.argv = ["vllm", "serve", *server_flags(choice, flags)]
        main()


def ask_vllm(flags: Sequence[str]) -> Deployment | None:
    """The deployment that vLLM's own parser sees in the flags; None if they name no model."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    namespace = make_arg_parser(FlexibleArgumentParser()).parse_args(list(flags))
    model = namespace.model_tag
    return Deployment.from_arguments(model, vars(namespace)) if model else None


def show_vllm_help(flags: Sequence[str]) -> None:
    """vLLM's own help, such as --help=all or --help=ModelConfig."""
    from vllm.entrypoints.cli.main import main

    sys.argv = ["vllm", "serve", *flags]
    main()


def server_flags(choice: Choice, flags: Sequence[str]) -> list[str]:
    """The user's flags and ours. The server listens on loopback unless told otherwise."""
    result = list(flags)
    if "--model" in result[:-1]:  # as older guides have it; `vllm serve` wants it first and bare
        position = result.index("--model")
        result = [result[position + 1], *result[:position], *result[position + 2 :]]
    if not any(flag.partition("=")[0] in ("--host", "--uds") for flag in flags):
        result += ["--host", "127.0.0.1"]
    config = speculative_config(choice)
    if config is not None:
        result += ["--speculative-config", json.dumps(config)]
    return result


def _surroundings(deployment: Deployment, choice: Choice) -> environment.Environment:
    if installed_vllm()[1] != "cpu":
        return environment.Environment({})
    ranks = deployment.tensor_parallel_size * deployment.pipeline_parallel_size
    return environment.cpu_environment(choice, ranks, os.environ)
