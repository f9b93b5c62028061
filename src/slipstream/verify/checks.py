"""All checks, on servers that are started for it or on one that is running; the result is a certificate."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.reporting.run_metadata import about_this_run
from slipstream.serving.arms import Arm
from slipstream.serving.client import Served
from slipstream.serving.servers import running
from slipstream.verify.distribution import CELLS, Planned, beginnings, check, plan
from slipstream.verify.greedy import check_greedy
from slipstream.verify.known_bad import CASES, TIGHT, check_known_bad
from slipstream.workloads.loading import load_workloads

FORCED = 4
"""Draft tokens per step where drafts must be verified for the check to say anything."""
PROMPTS_PER_CASE = 12  # prompts for each known-bad feature
BARE_FLAGS = ("--logprobs-mode", "processed_logprobs")
SHORT = ("chat", "code", "math", "edit")
"""Workloads whose prompts are soon read."""
SYSTEM_PROMPTS = ("", "Answer in one sentence.", "Answer as a list.", "Explain step by step.")
"""System messages: by them the shipped prompts become as many as are asked for."""


@dataclass(frozen=True)
class Wanted:
    """How much is checked."""

    prompts: int = 200
    max_tokens: int = 32
    draws: int = 6000
    """Sampled texts per cell, at most."""
    tried: int = 8
    """Prompts among which the two are chosen that they are drawn from."""
    variation: float = 0.05
    """The TV that is to be ruled out."""
    cells: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: CELLS)
    known_bad: bool = True


class Watcher:
    """Told what is going on."""

    def doing(self, what: str, steps: int = 0) -> None: ...

    def advanced(self, steps: int = 1) -> None: ...

    def planned(self, cells: Sequence[Planned]) -> None: ...

    def found(self, part: str, result: Any) -> None: ...


def verify_model(
    model: str, speculate: str, flags: Sequence[str], wanted: Wanted, folder: Path, watcher: Watcher
) -> dict[str, Any]:
    """Start bare vLLM and the speculative server with the same flags, and compare them."""
    begun = time.monotonic()
    arms = [Arm("bare", flags=BARE_FLAGS), Arm("speculative", speculate)]
    with running(model, arms, flags, folder / "servers", watcher.doing, timed=False) as servers:
        bare, speculative = (Served(servers[arm.name].url) for arm in arms)
        result = verify_servers(bare, speculative, wanted, watcher)
    if wanted.known_bad:
        tight = [Arm("tight-bare"), Arm("tight-speculative", speculate)]
        with running(
            model, tight, [*flags, *TIGHT], folder / "servers", watcher.doing, timed=False
        ) as servers:
            bare, speculative = (Served(servers[arm.name].url) for arm in tight)
            result["known_bad"] += _known_bad(bare, speculative, result["greedy"]["noise"], True, watcher)
    return certificate(result, model, speculate, flags, time.monotonic() - begun)


def verify_servers(bare: Served, speculative: Served, wanted: Wanted, watcher: Watcher) -> dict[str, Any]:
    """Compare two running servers; they may be the same one, which then must take a request's `speculate`."""
    forced = Served(speculative.url, FORCED, speculative.api_key)
    prompts = conversations(bare, wanted.prompts)
    greedy, logprobs = check_greedy(bare, speculative, prompts, wanted.max_tokens, watcher.doing)
    watcher.found("greedy", greedy)
    watcher.found("logprobs", logprobs)
    drawn = []
    if wanted.cells:
        watcher.doing("texts in which drafts are kept and rejected")
        some = beginnings(bare, forced, conversations(bare, wanted.tried, ["edit", "summarise"]))
        watcher.doing("the law of bare vLLM", len(wanted.cells))
        cells = plan(bare, some, wanted.draws, wanted.cells, lambda _: watcher.advanced())
        watcher.planned(cells)
        watcher.doing("sampled texts", wanted.draws * len(cells))
        for cell in cells:
            drawn.append(check(cell, forced, wanted.variation, watcher.advanced))
            watcher.found("distribution", drawn[-1])
    known_bad = _known_bad(bare, forced, greedy.noise, False, watcher) if wanted.known_bad else []
    return {
        "greedy": greedy.as_dict(),
        "logprobs": logprobs.as_dict(),
        "distribution": [cell.as_dict() for cell in drawn],
        "known_bad": known_bad,
    }


def _known_bad(
    bare: Served, speculative: Served, noise: float, tight: bool, watcher: Watcher
) -> list[dict[str, Any]]:
    cases = [case for case in CASES if case.tight == tight]
    watcher.doing("features that were reported broken", len(cases))
    prompts = conversations(bare, PROMPTS_PER_CASE, ["edit", "chat", "code"])
    found = check_known_bad(bare, speculative, prompts, noise, cases, lambda _: watcher.advanced())
    for one in found:
        watcher.found("known_bad", one)
    return [one.as_dict() for one in found]


def conversations(served: Served, count: int, workloads: Sequence[str] = SHORT) -> list[list[int]]:
    """Return prompts that ship with Slipstream, taken from each workload in turn, as the model's tokens."""
    loaded = load_workloads(list(workloads), 1, served.model)
    messages = [
        ([{"role": "system", "content": way}] if way else []) + list(request.messages or [])
        for way in SYSTEM_PROMPTS
        for requests in zip(*(workload.requests for workload in loaded), strict=True)
        for request in requests
    ]
    return [served.tokens_of(one) for one in messages[:count]]


def certificate(
    result: Mapping[str, Any], model: str, speculate: str, flags: Sequence[str], seconds: float
) -> dict[str, Any]:
    return {
        "verdict": verdict(result),
        "missing": missing(result),
        "model": model,
        "files": hashes(Path(model)),
        "speculate": speculate,
        "flags": list(flags),
        "seconds": round(seconds),
        "about": about_this_run(),
        **result,
    }


def verdict(result: Mapping[str, Any]) -> str:
    """Return differs, if anything does or fails; incomplete, if something that was asked for is not shown;
    else same."""
    parts = [result["greedy"], result["logprobs"], *result["distribution"], *result["known_bad"]]
    if any(part["verdict"] in ("differs", "failed") for part in parts):
        return "differs"
    return "incomplete" if missing(result) else "same"


def missing(result: Mapping[str, Any]) -> list[str]:
    """Return what was asked for and not shown, and what to do about it."""
    found = []
    if not result["greedy"]["drafted"]:
        found.append("no token was drafted in the greedy texts: is speculation on?")
    for cell in result["distribution"]:
        if not cell["draft_tokens"] and "min_p" not in cell["sampling"]:  # served without drafts, and said so
            found.append(f"no token was drafted in sampled texts ({cell['name']})")
        elif cell["verdict"] == "unclear":
            bound = cell["judgement"]["bound"]
            found.append(f"{cell['name']}: the total variation may be up to {bound:.3f}; write more --draws")
    features = result["known_bad"]
    if features and all(feature["verdict"] in ("refused", "not exercised") for feature in features):
        found.append("no feature could be compared: see the notes")
    return found


def hashes(folder: Path) -> dict[str, str]:
    """Return SHA-256 of what the model is made of; nothing for a model that is not a local folder."""
    found = {}
    for file in sorted(folder.glob("*.json")) + sorted(folder.glob("*.safetensors")):
        with file.open("rb") as content:
            found[file.name] = hashlib.file_digest(content, "sha256").hexdigest()
    return found
