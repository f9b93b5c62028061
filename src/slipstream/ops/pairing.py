"""Which drafter fits a target: candidates ranked by compatibility, then by predicted speedup."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from slipstream.checkpoints import (
    Agreement,
    Checkpoint,
    Vocabulary,
    compare_vocabularies,
    open_checkpoint,
    read_vocabulary,
)
from slipstream.checkpoints.catalogue import Published
from slipstream.checkpoints.hub import cached_models, is_unreachable
from slipstream.config.resolve import offered_tokens
from slipstream.errors import CheckpointError
from slipstream.methods import Kind, method_of
from slipstream.ops.host import vllm_folder
from slipstream.ops.model_checks import (
    why_head_does_not_fit,
    why_head_is_not_loaded,
    why_target_has_no_layers,
)
from slipstream.planning.prediction import best_num_draft_tokens, speedup


@dataclass(frozen=True)
class Candidate:
    """One possible drafter. Without measurements the prediction rests on an assumed acceptance rate."""

    name: str
    method: str
    compatible: bool
    reason: str
    size_ratio: float | None = None
    num_draft_tokens: int | None = None
    predicted_speedup: float | None = None
    source: str | None = None
    """Where a drafter of the catalogue is named."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def rank_drafters(
    target: Checkpoint, names: Iterable[str], acceptance: float, published: Iterable[Published] = ()
) -> list[Candidate]:
    """Return candidates, those with these names and the published ones: the best first, incompatible ones
    last, with the reason. `target` itself is left out."""
    vocabulary = read_vocabulary(target)
    own = Path(target.name).expanduser().resolve()
    known = {entry.drafter: entry for entry in published}
    candidates = []
    for name in dict.fromkeys([*names, *known]):
        if name != target.name and Path(name).expanduser().resolve() != own:
            candidate = _judge(target, vocabulary, name, acceptance)
            candidates.append(_with_note(candidate, known[name]) if name in known else candidate)
    return sorted(candidates, key=lambda c: (not c.compatible, -(c.predicted_speedup or 0.0), c.name))


def _with_note(candidate: Candidate, entry: Published) -> Candidate:
    """Return a candidate with what the catalogue says of it, which is all where the hub cannot be asked."""
    if not candidate.method and is_unreachable():
        reason = f"{entry.note}; size unknown: the hub cannot be reached"
        return Candidate(candidate.name, entry.method, True, reason, source=entry.source)
    reason = "; ".join(part for part in (candidate.reason, entry.note) if part)
    return replace(candidate, method=candidate.method or entry.method, reason=reason, source=entry.source)


def find_candidates(places: Sequence[str]) -> list[str]:
    """Models named in `places`: ids, model folders, or folders of model folders.

    With no places, everything in the local Hugging Face cache.
    """
    if not places:
        return cached_models()
    names: list[str] = []
    for place in places:
        folder = Path(place).expanduser()
        if folder.is_dir() and not (folder / "config.json").exists():
            names.extend(str(config.parent) for config in sorted(folder.glob("*/config.json")))
        else:
            names.append(place)
    return names


def _judge(target: Checkpoint, vocabulary: Vocabulary | None, name: str, acceptance: float) -> Candidate:
    try:
        drafter = open_checkpoint(name)
        method = drafter.drafter_method
        reason = why_not(target, vocabulary, drafter, method)
        ratio = None
        if drafter.num_parameters and target.num_parameters:
            ratio = drafter.num_parameters / target.num_parameters
    except CheckpointError as error:
        return Candidate(name, "", False, str(error))
    if reason:
        return Candidate(name, method, False, reason, ratio)
    if ratio is None:
        return Candidate(name, method, True, "its size is not known here, so nothing is predicted")
    # Heads that draft all tokens in one go cost one pass, whatever K is.
    one_pass = method_of(method).one_pass
    if survival := drafter.held_out_survival:
        cost = ratio if one_pass else ratio * len(survival)
        length = 1 + sum(survival)
        return Candidate(
            name, method, True, f"measured on held-out texts: {length:.2f} tokens per step", ratio,
            len(survival), length / (1 + cost),
        )  # fmt: skip
    most = offered_tokens(method, drafter) or 8
    tokens = most if one_pass else best_num_draft_tokens(acceptance, ratio, most)
    gain = speedup(acceptance, tokens, ratio / max(tokens, 1) if one_pass else ratio)
    if tokens == 0:
        return Candidate(name, method, True, "too large to pay at this acceptance", ratio, 0, 1.0)
    return Candidate(name, method, True, "", ratio, tokens, gain)


def why_not(target: Checkpoint, vocabulary: Vocabulary | None, drafter: Checkpoint, method: str) -> str:
    """Return why `drafter` cannot draft for `target`; empty if it can."""
    if method_of(method).kind is Kind.HEAD:
        return (
            why_head_does_not_fit(target, drafter)
            or why_head_is_not_loaded(drafter, method)
            or why_target_has_no_layers(target, method, vllm_folder(), drafter)
        )
    if not drafter.generates_text:
        return f"{', '.join(drafter.architectures)} does not generate text"
    theirs = read_vocabulary(drafter)
    if vocabulary is None or theirs is None:
        return "" if drafter.vocab_size == target.vocab_size else "no tokenizer to compare, other size"
    comparison = compare_vocabularies(vocabulary, theirs)
    if comparison.agreement is Agreement.DIFFERENT:
        share = comparison.shared_tokens / max(len(vocabulary.tokens), 1)
        return f"another tokenizer ({share:.0%} of the target's tokens exist in it)"
    if drafter.num_parameters and target.num_parameters and drafter.num_parameters >= target.num_parameters:
        return "not smaller than the target"
    return ""
