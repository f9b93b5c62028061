"""Slipstream: the speculative-decoding layer for vLLM.

    from slipstream import LLM, SamplingParams
    llm = LLM("meta-llama/Llama-3.1-8B-Instruct")          # what vllm.LLM takes, and `speculate=`

Importing this package imports neither torch nor vllm; both come with the first `LLM(...)`.
"""

from typing import TYPE_CHECKING, Any

from slipstream.version import __version__

if TYPE_CHECKING:
    from slipstream.config import SpeculationConfig
    from slipstream.engine.sampling import SamplingParams
    from slipstream.offline import LLM, drafting_report

__all__ = ["LLM", "SamplingParams", "SpeculationConfig", "__version__", "drafting_report"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from slipstream.offline import LLM

        return LLM
    if name == "drafting_report":
        from slipstream.offline import drafting_report

        return drafting_report
    if name == "SpeculationConfig":
        from slipstream.config import SpeculationConfig

        return SpeculationConfig
    if name == "SamplingParams":
        from slipstream.ops.host import require_vllm

        require_vllm()
        from slipstream.engine.sampling import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'slipstream' has no attribute {name!r}")
