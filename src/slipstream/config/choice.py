"""What a `SpeculationConfig` comes to for a given target: which proposer, which drafter, how many.

Until the planner exists, `auto` is a fixed rule: the drafter if one is given, else n-gram lookup, at a
modest fixed K.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipstream.checkpoints import (
    Agreement,
    Checkpoint,
    compare_vocabularies,
    open_checkpoint,
    read_vocabulary,
)
from slipstream.config.deployment import Deployment, opaque_reason
from slipstream.config.speculation import Drafter, Ngram, SpeculationConfig
from slipstream.errors import CheckpointError

AUTO_K = 3


@dataclass(frozen=True)
class Choice:
    """One engine's proposer. `method` is vLLM's name for it; None means no speculation."""

    method: str | None
    why: str
    num_draft_tokens: int | None = None
    why_so_many: str = ""
    drafter: Drafter | None = None
    drafter_checkpoint: Checkpoint | None = None
    ngram: Ngram | None = None
    custom_class: str | None = None
    vllm: Mapping[str, Any] = field(default_factory=dict)
    left_to_vllm: bool = False
    """The target's checkpoint names its own drafter, and vLLM starts it without being asked."""

    @property
    def proposer(self) -> str:
        """The proposer in one phrase."""
        if self.method is None:
            return "none"
        if self.ngram:
            return f"ngram (matches of {self.ngram.min} to {self.ngram.max} tokens)"
        return self.method


def choose(config: SpeculationConfig, deployment: Deployment, target: Checkpoint | None) -> Choice:
    """Settle everything that `config` leaves open. `target` is None if it cannot be looked into."""
    if config.mode == "off":
        return Choice(None, "speculate is off")
    if config.drafter is not None:
        return _choose_drafter(config, config.drafter, deployment, target)
    if config.mode == "auto" and not config.proposers:
        if target is not None and target.contains_drafter:
            why = "the target's checkpoint names its own drafter, which vLLM starts"
            return Choice(None, why, left_to_vllm=True)
        if reason := _reason_to_stay_off(deployment, target):
            return Choice(None, f"auto, and {reason}")
    if config.suffix and config.num_draft_tokens is None:
        return Choice("suffix", "asked for", why_so_many="as many as vLLM finds worth it", vllm=config.vllm)
    tokens, why_so_many = _num_draft_tokens(config, None)
    common: dict[str, Any] = {
        "num_draft_tokens": tokens, "why_so_many": why_so_many, "vllm": config.vllm,
    }  # fmt: skip
    if config.custom_class:
        return Choice("custom_class", "asked for", custom_class=config.custom_class, **common)
    if config.suffix:
        return Choice("suffix", "asked for", **common)
    why = "asked for" if config.ngram else "auto, and no drafter is given"
    return Choice("ngram", why, ngram=config.ngram or Ngram(), **common)


def default_min_p(deployment: Deployment, target: Checkpoint | None) -> float:
    """The min_p that vLLM gives to every request because the model's generation_config.json says so."""
    if target is None or deployment.generation_config != "auto":
        return 0.0
    return float(target.json("generation_config.json").get("min_p") or 0.0)


def _reason_to_stay_off(deployment: Deployment, target: Checkpoint | None) -> str:
    """Why speculation that nobody asked for by name would break what works without it."""
    if deployment.logits_processors:
        return "vLLM does not run custom logits processors with speculation"
    if deployment.async_scheduling:
        return "vLLM refuses n-gram lookup with async_scheduling"
    if deployment.runner == "pooling" or deployment.convert not in ("auto", "none"):
        return "the model is run for pooling, not for generating"
    if target is None:
        return ""
    if not target.generates_text:
        return f"the model ({', '.join(target.architectures)}) is no decoder that generates text"
    if min_p := default_min_p(deployment, target):
        return f"the model's generation_config.json sets min_p={min_p}, which vLLM refuses with speculation"
    return ""


def _choose_drafter(
    config: SpeculationConfig, drafter: Drafter, deployment: Deployment, target: Checkpoint | None
) -> Choice:
    checkpoint = _open_drafter(drafter, deployment)
    if checkpoint and not drafter.method:
        method, why = checkpoint.drafter_method, "told from the drafter's checkpoint"
    else:
        method, why = str(drafter.method), "asked for"
    tokens, why_so_many = _num_draft_tokens(config, offered_tokens(method, checkpoint or target))
    options = dict(config.vllm)
    if checkpoint and checkpoint.drafts_in_parallel:
        options.setdefault("parallel_drafting", True)
    if method == "draft_model" and target and checkpoint and _differ_in_padding(target, checkpoint):
        options.setdefault("use_heterogeneous_vocab", True)
    return Choice(
        method,
        why,
        num_draft_tokens=tokens,
        why_so_many=why_so_many,
        drafter=drafter,
        drafter_checkpoint=checkpoint,
        vllm=options,
    )


def _open_drafter(drafter: Drafter, deployment: Deployment) -> Checkpoint | None:
    if drafter.model is None:
        return None
    if reason := opaque_reason(drafter.model, deployment):
        if drafter.method is None:
            raise CheckpointError(f"{drafter.model}: not looked into ({reason}); write its method as well")
        return None
    return open_checkpoint(drafter.model, drafter.revision)


def _differ_in_padding(target: Checkpoint, drafter: Checkpoint) -> bool:
    """Same tokens in tables of different sizes, as in the Qwen family: vLLM refuses that as it stands,
    but runs it, with the same drafts, when told to map one vocabulary onto the other."""
    if target.vocab_size == drafter.vocab_size:
        return False
    ours, theirs = read_vocabulary(target), read_vocabulary(drafter)
    if ours is None or theirs is None:
        return False
    return compare_vocabularies(ours, theirs).agreement in (
        Agreement.SAME,
        Agreement.SPECIAL_TOKENS_DIFFER,
    )


def offered_tokens(method: str, checkpoint: Checkpoint | None) -> int | None:
    """How many tokens a drafter offers per step; None if it can draft any number."""
    if checkpoint is None:
        return None
    config = checkpoint.text_config
    keys = {
        "medusa": ("num_heads", "medusa_num_heads"),
        "mlp_speculator": ("n_predict",),
        "mtp": ("n_predict", "num_nextn_predict_layers"),
        "dflash": ("block_size",),
        "dspark": ("block_size", "dspark_block_size"),
    }.get(method, ())
    return next((int(config[key]) for key in keys if config.get(key)), None)


def _num_draft_tokens(config: SpeculationConfig, offered: int | None) -> tuple[int, str]:
    tokens = config.num_draft_tokens
    if tokens is not None and config.mode == "auto" and offered is not None and offered < tokens:
        return offered, f"at most {tokens} asked for, the drafter offers {offered}"
    if tokens is not None:
        return tokens, "asked for"
    why = "auto keeps it fixed and modest until the planner exists"
    if offered is not None and offered < AUTO_K:
        return offered, f"{why}; the drafter offers {offered}"
    return AUTO_K, why
