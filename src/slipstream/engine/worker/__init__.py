"""What runs in vLLM's workers, one process a rank: drafters and what they need of the model runner.

`slipstream.engine.worker.CPUWorker` and `GPUWorker` are the classes to derive a worker of your own from.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import vLLM only for who asks for a worker."""
    if name in ("CPUWorker", "GPUWorker"):
        from slipstream.engine.worker import worker

        return getattr(worker, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
