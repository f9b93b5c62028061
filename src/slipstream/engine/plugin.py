"""vLLM calls `register` in every process it starts (entry point `vllm.general_plugins`)."""

import os

SPECULATE_VARIABLE = "SLIPSTREAM"  # set by who wants plain vLLM to speculate: auto, fixed:K, a file, JSON
ACTIVE_VARIABLE = "SLIPSTREAM_ACTIVE"  # set around what Slipstream starts
BY_ENVIRONMENT = "environment"
"""Its value where plain vLLM was started, and `SPECULATE_VARIABLE` says how it speculates."""
SCHEDULER_STEPS_VARIABLE = "SLIPSTREAM_SCHEDULER_STEPS"  # the file that a timed scheduler writes


def register() -> None:
    """Prepare a process of vLLM's, if Slipstream has started it or is asked for by its environment."""
    active = os.environ.get(ACTIVE_VARIABLE, "")
    if active:
        patch_process()
    if os.environ.get(SPECULATE_VARIABLE) and active in ("", BY_ENVIRONMENT):
        from slipstream.engine.launch.plain_vllm import speculate_by_environment

        speculate_by_environment()


def patch_process() -> None:
    """Apply the patches that every process needs."""
    from slipstream.engine.patches import (
        accept_all_sampling,
        fix_kernel_search,
        refuse_unknown_options,
        serve_the_plan,
    )

    fix_kernel_search()
    accept_all_sampling()
    refuse_unknown_options()
    serve_the_plan()
    if os.environ.get(SCHEDULER_STEPS_VARIABLE):
        from slipstream.engine.core.step_times import write_step_times

        write_step_times()
