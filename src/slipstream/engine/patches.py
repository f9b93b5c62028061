"""The symbols of vLLM's that are replaced. Each patch says why, and for which vLLM it holds.

Model runners are extended by mixins instead (`engine.worker.runner`, `engine.worker.v2_draft_model`).

Preferred, in this order: an official hook, a subclass by dotted path, a patch here.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from slipstream.engine.core.request_options import KEY, parse
from slipstream.engine.plugin import SPECULATE_VARIABLE
from slipstream.errors import SetupError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Patch:
    """A symbol of vLLM's that is replaced: `make` takes the original and returns what stands in for it, or
    None to leave it. It is applied once in a process, and only to the signature that it was written for."""

    symbol: str
    """module:attribute.attribute"""
    parameters: tuple[str, ...]
    make: Callable[[Any], Any]
    required: bool = False
    """Without it speculation would be wrong, or never happen: the engine does not start."""

    @property
    def name(self) -> str:
        return self.make.__name__

    @property
    def purpose(self) -> str:
        """Return the first sentence of its documentation."""
        return " ".join((self.make.__doc__ or "").split()).partition(". ")[0].rstrip(".")

    def __call__(self) -> None:
        if problem := why_not_patched(self.symbol, self.parameters):
            if self.required:
                raise SetupError(
                    f"{self.name} cannot be applied: {problem}. Slipstream was written for another build of "
                    "vLLM: install the one in its requirements, or start with --speculate off"
                )
            from vllm.logger import init_logger

            init_logger("vllm.slipstream").warning_once(
                "%s stays off: %s; Slipstream was written for another build of vLLM", self.name, problem
            )
            return
        owner, attribute = _owner(self.symbol)
        original = getattr(owner, attribute)
        if getattr(original, "of_slipstream", False):
            return
        replacement = self.make(original)
        if replacement is not None:
            replacement.of_slipstream = True
            setattr(owner, attribute, replacement)


PATCHES: list[Patch] = []
"""Listed by `slipstream doctor --patches`."""


def replaces(
    symbol: str, *parameters: str, required: bool = False
) -> Callable[[Callable[[Any], Any]], Patch]:
    """Make a patch of a function that takes vLLM's `symbol` and returns its replacement. `parameters` are
    those of the symbol in the vLLM that the patch was written for."""

    def decorate(make: Callable[[Any], Any]) -> Patch:
        PATCHES.append(Patch(symbol, parameters, make, required))
        return PATCHES[-1]

    return decorate


def _owner(symbol: str) -> tuple[Any, str]:
    module, _, attributes = symbol.partition(":")
    *parents, attribute = attributes.split(".")
    return reduce(getattr, parents, importlib.import_module(module)), attribute


def why_not_patched(symbol: str, parameters: tuple[str, ...]) -> str:
    """Return how vLLM's symbol differs from the one that was patched; empty if it does not, or is ours."""
    try:
        owner, attribute = _owner(symbol)
        found = getattr(owner, attribute)
    except (ImportError, AttributeError):
        return f"vLLM has no {symbol}"
    if getattr(found, "of_slipstream", False):
        return ""
    takes = tuple(inspect.signature(found).parameters)
    if takes == parameters:
        return ""
    return f"{symbol} takes ({', '.join(takes)}), not ({', '.join(parameters)})"


@replaces(
    "vllm.engine.arg_utils:EngineArgs.create_engine_config", "self", "usage_context", "headless",
    required=True,
)  # fmt: skip
def speculate_by_environment(original: Any) -> Any:
    """Let vLLM speculate as its environment says, however it is started.

    Why: vLLM 0.32 has no hook that completes the arguments of an engine, and who deploys it often cannot
    change its command.
    """

    def create_engine_config(self: Any, usage_context: Any = None, headless: bool = False) -> Any:
        if not os.environ.get(SPECULATE_VARIABLE):
            return original(self, usage_context, headless)
        from slipstream.engine.launch.plain_vllm import configure

        return configure(self, usage_context, lambda: original(self, usage_context, headless))

    return create_engine_config


@replaces(
    "vllm.v1.sample.rejection_sampler:expand_batch_to_tokens",
    "x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to", required=True,
)  # fmt: skip
def fix_expand_batch_to_tokens(original: Any) -> Any:
    """Make sampling with speculation right on CPU. Call it in every worker, before the first step.

    Why: vLLM 0.32's CPU stand-in for the kernel in this function writes its result to a copy and throws
    it away, so the temperature, top-k and top-p of every draft token are uninitialised memory, and sampled
    text is garbled (vllm-project/vllm#55005). Greedy requests do not pass here. Where Triton runs, the real
    kernel does, and nothing is changed. vLLM's registry of kernels would do, but it searches every loaded
    module and stumbles over some.
    """
    from vllm.triton_utils import HAS_TRITON

    return None if HAS_TRITON else _expand_batch_to_tokens


def _expand_batch_to_tokens(
    x: "torch.Tensor",  # [num_requests]
    cu_num_tokens: "torch.Tensor",  # [num_requests], cumulative
    num_tokens: int,
    replace_from: float = 0,
    replace_to: float = 0,
) -> "torch.Tensor":
    """Return [num_tokens]: each request's value, once for each of its tokens."""
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    return x.masked_fill(x == replace_from, replace_to).repeat_interleave(counts, output_size=num_tokens)


@replaces("vllm.v1.sample.ops.topk_topp_sampler:apply_top_k_only", "logits", "k")
def fix_top_k_of_empty_batch(original: Any) -> Any:
    """Keep the engine alive on CPU when a request has a top-k and the step has no draft token to verify.

    Why: vLLM 0.32 then takes the largest k of an empty batch, which torch refuses, and the engine dies
    with every request in it. A step in which no n-gram matches is enough. Call it in every worker.
    """

    def apply_top_k_only(logits: "torch.Tensor", k: "torch.Tensor") -> Any:
        return original(logits, k) if logits.shape[0] else logits

    return apply_top_k_only


@replaces("vllm.triton_utils.dispatcher:_rebind_kernels", "overrides")
def fix_kernel_search(original: Any) -> Any:
    """Let a worker start on CPU in a process that has numba loaded.

    Why: vLLM 0.32 looks for its Triton kernels in every loaded module, and stumbles over llvmlite, whose
    library object answers to any name, `__dict__` included. In a script that imports numba, or where the
    scheduler runs in the worker's process, no engine starts.
    """

    def rebind_kernels(overrides: Any) -> None:
        hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("llvmlite")}
        try:
            original(overrides)
        finally:
            sys.modules.update(hidden)

    return rebind_kernels


@replaces("vllm.v1.engine.core:EngineCore.post_step", "self", "model_executed", required=True)
def draft_after_every_step(original: Any) -> Any:
    """Let our scheduler draft once the target has written, with the executor at hand.

    Why: vLLM 0.32 fetches drafts from the workers here, whether there are any or not, and has no hook by
    which the scheduler could say for whom to draft after it has seen what was sampled. Engines with another
    scheduler are left as they are.
    """

    def post_step(self: Any, model_executed: bool) -> None:
        if not getattr(self.scheduler, "composes", False):
            original(self, model_executed)
        elif model_executed:
            self.scheduler.draft(self.model_executor)

    return post_step


def expose_scheduler_report() -> None:
    """Let the engine be asked for its scheduler's report (`slipstream.drafting_report`, the endpoint).

    Why: vLLM 0.32 calls methods of the engine by name from outside, not those of its scheduler.
    """
    from vllm.v1.engine.core import EngineCore

    EngineCore.drafting_report = lambda self: self.scheduler.report()
    EngineCore.drafting_counts = lambda self: self.scheduler.counts()


@replaces("vllm.plugins:load_endpoint_plugins", "supported_tasks")
def serve_the_plan(original: Any) -> Any:
    """Add `GET /v1/slipstream/plan` to the server. Call it in the process that serves.

    Why: vLLM 0.32 loads endpoint plugins only if they are named in VLLM_PLUGINS, and then loads no other
    plugin of any kind that is not named there too.
    """
    from slipstream.engine.server.endpoint import PlanEndpoint

    def load_endpoint_plugins(supported_tasks: Any = None) -> list[Any]:
        ours = [PlanEndpoint()] if "generate" in (supported_tasks or ()) else []
        return [*original(supported_tasks), *ours]

    return load_endpoint_plugins


@replaces(
    "vllm.v1.engine.input_processor:InputProcessor.__init__", "self", "vllm_config", "renderer", "mm_registry"
)
def accept_all_sampling(original: Any) -> Any:
    """Do not refuse requests with min_p or logit_bias where our scheduler runs.

    Why: vLLM 0.32 refuses them in any engine that speculates, because its rejection sampler does not apply
    them to draft tokens. Our scheduler serves them without drafts. Call it where requests come in.
    """

    def init(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        original(self, vllm_config, *args, **kwargs)
        scheduler = str(vllm_config.scheduler_config.scheduler_cls)
        ours = scheduler.startswith(("slipstream.engine.core.scheduler.", "slipstream.engine.core.async_"))
        if ours:
            self.speculative_config = None  # used for nothing but the refusal

    return init


@replaces(
    "vllm.v1.engine.input_processor:InputProcessor.process_inputs",
    "self", "request_id", "prompt", "params", "supported_tasks", "arrival_time", "lora_request",
    "tokenization_kwargs", "trace_headers", "priority", "data_parallel_rank", "resumable", "session_id",
    "kv_hints",
)  # fmt: skip
def refuse_unknown_options(original: Any) -> Any:
    """Refuse a request whose `speculate` says nothing that we know, where requests come in.

    Why: vLLM 0.32 has no hook that checks a request's own arguments; later, in the scheduler, it is too late
    to tell the client.
    """
    from vllm.exceptions import VLLMValidationError

    def process_inputs(
        self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        extra = getattr(params, "extra_args", None) or {}
        try:
            parse(extra.get(KEY, "auto"))
        except ValueError as error:
            # The server answers this kind of error by 400. It is raised without the value, which may hold a
            # character that cannot be encoded: the answer would fail, and the client would get a 500.
            raise VLLMValidationError(str(error), parameter=KEY) from None
        return original(self, request_id, prompt, params, *args, **kwargs)

    return process_inputs


@replaces(
    "vllm.v1.worker.gpu_model_runner:build_logitsprocs",
    "vllm_config", "device", "is_pin_memory", "is_pooling_model", "custom_logitsprocs",
)  # fmt: skip
def keep_all_logits_processors(original: Any) -> Any:
    """Give the runner min_p and logit_bias also when it speculates; for requests without drafts they work.

    Why: vLLM 0.32 leaves them out in any engine that speculates. Custom ones stay out: they may touch any
    request. Call it in every worker whose scheduler is ours, before the runner is made.
    """
    from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors

    def build_logitsprocs(
        vllm_config: Any, device: Any, is_pin_memory: bool, is_pooling_model: bool, custom: Any = ()
    ) -> Any:
        if not vllm_config.speculative_config or is_pooling_model or custom:
            return original(vllm_config, device, is_pin_memory, is_pooling_model, custom)
        return LogitsProcessors(
            make(vllm_config, device, is_pin_memory) for make in BUILTIN_LOGITS_PROCESSORS
        )

    return build_logitsprocs


@replaces(
    "vllm.v1.sample.rejection_sampler:sample_recovered_tokens",
    "max_spec_len", "num_draft_tokens", "cu_num_draft_tokens", "draft_token_ids", "draft_probs",
    "target_probs", "sampling_metadata", "device", "use_fp64_gumbel",
)  # fmt: skip
def recover_only_where_drafts_are(original: Any) -> Any:
    """Draw the noise for recovered tokens only for requests that have draft tokens. Call it on CPU.

    Why: vLLM 0.32 draws it for every request of the batch, one number per token of the vocabulary; on CPU
    that is half as long as a step of a small model, for drafts that are not there. On a GPU choosing the
    requests would make the host wait for the device.
    """

    def sample_recovered_tokens(
        max_spec_len: int,
        num_draft_tokens: list[int],
        cu_num_draft_tokens: "torch.Tensor",  # [num_requests], cumulative
        draft_token_ids: "torch.Tensor",  # [num_tokens]
        draft_probs: "torch.Tensor | None",
        target_probs: "torch.Tensor",  # [num_tokens, vocab]
        sampling_metadata: Any,
        device: Any,
        use_fp64_gumbel: bool = False,
    ) -> Any:
        drafted = [row for row, count in enumerate(num_draft_tokens) if count]
        generators = sampling_metadata.generators
        return original(
            max_spec_len,
            [num_draft_tokens[row] for row in drafted],
            cu_num_draft_tokens[drafted],
            draft_token_ids,
            draft_probs,
            target_probs,
            SimpleNamespace(
                generators={at: generators[row] for at, row in enumerate(drafted) if row in generators}
            ),
            device,
            use_fp64_gumbel,
        )

    return sample_recovered_tokens
