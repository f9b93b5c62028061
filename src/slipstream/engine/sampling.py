"""vLLM's sampling parameters, under the name that `slipstream` offers them."""

from vllm import SamplingParams

__all__ = ["SamplingParams"]
