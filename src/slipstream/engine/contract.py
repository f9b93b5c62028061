"""What of vLLM Slipstream and its tests rely on, as a table by feature, and what of it we work around.

`tests/engine/test_contract.py` holds it against the vLLM that is installed, `scripts/check-vllm` against one
that is not. A symbol that is patched stands in `engine.patches` and not here. Nothing here imports vllm.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from slipstream.config import Deployment
from slipstream.config.parse import VLLM_KEYS
from slipstream.config.speculation import MAX_DRAFT_TOKENS
from slipstream.ops.vllm_models import EAGLE_CLASSES, LAYERS_INTERFACE


@dataclass(frozen=True)
class Reliance:
    path: str
    """module:attribute.attribute"""
    parameters: tuple[str, ...] | None = None
    """Its parameters must be exactly these, self left out."""
    has: tuple[str, ...] = ()
    """It must have these attributes, fields or keys."""
    sets: tuple[str, ...] = ()
    """Its methods, or those of its bases, must assign these attributes to self."""
    equals: Any = None


@dataclass(frozen=True)
class Workaround:
    """Code of vLLM's that a patch or a class of ours makes up for."""

    ours: str
    """The name of the patch, or module:class within `slipstream.engine`."""
    path: str
    """Where vLLM's code is, module:attribute.attribute."""
    code: str
    """Statements that follow each other there. Blocks, a function's included, may go on; `...` in place of
    a block is any block."""
    upstream: str = ""
    """Where it is reported."""


_OURS = ("platform", "v2")
_ARGUMENTS = tuple(field.name for field in fields(Deployment) if field.name not in _OURS)

CONTRACT: Mapping[str, tuple[Reliance, ...]] = {
    "checks before vLLM is imported": (
        Reliance("vllm.model_executor.models.registry:_TEXT_GENERATION_MODELS", has=("LlamaForCausalLM",)),
        Reliance("vllm.model_executor.models.registry:_SPECULATIVE_DECODING_MODELS", has=EAGLE_CLASSES),
        Reliance(f"vllm.model_executor.models.interfaces:{LAYERS_INTERFACE}"),
    ),
    "starting vLLM": (
        Reliance("vllm:LLM", has=("generate", "chat", "get_metrics")),
        Reliance("vllm:SamplingParams", has=("min_p", "logit_bias", "extra_args", "trace_decode_token_ids")),
        Reliance("vllm.entrypoints.cli.serve:ServeSubcommand.cmd", parameters=("args",)),
        Reliance("vllm.entrypoints.cli.serve:ServeSubcommand.validate", parameters=("args",)),
        Reliance("vllm.entrypoints.cli.serve:ServeSubcommand.subparser_init", parameters=("subparsers",)),
        Reliance("vllm.entrypoints.serve.utils.api_utils:cli_env_setup", parameters=()),
        Reliance("vllm.logger:configure_logging_from_args", parameters=("args",)),
        Reliance("vllm.logger:init_logger", parameters=("name",)),
        Reliance(
            "vllm.engine.arg_utils:EngineArgs", has=("speculative_config", "disable_log_stats", *_ARGUMENTS)
        ),
        Reliance("vllm.engine.arg_utils:AsyncEngineArgs"),
        Reliance("vllm.utils.argparse_utils:FlexibleArgumentParser", has=("parse_args",)),
        Reliance(
            "vllm.config:SpeculativeConfig", has=(*sorted(VLLM_KEYS), "use_multi_module_mtp")
        ),
        Reliance(
            "vllm.config:VllmConfig",
            has=(
                "scheduler_config", "speculative_config", "device_config", "use_v2_model_runner",
                "_get_v2_model_runner_unsupported_features",
            ),
        ),
        Reliance("vllm.config:SchedulerConfig", has=("async_scheduling", "get_scheduler_cls")),
        Reliance("vllm.config:DeviceConfig", has=("device_type",)),
        Reliance(
            "vllm.envs:environment_variables",
            has=(
                "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_ENABLE_V1_MULTIPROCESSING",
                "VLLM_USE_V2_MODEL_RUNNER", "VLLM_PLUGINS", "VLLM_GPU_SYNC_CHECK",
            ),
        ),
        Reliance("vllm.v1.executor.abstract:Executor.collective_rpc"),
    ),
    "scheduling and planning": (
        Reliance("vllm.v1.core.sched.scheduler:Scheduler.schedule", parameters=("throttle_prefills",)),
        Reliance("vllm.v1.core.sched.scheduler:Scheduler.add_request", parameters=("request",)),
        Reliance(
            "vllm.v1.core.sched.scheduler:Scheduler.update_from_output",
            parameters=("scheduler_output", "model_runner_output"),
        ),
        Reliance(
            "vllm.v1.core.sched.scheduler:Scheduler.update_draft_token_ids", parameters=("draft_token_ids",)
        ),
        Reliance(
            "vllm.v1.core.sched.scheduler:Scheduler._free_request",
            parameters=("request", "delay_free_blocks"),
        ),
        Reliance(
            "vllm.v1.core.sched.scheduler:Scheduler",
            sets=(
                "running", "waiting", "requests", "max_num_running_reqs", "max_num_scheduled_tokens",
                "num_spec_tokens", "dynamic_sd_lookup", "structured_output_manager", "max_model_len",
                "vllm_config", "scheduler_config", "parallel_config",
            ),
        ),
        Reliance(
            "vllm.v1.core.sched.output:SchedulerOutput",
            has=(
                "num_scheduled_tokens", "scheduled_spec_decode_tokens", "total_num_scheduled_tokens",
                "num_spec_tokens_to_schedule",
            ),
        ),
        Reliance(
            "vllm.v1.request:Request",
            has=("num_tokens", "num_output_tokens"),
            sets=(
                "request_id", "sampling_params", "priority", "num_prompt_tokens", "max_tokens",
                "all_token_ids", "num_computed_tokens", "is_prefill_chunk", "lora_request", "cache_salt",
            ),
        ),
        Reliance("vllm.v1.outputs:ModelRunnerOutput", has=("req_ids", "sampled_token_ids")),
        Reliance("vllm.v1.outputs:DraftTokenIds", has=("req_ids", "draft_token_ids")),
        Reliance("vllm.v1.core.kv_cache_manager:KVCacheManager.usage"),
        Reliance("vllm.distributed.parallel_state:get_world_group", parameters=()),
        Reliance(
            "vllm.distributed.parallel_state:GroupCoordinator.broadcast_object", parameters=("obj", "src")
        ),
        Reliance("vllm.v1.worker.gpu_model_runner:GPUModelRunner._dummy_run"),
    ),
    "drafts by a grammar": (
        Reliance(
            "vllm.v1.structured_output.backend_types:StructuredOutputOptions",
            has=("JSON", "JSON_OBJECT", "STRUCTURAL_TAG"),
        ),
        Reliance(
            "vllm.v1.structured_output.backend_xgrammar:XgrammarGrammar", has=("matcher", "is_terminated")
        ),
        Reliance(
            "vllm.v1.structured_output.backend_guidance:GuidanceGrammar",
            has=("ll_matcher", "ll_tokenizer", "is_terminated"),
        ),
        Reliance("vllm.v1.structured_output:StructuredOutputManager._get_reasoner", parameters=("request",)),
        Reliance(
            "vllm.v1.structured_output.request:StructuredOutputRequest",
            has=("structured_output_key", "reasoning_ended", "grammar"),
        ),
    ),
    "asynchronous scheduling": (
        Reliance(
            "vllm.v1.core.sched.scheduler:Scheduler.update_draft_token_ids_in_output",
            parameters=("draft_token_ids", "scheduler_output"),
        ),
        Reliance(
            "vllm.v1.core.sched.async_scheduler:AsyncScheduler._update_after_schedule",
            parameters=("scheduler_output",),
        ),
        Reliance("vllm.v1.request:Request", sets=("num_output_placeholders",)),
        Reliance(
            "vllm.v1.core.sched.output:SchedulerOutput", has=("scheduled_new_reqs", "scheduled_cached_reqs")
        ),
        Reliance(
            "vllm.v1.core.sched.output:NewRequestData", has=("req_id", "block_ids", "num_computed_tokens")
        ),
        Reliance(
            "vllm.v1.core.sched.output:CachedRequestData",
            has=("req_ids", "new_block_ids"),
        ),
        Reliance(
            "vllm.v1.core.kv_cache_manager:KVCacheManager.get_blocks", parameters=("request_id",)
        ),
        Reliance(
            "vllm.v1.core.kv_cache_manager:KVCacheManager.evict_blocks", parameters=("block_ids",)
        ),
        Reliance("vllm.v1.core.kv_cache_manager:KVCacheBlocks", has=("blocks",)),
        Reliance("vllm.v1.core.kv_cache_utils:KVCacheBlock", has=("block_id", "is_null")),
        Reliance("vllm.v1.core.kv_cache_manager:KVCacheManager", sets=("coordinator", "block_pool")),
        Reliance("vllm.v1.core.block_pool:BlockPool", sets=("null_block",)),
        Reliance(
            "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator", sets=("single_type_managers",)
        ),
        Reliance("vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager", sets=("block_size",)),
        Reliance("vllm.v1.core.sched.scheduler:Scheduler", sets=("connector", "kv_cache_manager")),
    ),
    "the V1 model runner: sampling": (
        Reliance(
            "vllm.v1.worker.gpu_model_runner:GPUModelRunner._sample",
            parameters=("logits", "spec_decode_metadata"),
        ),
        Reliance(
            "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
            has=("_bookkeeping_sync",),
            sets=("input_batch", "discard_request_mask", "rejection_sampler", "use_async_scheduling"),
        ),
        Reliance(
            "vllm.v1.worker.gpu_input_batch:InputBatch",
            has=("num_reqs",),
            sets=("generators", "req_id_to_index", "sampling_metadata"),
        ),
        Reliance("vllm.v1.sample.logits_processor:LogitBiasLogitsProcessor", sets=("biases",)),
        Reliance("vllm.v1.sample.logits_processor:MinTokensLogitsProcessor", sets=("min_toks",)),
        Reliance(
            "vllm.v1.sample.metadata:SamplingMetadata",
            has=(
                "all_greedy", "max_num_logprobs", "logprob_token_ids", "no_penalties",
                "allowed_token_ids_mask", "bad_words_token_ids", "thinking_budget_state_holder",
                "logitsprocs", "generators",
            ),
        ),
        Reliance("vllm.v1.sample.rejection_sampler:MAX_SPEC_LEN", equals=MAX_DRAFT_TOKENS),
        Reliance(
            "vllm.v1.sample.rejection_sampler:RejectionSampler.forward",
            parameters=("metadata", "draft_probs", "logits", "sampling_metadata"),
        ),
        Reliance("vllm.v1.sample.logits_processor:BUILTIN_LOGITS_PROCESSORS"),
        Reliance("vllm.v1.sample.logits_processor:LogitsProcessors"),
        Reliance("vllm.triton_utils:HAS_TRITON"),
        Reliance(
            "vllm.v1.spec_decode.metadata:SpecDecodeMetadata", has=("draft_token_ids", "num_draft_tokens")
        ),
        Reliance("vllm.v1.outputs:SamplerOutput", has=("sampled_token_ids",)),
    ),
    "the V1 model runner: drafters": (
        Reliance("vllm.v1.worker.cpu_worker:CPUWorker.init_device", parameters=()),
        Reliance("vllm.v1.worker.gpu_worker:Worker.init_device", parameters=()),
        Reliance("vllm.v1.worker.gpu_worker:Worker.compile_or_warm_up_model", parameters=()),
        Reliance("vllm.v1.worker.gpu_worker:Worker", sets=("model_runner", "use_v2_model_runner")),
        Reliance(
            "vllm.v1.worker.gpu_model_runner:GPUModelRunner.propose_draft_token_ids",
            parameters=(
                "scheduler_output", "sampled_token_ids", "sampling_metadata", "hidden_states",
                "sample_hidden_states", "aux_hidden_states", "spec_decode_metadata", "common_attn_metadata",
                "slot_mappings",
            ),
        ),
        Reliance(
            "vllm.v1.worker.gpu_model_runner:GPUModelRunner.sample_tokens", parameters=("grammar_output",)
        ),
        Reliance(
            "vllm.v1.worker.gpu_model_runner:GPUModelRunner", sets=("execute_model_state", "drafter")
        ),
        Reliance(
            "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer._greedy_sample",
            parameters=("hidden_states",),
        ),
        Reliance("vllm.v1.spec_decode.medusa:MedusaProposer"),
        Reliance(
            "vllm.v1.spec_decode.draft_model:DraftModelProposer",
            has=("build_per_group_and_layer_attn_metadata", "_get_slot_mapping", "propose"),
        ),
        Reliance(
            "vllm.v1.attention.backend:CommonAttentionMetadata",
            has=("query_start_loc", "query_start_loc_cpu", "seq_lens", "block_table_tensor", "slot_mapping"),
        ),
        Reliance("vllm.forward_context:set_forward_context"),
        Reliance(
            "vllm.v1.spec_decode.ngram_proposer:NgramProposer.propose",
            parameters=(
                "num_speculative_tokens", "sampled_token_ids", "num_tokens_no_spec", "token_ids_cpu",
                "slot_mappings",
            ),
        ),
    ),
    "the V2 model runner": (
        Reliance("vllm.triton_utils:tl"),
        Reliance("vllm.triton_utils:triton"),
        Reliance("vllm.utils.torch_utils:async_tensor_h2d", parameters=("data", "device", "dtype", "out")),
        Reliance(
            "vllm.v1.worker.gpu.model_runner:GPUModelRunner",
            has=("execute_model", "_dummy_run"),
            sets=("req_states", "speculator", "num_speculative_steps", "max_num_tokens", "device"),
        ),
        Reliance(
            "vllm.v1.worker.gpu.states:RequestState",
            sets=(
                "req_id_to_index", "all_token_ids", "total_len", "draft_tokens", "last_sampled_tokens",
                "device",
            ),
        ),
        Reliance(
            "vllm.v1.worker.gpu.spec_decode.speculator:DraftModelSpeculator",
            has=("propose",),
            sets=(
                "draft_tokens", "draft_logits", "num_speculative_steps", "max_num_reqs", "device",
                "idx_mapping",
            ),
        ),
        Reliance(
            "vllm.v1.worker.gpu.spec_decode.speculator:DraftModelSpeculator.compute_draft_logits",
            parameters=("hidden_states", "spec_step_idx"),
        ),
        Reliance(
            "vllm.v1.worker.gpu.spec_decode.ngram.speculator:NgramGPUSpeculator",
            has=("propose",),
            sets=("drafts", "req_states"),
        ),
        Reliance(
            "vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator:StandaloneARSpeculator.propose",
            parameters=(
                "input_batch", "attn_metadata", "slot_mappings", "last_hidden_states", "aux_hidden_states",
                "num_sampled", "num_rejected", "last_sampled", "next_prefill_tokens", "temperature", "seeds",
                "dp_sync_state", "dummy_run", "skip_attn_for_dummy_run", "mm_inputs", "is_profile",
                "num_speculative_tokens",
            ),
        ),
    ),
    "requests, metrics and the plan's endpoint": (
        Reliance("vllm.exceptions:VLLMValidationError"),
        Reliance("vllm.v1.engine.core:EngineCore", sets=("scheduler", "model_executor")),
        Reliance(
            "vllm.v1.engine.core_client:AsyncMPClient.call_utility_async", parameters=("method", "args")
        ),
        Reliance(
            "vllm.v1.engine.core_client:AsyncMPClient.call_utility_all_async", parameters=("method", "args")
        ),
        Reliance("vllm.sampling_params:RequestOutputKind", has=("DELTA",)),
    ),
    "bench and tune": (
        Reliance(
            "vllm.benchmarks.serve:benchmark",
            parameters=(
                "task_type", "endpoint_type", "api_url", "base_url", "model_id", "model_name", "tokenizer",
                "input_requests", "logprobs", "request_rate", "burstiness", "disable_tqdm", "num_warmups",
                "profile", "selected_percentile_metrics", "selected_percentiles", "ignore_eos",
                "goodput_config_dict", "max_concurrency", "lora_modules", "extra_headers", "extra_body",
                "lora_assignment", "ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps",
                "ready_check_timeout_sec", "ssl_context", "self_timed", "probe_request_rate",
            ),
        ),
        Reliance("vllm.benchmarks.serve:TaskType.GENERATION"),
        Reliance("vllm.benchmarks.serve:add_cli_args", parameters=("parser",)),
        Reliance(
            "vllm.benchmarks.datasets:SampleRequest",
            has=("prompt", "prompt_len", "expected_output_len", "chat_messages", "request_overrides"),
        ),
        Reliance(
            "vllm.benchmarks.datasets:get_samples", parameters=("args", "tokenizer", "multimodal_backends")
        ),
        Reliance("vllm.tokenizers:get_tokenizer"),
        Reliance("vllm.v1.worker.cpu_worker:CPUWorker.execute_model", parameters=("scheduler_output",)),
        Reliance("vllm.v1.worker.cpu_worker:CPUWorker.sample_tokens", parameters=("grammar_output",)),
        Reliance(
            "vllm.v1.spec_decode.dynamic.utils:build_dynamic_sd_schedule_lookup",
            parameters=(
                "num_speculative_tokens_per_batch_size", "vllm_max_batch_size", "vllm_num_speculative_tokens",
            ),
        ),
    ),
    "tests of the sampler": (Reliance("vllm.utils.cpu_triton_utils:_expand_kernel_impl"),),
}  # fmt: skip
"""By feature. Whoever uses another symbol of vLLM adds it here."""

WORKAROUNDS = (
    Workaround(
        "fix_expand_batch_to_tokens",
        "vllm.utils.cpu_triton_utils:_expand_kernel_impl",
        """
torch.ops._C.expand_kernel_impl(
    _ensure_int64(output), _ensure_int64(input_val), _ensure_int64(cu_num_tokens), replace_from, replace_to
)
""",
        "vllm-project/vllm#55005",
    ),
    Workaround(
        "fix_top_k_of_empty_batch",
        "vllm.v1.sample.ops.topk_topp_sampler:apply_top_k_only",
        """
def apply_top_k_only():
    no_top_k_mask = k == logits.shape[1]
    k = k.masked_fill(no_top_k_mask, 1)
    max_top_k = k.max()
""",
    ),
    Workaround(
        "fix_kernel_search",
        "vllm.triton_utils.dispatcher:_rebind_kernels",
        """
for module in list(sys.modules.values()):
    namespace = getattr(module, "__dict__", None)
    if not namespace:
        continue
    for attr, value in list(namespace.items()):
        ...
""",
    ),
    Workaround(
        "draft_after_every_step",
        "vllm.v1.engine.core:EngineCore.post_step",
        """
def post_step():
    if self.check_for_draft_tokens and not self.async_scheduling and model_executed:
        draft_token_ids = self.model_executor.take_draft_token_ids()
""",
    ),
    Workaround(
        "serve_the_plan",
        "vllm.plugins:load_endpoint_plugins",
        """
if envs.VLLM_PLUGINS is None:
    ...
""",
    ),
    Workaround(
        "accept_all_sampling",
        "vllm.sampling_params:SamplingParams._validate_spec_decode",
        """
if self.min_p > _SAMPLING_EPS or self.logit_bias:
    ...
""",
    ),
    Workaround(
        "keep_all_logits_processors",
        "vllm.v1.sample.logits_processor:build_logitsprocs",
        """
if vllm_config.speculative_config:
    ...
""",
    ),
    Workaround(
        "recover_only_where_drafts_are",
        "vllm.v1.sample.rejection_sampler:sample_recovered_tokens",
        """
q = torch.empty((batch_size, vocab_size), dtype=q_dtype, device=device)
q.exponential_()
""",
    ),
    Workaround(
        "worker.runner:RestoreDiscardedRng",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._bookkeeping_sync",
        """
gen = self.input_batch.generators.get(int(i))
if gen is not None:
    gen.set_offset(gen.get_offset() - 4)
""",
    ),
    Workaround(
        "worker.v2_draft_model:limit_draft_passes",
        "vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator:StandaloneARSpeculator.propose",
        """
if self.num_speculative_steps == 1:
    ...
self._multi_step_decode(input_batch, num_rejected, num_reqs, skip_attn, num_tokens_across_dp)
""",
    ),
)
"""What is not here of `engine.patches` adds something for which vLLM has no hook."""


def all_reliances() -> Iterator[tuple[str, Reliance]]:
    """Return each with its feature."""
    return ((feature, reliance) for feature, reliances in CONTRACT.items() for reliance in reliances)
