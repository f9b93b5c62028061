"""On PYTHONPATH, this lets vLLM's V2 model runner start without a GPU, its kernels in Triton's interpreter.

Why: vLLM's CPU build turns Triton off unless Triton has a 'cpu' backend, and V2 cannot do without Triton.
With TRITON_INTERPRET=1 nothing is compiled, so a backend that is there in name is enough. Python imports this
file in every process at start, before vLLM.
"""

import os
from types import SimpleNamespace

if os.environ.get("TRITON_INTERPRET") == "1":
    from triton.backends import backends  # type: ignore[import-untyped]

    backends["cpu"] = SimpleNamespace(compiler=None, driver=SimpleNamespace(is_active=lambda: True))
