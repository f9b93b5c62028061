"""The entry point in vLLM's group `vllm.general_plugins`: vLLM calls `register` in each of its processes."""

import logging
import os

SPECULATE_VARIABLE = "SLIPSTREAM"
"""Environment: how vLLM speculates: auto, off, fixed:K, a file, or JSON. Unset: nothing is done."""
REQUIRED_VARIABLE = "SLIPSTREAM_REQUIRED"
"""Environment: do not start if the set-up does not work, rather than start vLLM as if we were not there."""
SCHEDULER_STEPS_VARIABLE = "SLIPSTREAM_SCHEDULER_STEPS"  # the file that a timed scheduler writes


def is_required() -> bool:
    return os.environ.get(REQUIRED_VARIABLE, "0") not in ("", "0")


def register() -> None:
    """Prepare this process, if vLLM is to speculate. What is raised here ends vLLM."""
    if not os.environ.get(SPECULATE_VARIABLE):
        return
    try:
        from slipstream.engine.patches import fix_kernel_search, speculate_by_environment

        fix_kernel_search()
        speculate_by_environment()
        if os.environ.get(SCHEDULER_STEPS_VARIABLE):
            from slipstream.engine.core.step_times import write_step_times

            write_step_times()
    except Exception:
        if is_required():
            raise
        logging.getLogger("vllm.slipstream").exception("Slipstream is off: its plugin could not be loaded")
