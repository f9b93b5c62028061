"""Every place where vLLM is changed rather than used. Each says why, and for which vLLM it holds.

Preferred, in this order: an official hook, a subclass by dotted path, a patch here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@contextmanager
def when_configured(tell: Callable[[Any], None]) -> Iterator[None]:
    """Call `tell(vllm_config)` once, as soon as vLLM has settled its configuration.

    Why: only then is it known which runner and scheduler will run, and the user should read it before
    the weights load. vLLM 0.32 has a hook for this only in AsyncLLM (a stat-logger plugin), and that
    turns statistics on for every vLLM in the environment, ours or not.
    """
    from vllm.engine.arg_utils import EngineArgs

    original = EngineArgs.create_engine_config
    told = False

    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal told
        vllm_config = original(self, *args, **kwargs)
        if not told:
            told = True
            tell(vllm_config)
        return vllm_config

    EngineArgs.create_engine_config = create_engine_config
    try:
        yield
    finally:
        EngineArgs.create_engine_config = original


def mend_expand_batch_to_tokens() -> None:
    """Make sampling with speculation right on CPU. Call it in every worker, before the first step.

    Why: vLLM 0.32's CPU stand-in for the kernel in this function writes its result to a copy and throws
    it away, so the temperature, top-k and top-p of every draft token are uninitialised memory, and sampled
    text is garbled (vllm-project/vllm#55005). Greedy requests do not pass here. Where Triton runs, the real
    kernel does, and nothing is changed. vLLM's registry of kernels would do, but it searches every loaded
    module and stumbles over some.
    """
    from vllm.triton_utils import HAS_TRITON
    from vllm.v1.sample import rejection_sampler

    if not HAS_TRITON:
        rejection_sampler.expand_batch_to_tokens = _expand_batch_to_tokens


def _expand_batch_to_tokens(
    x: "torch.Tensor",  # [num_requests]
    cu_num_tokens: "torch.Tensor",  # [num_requests], cumulative
    num_tokens: int,
    replace_from: float = 0,
    replace_to: float = 0,
) -> "torch.Tensor":
    """[num_tokens]: each request's value, once for each of its tokens."""
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    return x.masked_fill(x == replace_from, replace_to).repeat_interleave(counts, output_size=num_tokens)


def mend_top_k_of_nothing() -> None:
    """Keep the engine alive on CPU when a request has a top-k and the step has no draft token to verify.

    Why: vLLM 0.32 then takes the largest k of an empty batch, which torch refuses, and the engine dies
    with every request in it. A step in which no n-gram matches is enough. Call it in every worker.
    """
    from vllm.v1.sample.ops import topk_topp_sampler

    original = topk_topp_sampler.apply_top_k_only

    def apply_top_k_only(logits: "torch.Tensor", k: "torch.Tensor") -> "torch.Tensor":
        return original(logits, k) if logits.shape[0] else logits

    topk_topp_sampler.apply_top_k_only = apply_top_k_only
