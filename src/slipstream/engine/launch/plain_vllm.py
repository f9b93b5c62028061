"""The arguments of vLLM's engine, completed so that it speculates as its environment says (SLIPSTREAM).

It is the one way in: every front end of vLLM (`vllm serve`, `vllm.LLM`, `AsyncLLM`, a Ray Serve deployment)
makes its configuration by `EngineArgs.create_engine_config`, in each process that needs one, and calls this
first (`patches.speculate_by_environment`). `slipstream serve` and `slipstream.LLM` start vLLM the same way.
The engine and its workers read what is decided here from `additional_config`, never from the environment.
"""

import os
from typing import Any

from slipstream.config import Deployment, SpeculationConfig, read_speculation
from slipstream.engine.launch.arguments import engine_arguments
from slipstream.engine.launch.drafter_files import prepare_drafter
from slipstream.engine.launch.environment import environment_for
from slipstream.engine.launch.startup_report import report_choice, report_engine
from slipstream.engine.patches import accept_all_sampling, refuse_unknown_options, serve_the_plan
from slipstream.engine.plugin import SPECULATE_VARIABLE
from slipstream.engine.settings import KEY
from slipstream.ops.doctor import examine
from slipstream.ops.host import installed_vllm

REQUIRED_VARIABLE = "SLIPSTREAM_REQUIRED"
"""Environment: do not start if the set-up does not work, rather than start bare vLLM."""
REPORTER_VARIABLE = "SLIPSTREAM_REPORTER"
"""Environment: the process that prints how vLLM speculates, of several that vLLM may start."""
MERGED = ("speculative_config", "additional_config")
"""Arguments of vLLM's in which ours are what the user has given and more."""
NOT_GIVEN = (None, "auto")
"""Values of others that leave the choice to vLLM, and so to us."""


def complete_arguments(arguments: Any, usage_context: Any) -> bool:
    """Complete vLLM's `EngineArgs`; return whether it was done here. What does not work is one warning, and
    the arguments stay as they are."""
    try:
        if KEY in (arguments.additional_config or {}):
            return False
        _complete(arguments, "makespan" if _is_offline(usage_context) else "throughput")
    except Exception as error:
        if os.environ.get(REQUIRED_VARIABLE, "0") not in ("", "0"):
            raise
        from vllm.logger import init_logger

        init_logger("vllm.slipstream").warning_once(
            "Slipstream is off, and this is bare vLLM: %s (%s=1 makes that an error)",
            error,
            REQUIRED_VARIABLE,
        )
        return False
    return True


def report_configuration(vllm_config: Any) -> None:
    """Print what vLLM made of the arguments; in the process that was started, and in no other."""
    if _reports():
        report_engine(vllm_config)


def _complete(arguments: Any, default_objective: str) -> None:
    config, notes = _read_speculation(arguments)
    deployment = Deployment.from_arguments(arguments.model, vars(arguments))
    examination = examine(deployment, config)
    choice, done = prepare_drafter(examination.require_sound())
    _, platform = installed_vllm()
    environment = environment_for(deployment, choice, platform)
    if _reports():
        report_choice(choice, examination.warned, environment, [*notes, *done])
    # For processes that start from here on. Where they do not inherit it, as Ray's, they are slower on CPU.
    os.environ.update(environment.variables)
    ours = engine_arguments(choice, platform, arguments.additional_config, default_objective)
    for name, value in ours.items():
        if name in MERGED or getattr(arguments, name) in NOT_GIVEN:
            setattr(arguments, name, value)
    accept_all_sampling()
    refuse_unknown_options()
    serve_the_plan()


def _read_speculation(arguments: Any) -> tuple[SpeculationConfig, list[str]]:
    """Read the environment. What vLLM is told of speculation by its own arguments is in place of auto."""
    asked = {"speculate": os.environ[SPECULATE_VARIABLE]}
    if arguments.speculative_config:
        theirs = {"speculative_config": arguments.speculative_config}
        asked = theirs if asked["speculate"] == "auto" else asked | theirs
    return read_speculation(asked)


def _is_offline(usage_context: Any) -> bool:
    return getattr(usage_context, "name", "") == "LLM_CLASS"


def _reports() -> bool:
    """Decide whether this process prints; those that it starts do not."""
    return os.environ.setdefault(REPORTER_VARIABLE, str(os.getpid())) == str(os.getpid())
