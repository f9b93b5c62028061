"""vLLM's V2 model runner, with asynchronous scheduling if asked for, on a CPU: for tests and benchmarks.

V2 needs Triton, whose kernels `triton_cpu` compiles for the CPU.
"""

import os
from collections.abc import Mapping
from pathlib import Path

SITE = Path(__file__).parent / "site"


def environment(base: Mapping[str, str] = os.environ, checked: bool = False) -> dict[str, str]:
    """Return an environment in which vLLM runs its V2 model runner on a CPU, in as many processes as it
    likes.

    With `checked` every kernel runs in Triton's interpreter too, which takes a hundred times longer, and a
    difference is an error.
    """
    path = [str(SITE), *filter(None, [base.get("PYTHONPATH")])]
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(path),
        "TRITON_INTERPRET": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "SLIPSTREAM_V2_ON_CPU": "checked" if checked else "1",
    }
