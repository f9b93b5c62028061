"""What a `SpeculationConfig` comes to for a given target: which proposers, which drafter, how many tokens.

`auto` is n-gram lookup and suffix decoding, the drafter too if one is given; how much of what they offer is
verified, the planner decides at every step.
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
from slipstream.config.speculation import MAX_DRAFT_TOKENS, Drafter, Ngram, SpeculationConfig, Suffix
from slipstream.config.support import unsupported_reason
from slipstream.errors import CheckpointError, ConfigError
from slipstream.methods import CUSTOM_CLASS, DFLASH, DRAFT_MODEL, NGRAM, SUFFIX, method_of

AUTO_K = 8  # at most; the planner verifies fewer where fewer pay
UNPLANNED_K = 3

# Options of vLLM that only its own way of drafting can follow; the last is a planner of its own.
ALONE_OPTIONS = (
    "num_speculative_tokens_per_batch_size", "draft_sample_method", "parallel_drafting",
    "enable_adaptive_verification",
)  # fmt: skip


@dataclass(frozen=True)
class ResolvedSpeculation:
    """What one engine drafts with."""

    method: str | None
    """vLLM's name of what drafts in its workers; `custom_class` if nothing does; None: no speculation."""
    why: str
    num_draft_tokens: int | None = None
    why_so_many: str = ""
    drafter: Drafter | None = None
    drafter_checkpoint: Checkpoint | None = None
    ngram: Ngram | None = None
    custom_class: str | None = None
    free: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Slipstream's free proposers with their options; they compose with each other and with the drafter."""
    plans: bool = False
    """How much is drafted and verified is decided at every step."""
    ahead: bool = False
    """It is vLLM's own drafter that is planned, a step ahead."""
    asynchronous: bool = False
    """Proposers compose on vLLM's V2 model runner: drafts are made while a step is under way."""
    max_requested_tokens: int = MAX_DRAFT_TOKENS
    """Draft tokens that a request may ask for itself."""
    objective: str | None = None
    """What is planned for; None: as the engine is used."""
    max_tpot_ms: float | None = None
    max_ttft_ms: float | None = None
    share: str = "off"
    """Between whose requests the suffix proposer shares text."""
    vllm: Mapping[str, Any] = field(default_factory=dict)
    left_to_vllm: bool = False
    """The target's checkpoint names its own drafter, and vLLM starts it without being asked."""

    @property
    def proposer(self) -> str:
        """Return the proposers in one phrase."""
        if self.method is None:
            return "none"
        named = [_in_words(name, options) for name, options in self.free.items()]
        if self.ngram:
            named.append(f"vLLM's {_in_words('ngram', self.ngram.model_dump())}")
        elif self.drafter or not self.free:
            named.append(self.method)
        return ", ".join(named)

    @property
    def composes(self) -> bool:
        """Return whether Slipstream drafts, not vLLM's own proposer."""
        return bool(self.free or (self.method and method_of(self.method).implementation))


def choose(
    config: SpeculationConfig, deployment: Deployment, target: Checkpoint | None
) -> ResolvedSpeculation:
    """Settle everything that `config` leaves open. `target` is None if it cannot be looked into."""
    if config.mode == "off":
        return ResolvedSpeculation(None, "speculate is off")
    if config.drafter is not None:
        return _choose_drafter(config, config.drafter, deployment, target)
    if config.mode == "auto" and not config.proposers:
        if target is not None and target.contains_drafter:
            why = "the target's checkpoint names its own drafter, which vLLM starts"
            return ResolvedSpeculation(None, why, left_to_vllm=True)
        if reason := _reason_to_stay_off(deployment, target):
            return ResolvedSpeculation(None, f"auto, and {reason}")
    if config.native and config.suffix and config.num_draft_tokens is None:
        return ResolvedSpeculation(
            SUFFIX.name, "asked for", why_so_many="as many as vLLM finds worth it", vllm=config.vllm
        )
    plans = config.mode == "auto" and not (config.native or config.custom_class)
    tokens, why_so_many = _num_draft_tokens(config, None, plans)
    common: dict[str, Any] = {
        "num_draft_tokens": tokens, "why_so_many": why_so_many, "vllm": config.vllm,
    }  # fmt: skip
    if config.custom_class:
        return ResolvedSpeculation(CUSTOM_CLASS.name, "asked for", custom_class=config.custom_class, **common)
    if config.native:
        method = SUFFIX.name if config.suffix else NGRAM.name
        return ResolvedSpeculation(method, "asked for", ngram=config.ngram, **common)
    why = "asked for" if config.proposers else f"{config.mode}, and no drafter is given"
    return ResolvedSpeculation(
        CUSTOM_CLASS.name,
        why,
        free=_free_proposers(config),
        plans=plans,
        asynchronous=deployment.v2,
        max_requested_tokens=config.max_requested_tokens,
        objective=config.objective,
        max_tpot_ms=config.max_tpot_ms,
        max_ttft_ms=config.max_ttft_ms,
        share=_share(config),
        **common,
    )


def _free_proposers(config: SpeculationConfig) -> dict[str, dict[str, Any]]:
    """Return the options of those that are named; of all of ours if none is."""
    ngram, suffix, grammar = config.ngram, config.suffix, config.grammar
    if not (ngram or suffix or grammar or config.plugins):
        ngram, suffix, grammar = Ngram(), Suffix(), True
    free: dict[str, dict[str, Any]] = {}
    if ngram:
        resume = config.mode == "auto" if ngram.resume is None else ngram.resume
        free["ngram"] = {**ngram.model_dump(), "resume": resume}
    if suffix:
        free["suffix"] = {
            "share": suffix.share != "off",
            "share_prompts": suffix.share_prompts,
            "max_tokens": suffix.max_tokens,
            "max_age": suffix.max_age_seconds,
            "per_matched_token": suffix.per_matched_token,
        }
    if grammar:
        free["grammar"] = {}
    return free | config.plugins


def _share(config: SpeculationConfig) -> str:
    return config.suffix.share if config.suffix else "off"


def _in_words(name: str, options: Mapping[str, Any]) -> str:
    if name == "ngram":
        return f"ngram (matches of {options['min']} to {options['max']} tokens)"
    return name


def default_min_p(deployment: Deployment, target: Checkpoint | None) -> float:
    """Return the min_p that vLLM gives to every request because the model's generation_config.json says
    so."""
    if target is None or deployment.generation_config != "auto":
        return 0.0
    return float(target.json("generation_config.json").get("min_p") or 0.0)


def _reason_to_stay_off(deployment: Deployment, target: Checkpoint | None) -> str:
    """Return why speculation that nobody asked for by name would break what works without it."""
    if reason := unsupported_reason(deployment, target):
        return reason
    if target is None:
        return ""
    if not target.generates_text:
        return f"the model ({', '.join(target.architectures)}) is no decoder that generates text"
    if min_p := default_min_p(deployment, target):
        return f"the model's generation_config.json sets min_p={min_p}, which vLLM refuses with speculation"
    return ""


def _choose_drafter(
    config: SpeculationConfig, drafter: Drafter, deployment: Deployment, target: Checkpoint | None
) -> ResolvedSpeculation:
    checkpoint = _open_drafter(drafter, deployment)
    if checkpoint and not drafter.method:
        method, why = checkpoint.drafter_method, "told from the drafter's checkpoint"
    else:
        method, why = str(drafter.method), "asked for"
    free = _free_beside_drafter(config, method, deployment, target)
    options = dict(config.vllm)
    if checkpoint and checkpoint.drafts_in_parallel:
        options.setdefault("parallel_drafting", True)
    if options.get("parallel_drafting"):
        free = {}
    ahead = config.native and config.mode == "auto" and method_of(method).plans_ahead
    ahead = ahead and not (options.get("parallel_drafting") or options.get("enable_adaptive_verification"))
    ahead = ahead and not unsupported_reason(deployment, target, has_drafter=True, ahead=True)
    plans = ahead or (config.mode == "auto" and bool(free or method_of(method).implementation))
    offered = offered_tokens(method, checkpoint or target)
    tokens, why_so_many = _num_draft_tokens(config, offered, plans)
    if method == DRAFT_MODEL.name and target and checkpoint and _differ_in_padding(target, checkpoint):
        options.setdefault("use_heterogeneous_vocab", True)
    on_v2 = deployment.v2 and method_of(method).overlaid and not options.get("use_heterogeneous_vocab")
    return ResolvedSpeculation(
        method,
        why,
        num_draft_tokens=tokens,
        why_so_many=why_so_many,
        drafter=drafter,
        drafter_checkpoint=checkpoint,
        free=free,
        plans=plans,
        ahead=ahead,
        asynchronous=bool(free) and on_v2,
        max_requested_tokens=config.max_requested_tokens,
        objective=config.objective,
        max_tpot_ms=config.max_tpot_ms,
        max_ttft_ms=config.max_ttft_ms,
        share=_share(config),
        vllm=options,
    )


def _free_beside_drafter(
    config: SpeculationConfig, method: str, deployment: Deployment, target: Checkpoint | None
) -> dict[str, dict[str, Any]]:
    """Return what drafts beside the drafter: what is named, else all in `auto` and nothing in `fixed`."""
    named = [name for name in config.proposers if name != "drafter"]
    if config.native or (config.mode == "fixed" and not named):
        return {}
    reason = ""
    overlaid = deployment.v2 and method_of(method).overlaid
    # Of DFlash's kinds some keep the logits of a few candidates only, and would not clear ours away.
    samples = overlaid and method != DFLASH.name
    alone = [option for option in ALONE_OPTIONS if not (samples and option == "draft_sample_method")]
    if not method_of(method).composable and not overlaid:
        reason = f"a drafter of method {method} runs alone on vLLM 0.32"
    elif options := [option for option in alone if config.vllm.get(option)]:
        reason = f"{', '.join(options)} works for a drafter alone"
    else:
        reason = unsupported_reason(deployment, target, has_drafter=True)
    if reason and named:
        raise ConfigError(f"speculate: {reason}; the drafter runs alone: leave out {', '.join(named)}")
    return {} if reason else _free_proposers(config)


def _open_drafter(drafter: Drafter, deployment: Deployment) -> Checkpoint | None:
    if drafter.model is None:
        return None
    if reason := opaque_reason(drafter.model, deployment):
        if drafter.method is None:
            raise CheckpointError(f"{drafter.model}: not looked into ({reason}); write its method as well")
        return None
    return open_checkpoint(drafter.model, drafter.revision)


def _differ_in_padding(target: Checkpoint, drafter: Checkpoint) -> bool:
    """Return whether they have the same tokens in tables of different sizes, as in the Qwen family: vLLM
    refuses that as it stands, but runs it, with the same drafts, when told to map one vocabulary onto the
    other."""
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
    """Return how many tokens a drafter offers per step; None if it can draft any number."""
    if checkpoint is None:
        return None
    config = checkpoint.text_config
    keys = method_of(method).offered_keys
    return next((int(config[key]) for key in keys if config.get(key)), None)


def _num_draft_tokens(config: SpeculationConfig, offered: int | None, plans: bool) -> tuple[int, str]:
    tokens = config.num_draft_tokens
    if tokens is not None and config.mode == "auto" and offered is not None and offered < tokens:
        return offered, f"at most {tokens} asked for, the drafter offers {offered}"
    if tokens is not None:
        return tokens, "at most, planned at every step" if plans else "asked for"
    most = AUTO_K if plans else UNPLANNED_K
    why = "at most, planned at every step" if plans else "modest, since vLLM runs this drafter by itself"
    return (
        (most, why) if offered is None or offered >= most else (offered, f"{why}; the drafter offers no more")
    )
