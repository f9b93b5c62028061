"""Checks of how the models are to be run. What is said of vLLM here holds for 0.32."""

from collections.abc import Iterator

from slipstream.checkpoints import Checkpoint
from slipstream.config.resolve import default_min_p
from slipstream.config.support import Situation, Support, cases_of
from slipstream.methods import CUSTOM_CLASS, DRAFT_MODEL, DRAFTERS, MTP, method_of
from slipstream.ops.findings import Finding, Setup, Status
from slipstream.ops.host import GIB

MTP_NOT_IN_CONFIG = ("qwen3_next", "longcat_flash", "mimo_v2", "dots3_note")
"""Beginnings of model types that vLLM takes to have MTP layers without asking their config."""


def check_proposer(setup: Setup) -> Iterator[Finding]:
    choice, target = setup.choice, setup.target
    if target is not None and target.contains_drafter and not choice.left_to_vllm:
        verifier = (target.config["speculators_config"].get("verifier") or {}).get(
            "name_or_path", "its target"
        )
        reason = f"vLLM starts the drafter that {target.name} names, whatever is asked for"
        yield Finding("proposer", Status.FAIL, reason, f"serve {verifier} itself, or leave speculate on auto")
    if choice.method is None:
        yield Finding("proposer", Status.PASS, f"none of Slipstream's: {choice.why}")
        return
    tokens = "K" if choice.num_draft_tokens is None else f"K={choice.num_draft_tokens}"
    reason = f"{choice.proposer} ({choice.why}), {tokens} ({choice.why_so_many})"
    yield Finding("proposer", Status.PASS, f"{reason}, on vLLM's {setup.runner} model runner")
    if choice.composes and not choice.asynchronous and setup.runner == "V2":
        reason = "VLLM_USE_V2_MODEL_RUNNER asks for vLLM's V2 model runner, on which proposers do not compose"
        fix = (
            "unset it, or take a drafter alone, planned a step ahead: speculate {native: true, drafter: ...}"
        )
        yield Finding("proposer", Status.FAIL, reason, fix)
    method = method_of(choice.method)
    if method.package and not setup.host.has_arctic_inference:
        package = method.package.partition("==")[0]
        reason = f"{method.name} decoding needs the {package} package, which is not installed"
        yield Finding("proposer", Status.FAIL, reason, f"pip install {method.package}")
    if method.synchronous and not choice.composes and setup.deployment.async_scheduling:
        reason = f"vLLM refuses {method.name} with async_scheduling"
        yield Finding("proposer", Status.FAIL, reason, "remove async_scheduling")
    if method is MTP and setup.drafter is None and target is not None and not _has_mtp(target):
        reason = f"the config of {target.name} shows no MTP layers"
        yield Finding("proposer", Status.FAIL, reason, "leave mtp out, or take a model that has them")
    if method.runner == "V2" and setup.runner == "V1":
        reason = f"{method.name} runs on vLLM's V2 model runner only, and this set-up uses V1"
        yield Finding("proposer", Status.FAIL, reason, "take a CUDA machine with VLLM_USE_V2_MODEL_RUNNER=1")


def check_support(setup: Setup) -> Iterator[Finding]:
    """What the deployment asks for beside speculation, by the table of docs/support.md."""
    choice = setup.choice
    situation = Situation(setup.deployment, setup.target, has_drafter=choice.drafter is not None)
    if choice.composes:
        for case in cases_of(situation, Support.OFF):
            yield Finding("support", Status.FAIL, case.reason, case.fix)
    if choice.composes or choice.ahead:
        for case in cases_of(situation, Support.UNTESTED):
            fix = "compare it with bare vLLM once: slipstream verify"
            yield Finding("support", Status.WARN, f"{case.title}: untested ({case.reason})", fix)


def _has_mtp(target: Checkpoint) -> bool:
    shown = any("mtp" in key or "nextn" in key for key in (*target.config, *target.text_config))
    return shown or str(target.config.get("model_type", "")).startswith(MTP_NOT_IN_CONFIG)


def check_parallelism(setup: Setup) -> Iterator[Finding]:
    ranks = setup.deployment.tensor_parallel_size
    choice = setup.choice
    if setup.target is not None and ranks > 1:
        yield from _heads_divide(setup.target, ranks)
    if choice.drafter is None:
        return
    draft_ranks = choice.drafter.tensor_parallel_size or ranks
    if draft_ranks != ranks and choice.method == DRAFT_MODEL.name:
        reason = (
            f"the drafter is to run on {draft_ranks} ranks and the target on {ranks}; vLLM needs the same"
        )
        fix = f"leave the drafter's tensor parallel size out, or set it to {ranks}"
        yield Finding("parallelism", Status.FAIL, reason, fix)
    elif draft_ranks not in (1, ranks):
        reason = f"the drafter is to run on {draft_ranks} ranks; vLLM takes 1 or the target's {ranks}"
        yield Finding(
            "parallelism", Status.FAIL, reason, f"set the drafter's tensor parallel size to {ranks}"
        )
    elif setup.drafter is not None and draft_ranks > 1 and choice.method == DRAFT_MODEL.name:
        yield from _heads_divide(setup.drafter, draft_ranks)


def _heads_divide(checkpoint: Checkpoint, ranks: int) -> Iterator[Finding]:
    heads = checkpoint.text_config.get("num_attention_heads")
    if not heads:
        return
    if heads % ranks:
        reason = f"{checkpoint.name} has {heads} attention heads, which do not split over {ranks} ranks"
        divisors = [str(n) for n in range(1, heads + 1) if heads % n == 0]
        yield Finding("parallelism", Status.FAIL, reason, f"tensor parallel size {', '.join(divisors)}")
    else:
        yield Finding("parallelism", Status.PASS, f"{heads} heads of {checkpoint.name} over {ranks} ranks")


def check_memory(setup: Setup) -> Iterator[Finding]:
    """Weights and KV cache of both models against what vLLM will find at start.

    Fails where vLLM's own rule or plain arithmetic does; the KV cache is an estimate for plain attention.
    """
    host, deployment = setup.host, setup.deployment
    models = [model for model in (setup.target, setup.drafter) if model is not None]
    if setup.target is None or host.available_memory is None or host.total_memory is None:
        return
    ranks = deployment.tensor_parallel_size * deployment.pipeline_parallel_size
    dtype = deployment.dtype
    weights = sum(model.weight_bytes(dtype) or 0 for model in models) / ranks
    per_token = sum(model.kv_bytes_per_token(dtype) or 0 for model in models) / ranks
    length = deployment.max_model_len or setup.target.text_config.get("max_position_embeddings") or 0

    on_cpu = host.platform == "cpu"
    space = host.environ.get("VLLM_CPU_KVCACHE_SPACE", "") if on_cpu else ""
    explicit = int(space) * GIB if space.isdigit() else deployment.kv_cache_memory_bytes
    by_variable = on_cpu and (bool(space) or explicit is None)
    cache_option = "VLLM_CPU_KVCACHE_SPACE (GiB)" if by_variable else "kv_cache_memory_bytes"
    serious = Status.FAIL if on_cpu else Status.WARN  # what a GPU has free is not known as well
    budget = deployment.gpu_memory_utilization * host.total_memory
    cache = explicit if explicit is not None else budget - weights
    free = f"{host.available_memory / GIB:.1f} of {host.total_memory / GIB:.1f} GiB are free"
    numbers = (
        f"weights {weights / GIB:.2f} GiB, KV about {per_token * length / GIB:.2f} GiB for one request of "
        f"{length} tokens; {free}"
    )
    if weights > host.available_memory and not deployment.quantization:
        fix = "a smaller or quantized model, or more ranks (tensor_parallel_size)"
        yield Finding("memory", serious, numbers, fix)
    elif explicit is not None and explicit > host.available_memory:
        reason = f"a KV cache of {explicit / GIB:.1f} GiB is asked for; {free}"
        yield Finding("memory", serious, reason, f"a smaller {cache_option}")
    elif budget > host.available_memory and (explicit is None or not on_cpu):
        share = 0.95 * host.available_memory / host.total_memory
        reason = f"{numbers}; vLLM will ask for {deployment.gpu_memory_utilization:.0%} of all and stop"
        fix = f"gpu_memory_utilization={share:.2f}" + (f", or {cache_option}" if on_cpu else "")
        yield Finding("memory", serious, reason, fix)
    elif per_token * length > cache > 0:
        fits = int(cache / per_token)
        reason = f"{numbers}; the KV cache of {cache / GIB:.2f} GiB holds about {fits} tokens"
        fix = f"max_model_len={fits}, or a larger {cache_option}"
        yield Finding("memory", Status.WARN, reason, fix)
    else:
        yield Finding("memory", Status.PASS, numbers)


def check_sampling(setup: Setup) -> Iterator[Finding]:
    """Check sampling parameters: vLLM 0.32 refuses some sampling parameters while speculation is on."""
    if setup.choice.method is None:
        return
    if min_p := default_min_p(setup.deployment, setup.target):
        reason = f"the model's generation_config.json sets min_p={min_p}, which vLLM refuses with speculation"
        fix = "generation_config='vllm' (--generation-config vllm), or speculate off"
        yield Finding("sampling", Status.FAIL, reason, fix)
    if setup.deployment.logits_processors and setup.runner == "V1" and not setup.choice.composes:
        reason = f"vLLM does not run logits processors with speculation: {setup.deployment.logits_processors}"
        yield Finding("sampling", Status.FAIL, reason, "remove them, or speculate off")
    worker = setup.deployment.worker_cls
    if worker != "auto" and not worker.startswith("slipstream.") and setup.host.platform == "cpu":
        reason = (
            f"worker_cls={worker} replaces Slipstream's worker, which fixes vLLM's "
            "sampling with speculation on CPU (vllm-project/vllm#55005)"
        )
        yield Finding("sampling", Status.WARN, reason, "derive it from slipstream.engine.worker.CPUWorker")
    if setup.host.platform == "cpu" or setup.choice.composes:
        reason = "requests with min_p or logit_bias are served without drafts"
        yield Finding("sampling", Status.PASS, reason)
    else:
        reason = "requests with min_p or logit_bias are refused by vLLM while speculation is on"
        yield Finding("sampling", Status.WARN, reason, "speculate off, if your clients send them")


def check_combinations(setup: Setup) -> Iterator[Finding]:
    """Options that vLLM 0.32 takes and then ignores, or crashes on at the first request."""
    method, options = setup.choice.method, setup.choice.vllm
    sampler = options.get("rejection_sample_method", "standard")
    if sampler == "block" and setup.runner == "V1":
        reason = "rejection_sample_method=block is silently 'standard' on vLLM's V1 model runner"
        yield Finding("options", Status.WARN, reason, "remove it, or run on V2 (CUDA)")
    if sampler == "synthetic":
        reason = "rejection_sample_method=synthetic makes acceptance up: the output is not the target's"
        yield Finding("options", Status.FAIL, reason, "remove it")
    if options.get("num_speculative_tokens_per_batch_size"):
        if method and method_of(method).fixed_k:
            reason = f"{method} stops the engine as soon as the table asks for another K"
            yield Finding("options", Status.FAIL, reason, "remove num_speculative_tokens_per_batch_size")
        if method == CUSTOM_CLASS.name:
            reason = "vLLM does not tell a custom_class the K of num_speculative_tokens_per_batch_size"
            yield Finding("options", Status.WARN, reason, "remove num_speculative_tokens_per_batch_size")
        if setup.deployment.data_parallel_size > 1:
            reason = "vLLM drops num_speculative_tokens_per_batch_size under data parallelism"
            yield Finding("options", Status.WARN, reason, "remove it, or run without data parallelism")
    if options.get("disable_padded_drafter_batch") and method == DRAFT_MODEL.name:
        reason = "vLLM's draft_model works on padded batches only and stops without them"
        yield Finding("options", Status.FAIL, reason, "remove disable_padded_drafter_batch")
    if options.get("enable_adaptive_verification") and (method not in DRAFTERS or setup.runner == "V1"):
        reason = "enable_adaptive_verification works for a drafter on the V2 model runner only"
        yield Finding("options", Status.FAIL, reason, "remove enable_adaptive_verification")
    if options.get("use_heterogeneous_vocab") and method != DRAFT_MODEL.name:
        reason = "use_heterogeneous_vocab works with a draft model only"
        yield Finding("options", Status.FAIL, reason, "remove use_heterogeneous_vocab")
