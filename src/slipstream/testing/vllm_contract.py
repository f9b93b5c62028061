"""Whether a vLLM has all that Slipstream relies on, found out from its source alone."""

import ast
from dataclasses import dataclass
from typing import Any

from slipstream.engine.contract import WORKAROUNDS, Reliance, all_reliances
from slipstream.engine.patches import PATCHES, Patch
from slipstream.ops.vllm_source import VllmSource, contains, parameters

APPLIES, CANNOT_BE_APPLIED, CHECK = "applies", "cannot be applied", "perhaps not needed any more"


@dataclass(frozen=True)
class Break:
    """A symbol that is missing or differs."""

    symbol: str
    problem: str
    affects: str
    """The feature that relies on it, or the patch."""


@dataclass(frozen=True)
class Remedy:
    """A patch or a class of ours that makes up for something in vLLM."""

    name: str
    symbol: str
    state: str
    reason: str
    upstream: str


@dataclass(frozen=True)
class Comparison:
    symbols: int
    breaks: tuple[Break, ...]
    remedies: tuple[Remedy, ...]

    @property
    def features(self) -> list[str]:
        """Return the features that are affected."""
        return list(dict.fromkeys(each.affects for each in self.breaks))

    @property
    def fits(self) -> bool:
        return not self.breaks and all(remedy.state == APPLIES for remedy in self.remedies)


def compare(source: VllmSource) -> Comparison:
    """Compare a vLLM with the one that Slipstream was written for."""
    found = [(feature, reliance, why_unmet(source, reliance)) for feature, reliance in all_reliances()]
    breaks = [Break(reliance.path, problem, feature) for feature, reliance, problem in found if problem]
    states = {patch.name: (patch.symbol, why_unmet(source, as_reliance(patch))) for patch in PATCHES}
    required = {patch.name for patch in PATCHES if patch.required}
    breaks += [
        Break(
            symbol, problem, f"patch {name}" + (", without which nothing starts" if name in required else "")
        )
        for name, (symbol, problem) in states.items()
        if problem
    ]
    named = {workaround.ours for workaround in WORKAROUNDS}
    remedies = [
        Remedy(
            name, symbol, CANNOT_BE_APPLIED if problem else APPLIES, problem or "vLLM has no hook for it", ""
        )
        for name, (symbol, problem) in states.items()
        if name not in named
    ]
    for workaround in WORKAROUNDS:
        _, problem = states.get(workaround.ours, ("", ""))
        reason = problem or why_gone(source, workaround.path, workaround.code)
        state = CANNOT_BE_APPLIED if problem else CHECK if reason else APPLIES
        remedies.append(
            Remedy(
                workaround.ours, workaround.path, state, reason or "the code is there", workaround.upstream
            )
        )
    paths = {reliance.path for _, reliance in all_reliances()} | {patch.symbol for patch in PATCHES}
    return Comparison(len(paths), tuple(breaks), tuple(remedies))


def as_reliance(patch: Patch) -> Reliance:
    return Reliance(patch.symbol, tuple(name for name in patch.parameters if name != "self"))


def why_unmet(source: VllmSource, reliance: Reliance) -> str:
    """Return how a symbol differs from what is relied on; empty if it does not."""
    found = source.find(reliance.path)
    if found is None:
        return "is gone"
    problems = []
    if reliance.parameters is not None:
        takes = parameters(found.node)
        if takes is None:
            problems.append("is no function")
        elif takes != reliance.parameters:
            problems.append(f"takes ({', '.join(takes)}), not ({', '.join(reliance.parameters)})")
    if missing := [name for name in reliance.has if not source.has(found, name)]:
        problems.append(f"has no {', '.join(missing)}")
    assigned = source.attributes_set(found) if reliance.sets else set()
    if missing := [name for name in reliance.sets if name not in assigned]:
        problems.append(f"does not set {', '.join(missing)}")
    if reliance.equals is not None and (value := _value(found.node)) != reliance.equals:
        problems.append(f"is {value!r}, not {reliance.equals!r}")
    return "; ".join(problems)


def why_gone(source: VllmSource, path: str, code: str) -> str:
    """Return why some code is not needed to be worked around any more; empty if it is there."""
    found = source.find(path)
    if found is None:
        return f"{path} is gone"
    return "" if contains(found.node, code) else "the code that it makes up for is not there any more"


def _value(node: ast.AST) -> Any:
    try:
        return ast.literal_eval(getattr(node, "value", None) or node)
    except (ValueError, TypeError):
        return ast.unparse(node)
