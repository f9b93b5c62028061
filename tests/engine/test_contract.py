"""Every vLLM symbol that Slipstream and its tests rely on; a change in vLLM fails here, by name.

Whoever uses another symbol of vLLM adds it to CONTRACT.
"""

import dataclasses
import importlib
import inspect
import json
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from slipstream.cli import app
from slipstream.config import Deployment
from slipstream.config.parse import VLLM_KEYS
from slipstream.config.speculation import MAX_DRAFT_TOKENS
from slipstream.engine.patches import PATCHES, Patch, why_not_patched
from slipstream.engine.worker.runner import DraftInputs


@dataclass(frozen=True)
class Reliance:
    path: str
    """module:attribute.attribute"""
    parameters: tuple[str, ...] | None = None
    """Its parameters must be exactly these, self left out."""
    has: tuple[str, ...] = ()
    """It must have these attributes or fields."""
    equals: Any = None

    def check(self) -> None:
        found = self.resolve()
        if self.parameters is not None:
            parameters = tuple(p for p in inspect.signature(found).parameters if p != "self")
            assert parameters == self.parameters, f"{self.path} takes {parameters}, not {self.parameters}"
        missing = [name for name in self.has if not _has(found, name)]
        assert not missing, f"{self.path} has no {', '.join(missing)}"
        if self.equals is not None:
            assert found == self.equals, f"{self.path} is {found!r}, not {self.equals!r}"

    def resolve(self) -> Any:
        module, _, attributes = self.path.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for attribute in attributes.split(".") if attributes else []:
                found = getattr(found, attribute)
        except (ImportError, AttributeError) as error:
            raise AssertionError(f"{self.path} is gone: {error}") from None
        return found


def _has(found: Any, name: str) -> bool:
    if isinstance(found, dict):
        return name in found
    fields = {field.name for field in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else set()
    return name in fields or hasattr(found, name)


OURS = ("platform", "v2")
ARGUMENTS = [field.name for field in dataclasses.fields(Deployment) if field.name not in OURS]
CONTRACT = (
    # slipstream.engine.core.grammar_state
    Reliance("vllm.v1.structured_output.backend_types:StructuredOutputOptions"),
    Reliance("vllm.v1.structured_output.backend_xgrammar:XgrammarGrammar", has=("matcher", "is_terminated")),
    Reliance(
        "vllm.v1.structured_output.backend_guidance:GuidanceGrammar",
        has=("ll_matcher", "ll_tokenizer", "is_terminated"),
    ),
    Reliance("vllm.v1.structured_output:StructuredOutputManager._get_reasoner", parameters=("request",)),
    Reliance(
        "vllm.v1.structured_output.request:StructuredOutputRequest",
        has=("structured_output_key", "reasoning_ended", "grammar"),
    ),
    # slipstream.engine.launch.start, .sampling
    Reliance("vllm:LLM", has=("generate", "chat", "get_metrics")),
    Reliance("vllm:SamplingParams"),
    Reliance("vllm.entrypoints.cli.serve:ServeSubcommand.cmd", parameters=("args",)),
    Reliance("vllm.entrypoints.cli.serve:ServeSubcommand.validate", parameters=("args",)),
    Reliance("vllm.entrypoints.cli.serve:ServeSubcommand.subparser_init", parameters=("subparsers",)),
    Reliance("vllm.entrypoints.serve.utils.api_utils:cli_env_setup", parameters=()),
    Reliance("vllm.logger:configure_logging_from_args", parameters=("args",)),
    Reliance(
        "vllm.engine.arg_utils:EngineArgs",
        has=("speculative_config", "disable_log_stats", *ARGUMENTS),
    ),
    Reliance("vllm.utils.argparse_utils:FlexibleArgumentParser", has=("parse_args",)),
    # slipstream.engine.launch.arguments: what is sent must be known
    Reliance("vllm.config:SpeculativeConfig", has=tuple(sorted(VLLM_KEYS))),
    # slipstream.engine.worker.pass_profile
    Reliance("vllm.distributed.parallel_state:get_world_group", parameters=()),
    Reliance("vllm.distributed.parallel_state:GroupCoordinator.broadcast_object", parameters=("obj", "src")),
    # slipstream.engine.patches
    Reliance(
        "vllm.engine.arg_utils:EngineArgs.create_engine_config", parameters=("usage_context", "headless")
    ),
    Reliance("vllm.plugins:load_endpoint_plugins", parameters=("supported_tasks",)),
    Reliance("vllm.triton_utils.dispatcher:_rebind_kernels", parameters=("overrides",)),
    Reliance("vllm.v1.engine.core_client:AsyncMPClient.call_utility_async", parameters=("method", "args")),
    # slipstream.engine.server.metrics
    Reliance(
        "vllm.v1.engine.core_client:AsyncMPClient.call_utility_all_async", parameters=("method", "args")
    ),
    Reliance("vllm.exceptions:VLLMValidationError"),
    # slipstream.engine.core.scheduler, .ahead
    Reliance("vllm.v1.core.sched.scheduler:Scheduler.schedule", parameters=("throttle_prefills",)),
    Reliance(
        "vllm.v1.core.sched.scheduler:Scheduler.update_from_output",
        parameters=("scheduler_output", "model_runner_output"),
    ),
    Reliance(
        "vllm.v1.core.sched.scheduler:Scheduler.update_draft_token_ids_in_output",
        parameters=("draft_token_ids", "scheduler_output"),
    ),
    Reliance(
        "vllm.v1.core.sched.async_scheduler:AsyncScheduler._update_after_schedule",
        parameters=("scheduler_output",),
    ),
    Reliance(
        "vllm.v1.core.sched.output:SchedulerOutput",
        has=(
            "num_scheduled_tokens",
            "scheduled_spec_decode_tokens",
            "total_num_scheduled_tokens",
            "num_spec_tokens_to_schedule",
        ),
    ),
    Reliance("vllm.v1.core.kv_cache_manager:KVCacheManager.usage"),
    # slipstream.engine.worker.runner, .pass_profile, .v2_draft_model
    Reliance("vllm.v1.worker.gpu_model_runner:GPUModelRunner._dummy_run"),
    Reliance(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._sample",
        parameters=("logits", "spec_decode_metadata"),
    ),
    Reliance("vllm.v1.sample.logits_processor:LogitBiasLogitsProcessor"),
    Reliance("vllm.v1.sample.logits_processor:MinTokensLogitsProcessor"),
    Reliance(
        "vllm.v1.sample.metadata:SamplingMetadata",
        has=(
            "all_greedy",
            "max_num_logprobs",
            "logprob_token_ids",
            "no_penalties",
            "allowed_token_ids_mask",
            "bad_words_token_ids",
            "thinking_budget_state_holder",
            "logitsprocs",
        ),
    ),
    # slipstream.engine.load_generator
    Reliance(
        "vllm.benchmarks.serve:benchmark",
        parameters=(
            "task_type",
            "endpoint_type",
            "api_url",
            "base_url",
            "model_id",
            "model_name",
            "tokenizer",
            "input_requests",
            "logprobs",
            "request_rate",
            "burstiness",
            "disable_tqdm",
            "num_warmups",
            "profile",
            "selected_percentile_metrics",
            "selected_percentiles",
            "ignore_eos",
            "goodput_config_dict",
            "max_concurrency",
            "lora_modules",
            "extra_headers",
            "extra_body",
            "lora_assignment",
            "ramp_up_strategy",
            "ramp_up_start_rps",
            "ramp_up_end_rps",
            "ready_check_timeout_sec",
            "ssl_context",
            "self_timed",
            "probe_request_rate",
        ),
    ),
    Reliance("vllm.benchmarks.serve:TaskType.GENERATION"),
    Reliance("vllm.benchmarks.serve:add_cli_args", parameters=("parser",)),
    Reliance(
        "vllm.benchmarks.datasets:SampleRequest",
        has=("prompt", "prompt_len", "expected_output_len", "chat_messages", "request_overrides"),
    ),
    Reliance("vllm.benchmarks.datasets:get_samples", parameters=("args", "tokenizer", "multimodal_backends")),
    Reliance("vllm.tokenizers:get_tokenizer"),
    # slipstream.engine.worker.step_times
    Reliance("vllm.v1.worker.cpu_worker:CPUWorker.execute_model", parameters=("scheduler_output",)),
    Reliance("vllm.v1.worker.cpu_worker:CPUWorker.sample_tokens", parameters=("grammar_output",)),
    Reliance("vllm.v1.worker.gpu_model_runner:GPUModelRunner.propose_draft_token_ids"),
    Reliance(
        "vllm.v1.core.sched.output:SchedulerOutput",
        has=("num_scheduled_tokens", "total_num_scheduled_tokens", "scheduled_spec_decode_tokens"),
    ),
    Reliance("vllm.v1.outputs:ModelRunnerOutput", has=("req_ids", "sampled_token_ids")),
    # slipstream.bench.tune
    Reliance(
        "vllm.v1.spec_decode.dynamic.utils:build_dynamic_sd_schedule_lookup",
        parameters=(
            "num_speculative_tokens_per_batch_size",
            "vllm_max_batch_size",
            "vllm_num_speculative_tokens",
        ),
    ),
    # slipstream.engine.launch.startup_report
    Reliance(
        "vllm.config:VllmConfig",
        has=(
            "scheduler_config",
            "speculative_config",
            "device_config",
            "use_v2_model_runner",
            "_get_v2_model_runner_unsupported_features",
        ),
    ),
    Reliance("vllm.config:SchedulerConfig", has=("async_scheduling", "get_scheduler_cls")),
    Reliance("vllm.config:DeviceConfig", has=("device_type",)),
    # slipstream.engine.launch.environment, slipstream.ops.host
    Reliance(
        "vllm.envs:environment_variables",
        has=(
            "VLLM_CPU_KVCACHE_SPACE",
            "VLLM_CPU_OMP_THREADS_BIND",
            "VLLM_ENABLE_V1_MULTIPROCESSING",
            "VLLM_USE_V2_MODEL_RUNNER",
        ),
    ),
    # slipstream.config.speculation
    Reliance("vllm.v1.sample.rejection_sampler:MAX_SPEC_LEN", equals=MAX_DRAFT_TOKENS),
    # slipstream.engine.patches, slipstream.engine.worker.worker
    Reliance("vllm.triton_utils:HAS_TRITON"),
    Reliance(
        "vllm.v1.sample.rejection_sampler:expand_batch_to_tokens",
        parameters=("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"),
    ),
    Reliance("vllm.v1.sample.ops.topk_topp_sampler:apply_top_k_only", parameters=("logits", "k")),
    # slipstream.engine.core.scheduler
    Reliance(
        "vllm.v1.core.sched.scheduler:Scheduler",
        has=("update_draft_token_ids", "_free_request", "schedule"),
    ),
    Reliance(
        "vllm.v1.core.sched.scheduler:Scheduler._free_request", parameters=("request", "delay_free_blocks")
    ),
    Reliance(
        "vllm.v1.request:Request",
        has=("num_tokens", "num_output_tokens"),
    ),
    Reliance("vllm.v1.outputs:DraftTokenIds", has=("req_ids", "draft_token_ids")),
    Reliance("vllm:SamplingParams", has=("min_p", "logit_bias", "trace_decode_token_ids")),
    Reliance("vllm.v1.engine.core:EngineCore.post_step", parameters=("model_executed",)),
    Reliance("vllm.v1.engine.input_processor:InputProcessor.__init__"),
    Reliance("vllm.v1.executor.abstract:Executor.collective_rpc"),
    # slipstream.engine.worker.runner, .drafter_cache
    Reliance(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.propose_draft_token_ids",
        parameters=DraftInputs._fields,
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
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._sample",
        parameters=("logits", "spec_decode_metadata"),
    ),
    Reliance(
        "vllm.v1.sample.rejection_sampler:sample_recovered_tokens",
        parameters=(
            "max_spec_len",
            "num_draft_tokens",
            "cu_num_draft_tokens",
            "draft_token_ids",
            "draft_probs",
            "target_probs",
            "sampling_metadata",
            "device",
            "use_fp64_gumbel",
        ),
    ),
    Reliance("vllm.v1.worker.gpu_worker:Worker.init_device", parameters=()),
    # slipstream.engine.patches
    Reliance("vllm.v1.sample.logits_processor:BUILTIN_LOGITS_PROCESSORS"),
    Reliance(
        "vllm.v1.worker.gpu_model_runner:build_logitsprocs",
        parameters=(
            "vllm_config",
            "device",
            "is_pin_memory",
            "is_pooling_model",
            "custom_logitsprocs",
        ),
    ),
    # tests/engine/test_sampler.py
    Reliance("vllm.utils.cpu_triton_utils:_expand_kernel_impl"),
    # tests/engine/planted.py; the composition of proposers will stand on these too
    Reliance("vllm.v1.worker.cpu_worker:CPUWorker.init_device", parameters=()),
    Reliance(
        "vllm.v1.spec_decode.ngram_proposer:NgramProposer.propose",
        parameters=(
            "num_speculative_tokens",
            "sampled_token_ids",
            "num_tokens_no_spec",
            "token_ids_cpu",
            "slot_mappings",
        ),
    ),
    Reliance(
        "vllm.v1.sample.rejection_sampler:RejectionSampler.forward",
        parameters=("metadata", "draft_probs", "logits", "sampling_metadata"),
    ),
    Reliance("vllm.v1.spec_decode.metadata:SpecDecodeMetadata", has=("draft_token_ids", "num_draft_tokens")),
    Reliance("vllm.v1.outputs:SamplerOutput", has=("sampled_token_ids",)),
)


@pytest.mark.parametrize("reliance", CONTRACT, ids=lambda reliance: reliance.path)
def test_vllm_still_has_it(reliance: Reliance) -> None:
    reliance.check()


def test_a_missing_symbol_is_named() -> None:
    with pytest.raises(AssertionError, match=r"vllm:NoSuchThing is gone"):
        Reliance("vllm:NoSuchThing").check()
    with pytest.raises(AssertionError, match=r"vllm:LLM has no fly"):
        Reliance("vllm:LLM", has=("fly",)).check()
    with pytest.raises(AssertionError, match=r"cli_env_setup takes \(\), not \('argv',\)"):
        Reliance("vllm.entrypoints.serve.utils.api_utils:cli_env_setup", parameters=("argv",)).check()


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_what_is_patched_is_what_the_patch_was_written_for(patch: Patch) -> None:
    assert why_not_patched(patch.symbol, patch.parameters) == ""
    assert "Why: " in (patch.make.__doc__ or "")


def test_doctor_lists_the_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed() -> tuple[int, list[dict[str, str]]]:
        result = CliRunner().invoke(app, ["doctor", "--patches", "--json"])
        return result.exit_code, json.loads(result.stdout)

    code, found = listed()
    assert code == 0
    assert {patch["patch"] for patch in found} == {patch.name for patch in PATCHES}
    assert not any(patch["problem"] for patch in found)
    monkeypatch.setattr("vllm.triton_utils.dispatcher._rebind_kernels", lambda: None)
    code, found = listed()
    assert code == 1
    (problem,) = [patch["problem"] for patch in found if patch["problem"]]
    assert "takes (), not (overrides)" in problem


def test_every_option_of_vllms_form_is_known() -> None:
    """A new key in vLLM's speculative_config would otherwise be refused as unknown."""
    from vllm.config import SpeculativeConfig

    made_by_vllm = {
        "target_model_config",
        "target_parallel_config",
        "draft_model_config",
        "draft_parallel_config",
        "tensor_parallel_size",  # exists to warn of itself
    }
    fields = {field.name for field in dataclasses.fields(SpeculativeConfig)}
    assert fields - made_by_vllm == VLLM_KEYS


def test_server_flags_exist() -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    known = make_arg_parser(FlexibleArgumentParser())._option_string_actions
    assert {"--speculative-config", "--host", "--uds"} <= known.keys()


def test_vllm_itself_refuses_sampling_parameters_that_slipstream_serves() -> None:
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError

    for parameters in (SamplingParams(min_p=0.1), SamplingParams(logit_bias={1: 1.0})):
        parameters._validate_spec_decode(None)
        with pytest.raises(VLLMValidationError, match="speculative decoding"):
            parameters._validate_spec_decode(object())


def test_the_table_made_of_speculative_disable_by_batch_size_means_that() -> None:
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    from slipstream.config import read_speculation

    classic = {"speculative_model": "m", "num_speculative_tokens": 3, "speculative_disable_by_batch_size": 4}
    config, _ = read_speculation(classic)
    table = config.vllm["num_speculative_tokens_per_batch_size"]
    lookup = build_dynamic_sd_schedule_lookup(table, vllm_max_batch_size=16, vllm_num_speculative_tokens=3)
    assert lookup[1:] == [3] * 4 + [0] * 12
