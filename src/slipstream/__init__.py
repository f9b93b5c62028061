"""Slipstream: the speculative-decoding layer for vLLM.

    from slipstream import LLM, SamplingParams
    llm = LLM("meta-llama/Llama-3.1-8B-Instruct")          # what vllm.LLM takes, and `speculate=`

Importing this package imports neither torch nor vllm; both come with the first `LLM(...)`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from slipstream.version import __version__

if TYPE_CHECKING:
    from slipstream.config import SpeculationConfig
    from slipstream.engine.sampling import SamplingParams
    from slipstream.offline import LLM, drafting_report

__all__ = ["LLM", "SamplingParams", "SpeculationConfig", "__version__", "drafting_report"]


_MODULES = {
    "LLM": "slipstream.offline",
    "SamplingParams": "slipstream.engine.sampling",
    "SpeculationConfig": "slipstream.config",
    "drafting_report": "slipstream.offline",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for the first time; after that it is an attribute like any other."""
    if name not in _MODULES:
        raise AttributeError(f"module 'slipstream' has no attribute {name!r}")
    if name == "SamplingParams":
        from slipstream.ops.host import require_vllm

        require_vllm()
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
