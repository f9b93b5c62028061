"""The single checks: each looks at one side of a set-up and yields what it found.

A fail is something that would crash, or would quietly not do what was asked; a warning costs speed or
surprises. What is said of vLLM here holds for 0.32.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from slipstream.checkpoints import Agreement, Checkpoint, compare_vocabularies, read_vocabulary
from slipstream.config import Choice, Deployment
from slipstream.config.choice import default_min_p, offered_tokens
from slipstream.ops.host import GIB, Host

USUAL_SIZE_RATIO = 0.05
SYNCHRONOUS_METHODS = ("ngram", "suffix", "medusa", "custom_class", "mlp_speculator")


class Status(StrEnum):
    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    check: str
    status: Status
    reason: str
    fix: str = ""


@dataclass(frozen=True)
class Setup:
    """All that the checks look at."""

    deployment: Deployment
    choice: Choice
    host: Host
    target: Checkpoint | None

    @property
    def drafter(self) -> Checkpoint | None:
        return self.choice.drafter_checkpoint

    @property
    def runner(self) -> str:
        return self.host.runner(self.choice)


def describe(checkpoint: Checkpoint) -> str:
    size = checkpoint.num_parameters
    parts = [", ".join(checkpoint.architectures) or checkpoint.config.get("model_type", "unknown kind")]
    if size:
        parts.append(f"{size / 1e9:.2f}B parameters" if size >= 1e8 else f"{size / 1e6:.1f}M parameters")
    return f"{checkpoint.name} ({', '.join(parts)})"


def _check_proposer(setup: Setup) -> Iterator[Finding]:
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
    if choice.method == "mlp_speculator":
        reason = "vLLM 0.32 reads an mlp_speculator's config and then stops with 'Unknown method'"
        yield Finding("proposer", Status.FAIL, reason, "leave the drafter out (n-grams), or take another")
    if choice.method == "suffix" and not setup.host.has_arctic_inference:
        reason = "suffix decoding needs the arctic-inference package, which is not installed"
        yield Finding("proposer", Status.FAIL, reason, "pip install arctic-inference==0.1.1")
    if choice.method in SYNCHRONOUS_METHODS and setup.deployment.async_scheduling:
        reason = f"vLLM refuses {choice.method} with async_scheduling"
        yield Finding("proposer", Status.FAIL, reason, "remove async_scheduling")
    if choice.method == "mtp" and setup.drafter is None and target is not None and not _has_mtp(target):
        reason = f"the config of {target.name} shows no MTP layers"
        yield Finding("proposer", Status.FAIL, reason, "leave mtp out, or take a model that has them")
    if choice.method == "dspark" and setup.runner == "V1":
        reason = "dspark runs on vLLM's V2 model runner only, and this set-up uses V1"
        yield Finding("proposer", Status.FAIL, reason, "take a CUDA machine with VLLM_USE_V2_MODEL_RUNNER=1")


def _has_mtp(target: Checkpoint) -> bool:
    return any("mtp" in key or "nextn" in key for key in (*target.config, *target.text_config))


def _check_drafter_files(setup: Setup) -> Iterator[Finding]:
    drafter = setup.drafter
    if drafter is None:
        return
    yield Finding("drafter", Status.PASS, describe(drafter))
    if drafter.has_only_pickled_weights:
        reason = f"{drafter.name} has pickled weights only, and unpickling can run anything"
        fix = "convert them: torch.load(file, weights_only=True), then safetensors.torch.save_file"
        yield Finding("drafter", Status.FAIL, reason, fix)


def _check_tokenizer(setup: Setup) -> Iterator[Finding]:
    """A draft model must mean the same by the same token id as the target."""
    target, drafter = setup.target, setup.drafter
    if target is None or drafter is None or setup.choice.method != "draft_model":
        return
    tokenizer = Checkpoint(setup.deployment.tokenizer) if setup.deployment.tokenizer else target
    theirs, ours = read_vocabulary(tokenizer), read_vocabulary(drafter)
    mapped = bool(setup.choice.vllm.get("use_heterogeneous_vocab"))
    if target.vocab_size != drafter.vocab_size and not mapped:
        reason = f"vocab_size is {target.vocab_size} in the target and {drafter.vocab_size} in the drafter"
        fix = "take a drafter of the target's own family; use_heterogeneous_vocab maps what both have"
        yield Finding("tokenizer", Status.FAIL, f"{reason}; vLLM refuses that", fix)
    if mapped and setup.choice.vllm.get("draft_sample_method", "greedy") != "greedy":
        reason = "use_heterogeneous_vocab, which this pair needs, works with greedy drafts only"
        yield Finding("tokenizer", Status.FAIL, reason, "remove draft_sample_method")
    if theirs is None or ours is None:
        missing = tokenizer.name if theirs is None else drafter.name
        reason = f"{missing} has no tokenizer files, so the tokens cannot be compared"
        yield Finding("tokenizer", Status.WARN, reason, "add the tokenizer files to the folder")
        return
    comparison = compare_vocabularies(theirs, ours)
    if comparison.agreement is Agreement.DIFFERENT and not mapped:
        share = comparison.shared_tokens / max(len(theirs.tokens), 1)
        fix = "take a drafter of the target's own family (slipstream pair TARGET finds those here)"
        if share > 0.5:
            fix += f", or set use_heterogeneous_vocab ({share:.0%} of the tokens exist in both)"
        yield Finding("tokenizer", Status.FAIL, comparison.describe(), fix)
    elif comparison.agreement is Agreement.SAME:
        yield Finding("tokenizer", Status.PASS, comparison.describe())
        if target.vocab_size != drafter.vocab_size and mapped:
            reason = (
                f"same tokens, but the tables are padded to {target.vocab_size} and {drafter.vocab_size}; "
                "vLLM refuses that as it stands, so Slipstream sets use_heterogeneous_vocab"
            )
            yield Finding("tokenizer", Status.PASS, reason)
    elif comparison.agreement is Agreement.UNKNOWN:
        fix = "make sure that both are of one family; otherwise hardly a draft will be accepted"
        yield Finding("tokenizer", Status.WARN, comparison.describe(), fix)
    else:
        fix = "the output stays right; drafts of those tokens will be rejected"
        yield Finding("tokenizer", Status.WARN, comparison.describe(), fix)


def _check_head_shape(setup: Setup) -> Iterator[Finding]:
    target, drafter, method = setup.target, setup.drafter, setup.choice.method
    if target is None or drafter is None or method in (None, "draft_model"):
        return
    if reason := why_head_does_not_fit(target, drafter):
        yield Finding("head", Status.FAIL, reason, f"take a {method} head that was trained for this target")


def why_head_does_not_fit(target: Checkpoint, head: Checkpoint) -> str:
    """A head reads the target's hidden state, so it must have been made for this target."""
    config = head.config
    hidden = config.get("target_hidden_size") or head.hidden_size
    if hidden and target.hidden_size and hidden != target.hidden_size:
        return f"{head.name} is made for hidden size {hidden}, {target.name} has {target.hidden_size}"
    if head.drafter_method == "medusa" or "draft_vocab_size" in config:
        return ""  # vLLM takes the vocabulary from the target, or the head has a map to it
    if head.vocab_size and target.vocab_size and head.vocab_size != target.vocab_size:
        return f"{head.name} is made for {head.vocab_size} tokens, {target.name} has {target.vocab_size}"
    return ""


def _check_num_draft_tokens(setup: Setup) -> Iterator[Finding]:
    choice = setup.choice
    offered = offered_tokens(choice.method or "", setup.drafter or setup.target)
    if offered is None or choice.num_draft_tokens is None:
        return
    tokens = choice.num_draft_tokens
    if choice.method in ("medusa", "mlp_speculator") and tokens > offered:
        reason = f"K={tokens}, but the drafter has {offered} heads; vLLM would add heads of random weights"
        yield Finding("K", Status.FAIL, reason, f"num_draft_tokens: {offered}, or fewer")
    elif choice.method == "mtp" and tokens > offered and tokens % offered:
        reason = f"K={tokens} is not a multiple of the {offered} tokens that the MTP layers predict"
        yield Finding("K", Status.FAIL, reason, f"num_draft_tokens: {offered}, or a multiple of it")
    else:
        yield Finding("K", Status.PASS, f"K={tokens}, the drafter offers {offered}")


def _check_size(setup: Setup) -> Iterator[Finding]:
    target, drafter = setup.target, setup.drafter
    if target is None or drafter is None or setup.choice.method != "draft_model":
        return
    if not target.num_parameters or not drafter.num_parameters:
        return
    ratio = drafter.num_parameters / target.num_parameters
    reason = f"the drafter is {ratio:.1%} of the target's size; usual are 1% to {USUAL_SIZE_RATIO:.0%}"
    if ratio > USUAL_SIZE_RATIO:
        # Break-even: K passes of relative cost c must bring more than c*K tokens.
        fix = f"take a smaller drafter; this one must have over {ratio:.0%} of its tokens accepted to pay"
        yield Finding("size", Status.WARN, reason, fix)
    else:
        yield Finding("size", Status.PASS, reason)


def _check_parallelism(setup: Setup) -> Iterator[Finding]:
    ranks = setup.deployment.tensor_parallel_size
    choice = setup.choice
    if setup.target is not None and ranks > 1:
        yield from _heads_divide(setup.target, ranks)
    if choice.drafter is None:
        return
    draft_ranks = choice.drafter.tensor_parallel_size or ranks
    if draft_ranks != ranks and choice.method == "draft_model":
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
    elif setup.drafter is not None and draft_ranks > 1 and choice.method == "draft_model":
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


def _check_memory(setup: Setup) -> Iterator[Finding]:
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
        yield Finding("memory", serious, reason, "a smaller kv_cache_memory_bytes")
    elif budget > host.available_memory and (explicit is None or not on_cpu):
        share = 0.95 * host.available_memory / host.total_memory
        reason = f"{numbers}; vLLM will ask for {deployment.gpu_memory_utilization:.0%} of all and stop"
        fix = f"gpu_memory_utilization={share:.2f}" + (", or kv_cache_memory_bytes" if on_cpu else "")
        yield Finding("memory", serious, reason, fix)
    elif per_token * length > cache > 0:
        fits = int(cache / per_token)
        reason = f"{numbers}; the KV cache of {cache / GIB:.2f} GiB holds about {fits} tokens"
        fix = f"max_model_len={fits}, or a larger kv_cache_memory_bytes"
        yield Finding("memory", Status.WARN, reason, fix)
    else:
        yield Finding("memory", Status.PASS, numbers)


def _check_sampling(setup: Setup) -> Iterator[Finding]:
    """vLLM 0.32 refuses some sampling parameters while speculation is on."""
    if setup.choice.method is None:
        return
    if min_p := default_min_p(setup.deployment, setup.target):
        reason = f"the model's generation_config.json sets min_p={min_p}, which vLLM refuses with speculation"
        fix = "generation_config='vllm' (--generation-config vllm), or speculate off"
        yield Finding("sampling", Status.FAIL, reason, fix)
    if setup.deployment.logits_processors:
        reason = f"vLLM does not run logits processors with speculation: {setup.deployment.logits_processors}"
        yield Finding("sampling", Status.FAIL, reason, "remove them, or speculate off")
    if setup.deployment.worker_cls != "auto" and setup.host.platform == "cpu":
        reason = (
            f"worker_cls={setup.deployment.worker_cls} replaces Slipstream's worker, which mends vLLM's "
            "sampling with speculation on CPU (vllm-project/vllm#55005)"
        )
        yield Finding("sampling", Status.WARN, reason, "derive it from slipstream.engine.worker.CPUWorker")
    reason = "requests with min_p or logit_bias are refused by vLLM while speculation is on"
    yield Finding("sampling", Status.WARN, reason, "speculate off, if your clients send them")


def _check_combinations(setup: Setup) -> Iterator[Finding]:
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
        if method in ("suffix", "medusa"):
            reason = f"{method} stops the engine as soon as the table asks for another K"
            yield Finding("options", Status.FAIL, reason, "remove num_speculative_tokens_per_batch_size")
        if method == "custom_class":
            reason = "vLLM does not tell a custom_class the K of num_speculative_tokens_per_batch_size"
            yield Finding("options", Status.WARN, reason, "remove num_speculative_tokens_per_batch_size")
        if setup.deployment.data_parallel_size > 1:
            reason = "vLLM drops num_speculative_tokens_per_batch_size under data parallelism"
            yield Finding("options", Status.WARN, reason, "remove it, or run without data parallelism")
    if options.get("disable_padded_drafter_batch") and method == "draft_model":
        reason = "vLLM's draft_model works on padded batches only and stops without them"
        yield Finding("options", Status.FAIL, reason, "remove disable_padded_drafter_batch")
    if options.get("enable_adaptive_verification") and method != "dspark":
        reason = "enable_adaptive_verification works with dspark on the V2 model runner only"
        yield Finding("options", Status.FAIL, reason, "remove enable_adaptive_verification")
    if options.get("use_heterogeneous_vocab") and method != "draft_model":
        reason = "use_heterogeneous_vocab works with a draft model only"
        yield Finding("options", Status.FAIL, reason, "remove use_heterogeneous_vocab")


CHECKS: tuple[Callable[[Setup], Iterator[Finding]], ...] = (
    _check_proposer,
    _check_drafter_files,
    _check_tokenizer,
    _check_head_shape,
    _check_num_draft_tokens,
    _check_size,
    _check_parallelism,
    _check_memory,
    _check_sampling,
    _check_combinations,
)
