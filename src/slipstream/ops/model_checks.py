"""Checks of the two models against each other. What is said of vLLM here holds for 0.32."""

from collections.abc import Iterator
from pathlib import Path

from slipstream.checkpoints import Agreement, Checkpoint, compare_vocabularies, read_vocabulary
from slipstream.config.resolve import offered_tokens
from slipstream.methods import DRAFT_MODEL, EAGLE, method_of
from slipstream.ops.findings import Finding, Setup, Status, describe
from slipstream.ops.vllm_models import EAGLE_CLASSES, hands_over_layers

USUAL_SIZE_RATIO = 0.05
LOADED_AS_MTP = ("deepseek_v3", "deepseek_mtp")
"""Model types of EAGLE heads for which vLLM takes the class EagleDeepSeekMTPModel, whatever they name."""


def check_drafter_files(setup: Setup) -> Iterator[Finding]:
    drafter = setup.drafter
    if drafter is None:
        return
    yield Finding("drafter", Status.PASS, describe(drafter))
    if drafter.has_only_pickled_weights:
        reason = (
            f"{drafter.name} has pickled weights only; when it starts they are read as plain tensors "
            "(weights_only=True) and kept as safetensors in Slipstream's cache"
        )
        yield Finding("drafter", Status.PASS, reason)


def check_training(setup: Setup) -> Iterator[Finding]:
    """What is known of a drafter that `slipstream train` made."""
    target, drafter = setup.target, setup.drafter
    if target is None or drafter is None or not drafter.trained_for:
        return
    accepted = f"{1 + sum(drafter.held_out_survival):.2f} tokens per step on held-out texts"
    made_for = Path(drafter.trained_for).name
    if made_for == Path(target.name).name:
        yield Finding("training", Status.PASS, f"trained for this target: {accepted}")
    else:
        reason = f"trained for {made_for} ({accepted} of it)"
        fix = f"slipstream train {target.name} --start-from {drafter.name}, unless both say the same"
        yield Finding("training", Status.WARN, reason, fix)


def check_tokenizer(setup: Setup) -> Iterator[Finding]:
    """A draft model must mean the same by the same token id as the target."""
    target, drafter = setup.target, setup.drafter
    if target is None or drafter is None or setup.choice.method != DRAFT_MODEL.name:
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


def check_head_shape(setup: Setup) -> Iterator[Finding]:
    target, drafter, method = setup.target, setup.drafter, setup.choice.method
    if target is None or drafter is None or method in (None, DRAFT_MODEL.name):
        return
    if reason := why_head_does_not_fit(target, drafter):
        yield Finding("head", Status.FAIL, reason, f"take a {method} head that was trained for this target")


def why_head_does_not_fit(target: Checkpoint, head: Checkpoint) -> str:
    """Return why a head was not made for this target, whose hidden states it reads; empty if it fits."""
    config = head.config
    hidden = config.get("target_hidden_size") or head.hidden_size
    if hidden and target.hidden_size and hidden != target.hidden_size:
        return f"{head.name} is made for hidden size {hidden}, {target.name} has {target.hidden_size}"
    if method_of(head.drafter_method).takes_target_vocabulary or "draft_vocab_size" in config:
        return ""  # vLLM takes the vocabulary from the target, or the head has a map to it
    if head.vocab_size and target.vocab_size and head.vocab_size != target.vocab_size:
        return f"{head.name} is made for {head.vocab_size} tokens, {target.name} has {target.vocab_size}"
    return ""


def check_vllm_classes(setup: Setup) -> Iterator[Finding]:
    """vLLM must have a class for the head, and the target's class must hand over what the head reads."""
    target, drafter, method = setup.target, setup.drafter, setup.choice.method or ""
    train = "slipstream train TARGET --method eagle makes one"
    if drafter is not None and (reason := why_head_is_not_loaded(drafter, method)):
        yield Finding("head", Status.FAIL, reason, f"take a head that vLLM loads ({train}), or a draft model")
    if target is None or setup.deployment.model_impl not in ("auto", "vllm"):
        return
    if reason := why_target_has_no_layers(target, method, setup.host.vllm_folder, drafter):
        fix = f"take a draft model, Medusa heads or an EAGLE head ({train}), or leave the drafter out"
        yield Finding("head", Status.FAIL, reason, fix)


def why_head_is_not_loaded(head: Checkpoint, method: str) -> str:
    """Return why vLLM has no class for an EAGLE head; empty if it has one, or for other heads."""
    config = head.config["model"] if isinstance(head.config.get("model"), dict) else head.config
    if method != EAGLE.name or head.contains_drafter or config.get("model_type") in LOADED_AS_MTP:
        return ""
    names = config.get("architectures") or ()
    classes = [name if name.startswith("Eagle") else f"Eagle{name}" for name in names]
    if not classes or any(name in EAGLE_CLASSES for name in classes):
        return ""
    return f"vLLM 0.32 has no {classes[0]}, as which it would load {head.name}"


def why_target_has_no_layers(
    target: Checkpoint, method: str, vllm: Path | None, head: Checkpoint | None = None
) -> str:
    """Return why vLLM does not hand over the states of the target's layers, which the method reads; empty if
    it does, that is not known, or the head says that it reads none. `vllm` is the folder of its source."""
    nested = (head.config.get("eagle_config") if head else None) or {}
    if vllm is None or not method_of(method).reads_layers or not nested.get("use_aux_hidden_state", True):
        return ""
    known = {name: hands_over_layers(vllm, name) for name in target.architectures}
    if False not in known.values() or True in known.values():
        return ""
    return (
        f"{method} reads the states before some of the target's layers, which vLLM 0.32 does not hand over "
        f"for {', '.join(known)} (no SupportsEagle3): it would stop after loading the weights"
    )


def check_num_draft_tokens(setup: Setup) -> Iterator[Finding]:
    choice = setup.choice
    offered = offered_tokens(choice.method or "", setup.drafter or setup.target)
    if offered is None or choice.num_draft_tokens is None:
        return
    tokens, beyond = choice.num_draft_tokens, method_of(choice.method or "").beyond_offered
    if beyond == "none" and tokens > offered:
        reason = f"K={tokens}, but the drafter has {offered} heads; vLLM would add heads of random weights"
        yield Finding("K", Status.FAIL, reason, f"num_draft_tokens: {offered}, or fewer")
    elif beyond == "multiples" and tokens > offered and tokens % offered:
        reason = f"K={tokens} is not a multiple of the {offered} tokens that the MTP layers predict"
        yield Finding("K", Status.FAIL, reason, f"num_draft_tokens: {offered}, or a multiple of it")
    else:
        yield Finding("K", Status.PASS, f"K={tokens}, the drafter offers {offered}")


def check_size(setup: Setup) -> Iterator[Finding]:
    target, drafter = setup.target, setup.drafter
    if target is None or drafter is None or setup.choice.method != DRAFT_MODEL.name:
        return
    if not target.num_parameters or not drafter.num_parameters:
        return
    ratio = drafter.num_parameters / target.num_parameters
    reason = f"the drafter is {ratio:.1%} of the target's size; usual are 1% to {USUAL_SIZE_RATIO:.0%}"
    if ratio > 1:
        reason = f"the drafter has {ratio:.1f} times as many parameters as the target: it can only lose"
        fix = "take a drafter that is much smaller (slipstream pair), or change the two about"
        yield Finding("size", Status.FAIL, reason, fix)
    elif ratio > USUAL_SIZE_RATIO:
        # Break-even: K passes of relative cost c must bring more than c*K tokens.
        fix = f"take a smaller drafter; this one must have over {ratio:.0%} of its tokens accepted to pay"
        yield Finding("size", Status.WARN, reason, fix)
    else:
        yield Finding("size", Status.PASS, reason)
