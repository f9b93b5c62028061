"""Speculation in a vLLM that is started as always: `vllm serve`, `vllm.LLM`, `AsyncLLM`, a Ray Serve deployment,
with SLIPSTREAM=auto in its environment.

Every front end makes its configuration by `EngineArgs.create_engine_config`, in each process that needs one.
There the arguments get what `slipstream serve` would have given them; the engine and its workers read it from
`additional_config`. What does not fit is one warning, and bare vLLM.
"""

import multiprocessing
import os
from typing import Any

from slipstream.config import Deployment, read_speculation
from slipstream.engine.launch.arguments import engine_arguments
from slipstream.engine.launch.drafter_files import prepare_drafter
from slipstream.engine.launch.environment import environment_for
from slipstream.engine.launch.startup_report import report_choice, report_engine
from slipstream.engine.patches import replaces
from slipstream.engine.plugin import ACTIVE_VARIABLE, BY_ENVIRONMENT, SPECULATE_VARIABLE, patch_process
from slipstream.engine.settings import KEY
from slipstream.ops.doctor import examine
from slipstream.ops.host import installed_vllm

REQUIRED_VARIABLE = "SLIPSTREAM_REQUIRED"
"""Environment: do not start without speculation."""
NOT_GIVEN = (None, "auto")
"""Values of vLLM's arguments that leave the choice to vLLM, and so to us."""


@replaces("vllm.engine.arg_utils:EngineArgs.create_engine_config", "self", "usage_context", "headless")
def speculate_by_environment(original: Any) -> Any:
    """Let plain vLLM speculate as its environment says.

    Why: vLLM 0.32 has no hook that completes the arguments of an engine, and those who deploy it often cannot
    change the command.
    """

    def create_engine_config(self: Any, usage_context: Any = None, headless: bool = False) -> Any:
        speculates = False
        try:
            speculates = complete(self, getattr(usage_context, "name", "") == "LLM_CLASS")
        except Exception as error:
            if os.environ.get(REQUIRED_VARIABLE, "0") not in ("", "0"):
                raise
            _warn(str(error))
        vllm_config = original(self, usage_context, headless)
        if speculates and _is_first_process():
            report_engine(vllm_config)
        return vllm_config

    return create_engine_config


def complete(arguments: Any, offline: bool) -> bool:
    """Add to vLLM's `EngineArgs` what makes the engine speculate; return whether there is anything to add.
    Nothing is done a second time."""
    if KEY in (arguments.additional_config or {}):
        return False
    given = arguments.speculative_config
    config, notes = read_speculation(
        {"speculative_config": given} if given else {"speculate": os.environ[SPECULATE_VARIABLE]}
    )
    deployment = Deployment.from_arguments(arguments.model, vars(arguments))
    examination = examine(deployment, config)
    choice, done = prepare_drafter(examination.require_sound())
    _, platform = installed_vllm()
    ours = engine_arguments(
        choice, platform, arguments.additional_config, "makespan" if offline else "throughput"
    )
    if not ours:
        return False
    environment = environment_for(deployment, choice, platform)
    if _is_first_process():
        report_choice(choice, examination.warned, environment, [*notes, *done])
    # Processes that start from here on have it too; where their environment is another, as Ray's, nothing but
    # the speed of CPU workers depends on it.
    os.environ.update(environment.variables)
    os.environ[ACTIVE_VARIABLE] = BY_ENVIRONMENT
    patch_process()
    ours["additional_config"] = {KEY: {}, **(arguments.additional_config or {}), **ours.get("additional_config", {})}
    for name, value in ours.items():
        if name in ("speculative_config", "additional_config") or getattr(arguments, name) in NOT_GIVEN:
            setattr(arguments, name, value)
    return True


def _is_first_process() -> bool:
    return multiprocessing.parent_process() is None


def _warn(reason: str) -> None:
    from vllm.logger import init_logger

    init_logger("vllm.slipstream").warning_once(
        "Slipstream is off, and this is bare vLLM: %s (%s=1 makes that an error)", reason, REQUIRED_VARIABLE
    )
