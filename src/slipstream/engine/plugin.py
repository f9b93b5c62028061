"""vLLM calls `register` in every process it starts (entry point `vllm.general_plugins`)."""

import os

ACTIVE_VARIABLE = "SLIPSTREAM_ACTIVE"  # set around what Slipstream starts
SCHEDULER_STEPS_VARIABLE = "SLIPSTREAM_SCHEDULER_STEPS"  # the file that a timed scheduler writes


def register() -> None:
    """Apply the patches that every process needs. Nothing happens in a vLLM that Slipstream has not
    started."""
    if os.environ.get(ACTIVE_VARIABLE):
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
