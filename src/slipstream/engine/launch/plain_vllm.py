"""vLLM's configuration, made so that the engine speculates as the environment says (SLIPSTREAM).

It is the one way in: every front end of vLLM (`vllm serve`, `vllm.LLM`, `AsyncLLM`, a Ray Serve deployment)
makes its configuration by `EngineArgs.create_engine_config`, in each process that needs one, and that is
wrapped (`patches.speculate_by_environment`). `slipstream serve` and `slipstream.LLM` start vLLM the same way.
The engine and its workers read what is decided here from `additional_config`.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slipstream.config import VLLM_FORM, Deployment, SpeculationConfig, read_speculation
from slipstream.engine.launch import environment
from slipstream.engine.launch.arguments import engine_arguments
from slipstream.engine.launch.drafter_files import prepare_drafter
from slipstream.engine.launch.startup_report import report_choice, report_engine
from slipstream.engine.patches import accept_all_sampling, refuse_unknown_options, serve_the_plan
from slipstream.engine.plugin import REQUIRED_VARIABLE, SPECULATE_VARIABLE, is_required
from slipstream.engine.settings import SHADOW_VARIABLE, read_share
from slipstream.errors import ConfigError
from slipstream.ops.doctor import examine
from slipstream.ops.host import look_at_host

REPORTER_VARIABLE = "SLIPSTREAM_REPORTER"
"""Environment: the process that prints how vLLM speculates, of several that vLLM may start."""
MERGED = ("speculative_config", "additional_config")
"""Arguments of vLLM's in which ours are what the user has given and more."""
NOT_GIVEN = (None, "auto")
"""Values of others that leave the choice to vLLM, and so to us."""
COMPLETED = "completed_by_slipstream"
"""An attribute of arguments that need nothing more, for vLLM may make a configuration of them again."""


def configure(arguments: Any, usage_context: Any, make_configuration: Callable[[], Any]) -> Any:
    """Return the configuration that vLLM makes of its `EngineArgs` once they are completed. If that does not
    work, there is one warning, and vLLM makes it of the arguments as they were."""
    given = dict(vars(arguments))
    try:
        if not hasattr(arguments, COMPLETED):
            _complete(arguments, "makespan" if _is_offline(usage_context) else "throughput")
        vllm_config = make_configuration()
    except Exception as error:
        if is_required():
            raise
        vars(arguments).clear()
        vars(arguments).update(given)
        environment.restore()
        _warn(str(error))
        return make_configuration()
    accept_all_sampling()
    refuse_unknown_options()
    serve_the_plan()
    if _reports() and COMPLETED not in given:
        report_engine(vllm_config)
    return vllm_config


def _complete(arguments: Any, default_objective: str) -> None:
    config, notes = _read_speculation(arguments)
    read_share(SHADOW_VARIABLE, os.environ.get(SHADOW_VARIABLE, ""))
    environment.restore()
    deployment = Deployment.from_arguments(arguments.model, vars(arguments))
    # Whether there is memory enough is for vLLM to say: in some of its processes much is in use already.
    host = replace(look_at_host(), available_memory=None)
    examination = examine(deployment, config, host)
    choice, done = prepare_drafter(examination.require_sound())
    needed = environment.environment_for(deployment, choice, host.platform)
    if _reports():
        report_choice(choice, examination.warned, needed, [*notes, *done])
    environment.set_variables(needed.variables)
    ours = engine_arguments(choice, host.platform, arguments.additional_config, default_objective)
    if "speculative_config" in ours:
        for name in VLLM_FORM:
            setattr(arguments, name, None)
    for name, value in ours.items():
        if name in MERGED or getattr(arguments, name) in NOT_GIVEN:
            setattr(arguments, name, value)
    setattr(arguments, COMPLETED, True)


def _read_speculation(arguments: Any) -> tuple[SpeculationConfig, list[str]]:
    """Read the environment; what vLLM's own arguments say of speculation is in place of auto."""
    asked = os.environ[SPECULATE_VARIABLE]
    theirs = {name: value for name in VLLM_FORM if (value := getattr(arguments, name)) is not None}
    if not theirs:
        return read_speculation({"speculate": asked})
    config, notes = read_speculation(theirs)
    if asked != "auto" and config != read_speculation({"speculate": asked})[0]:
        raise ConfigError(
            f"vLLM's arguments say how to speculate ({', '.join(theirs)}), and {SPECULATE_VARIABLE} says "
            "otherwise; leave one out, or write auto"
        )
    return config, notes


def _is_offline(usage_context: Any) -> bool:
    return getattr(usage_context, "name", "") == "LLM_CLASS"


def _reports() -> bool:
    """Decide whether this process prints; those that it starts do not."""
    if REPORTER_VARIABLE not in os.environ:
        environment.set_variables({REPORTER_VARIABLE: str(os.getpid())})
    return os.environ[REPORTER_VARIABLE] == str(os.getpid())


def _warn(reason: str) -> None:
    from vllm.logger import init_logger

    init_logger("vllm.slipstream").warning_once(
        "Slipstream is off, and vLLM runs as if it were not there: %s (%s=1 makes it an error)",
        reason,
        REQUIRED_VARIABLE,
    )
