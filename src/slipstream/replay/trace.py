"""A trace: the steps of a run and, for every request, what free proposers offer at each place of its answer.

It holds numbers only, no token and no text. Every line is a JSON object; the first describes the engine, the
others are steps and finished requests, in the order in which they ended.
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from slipstream.errors import ConfigError
from slipstream.planning.objective import Objective
from slipstream.planning.planner import StepOutcome
from slipstream.planning.step_cost import PassProfile, Step

VERSION = 2


@dataclass(frozen=True)
class Limits:
    """What vLLM's scheduler may put into a step."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_draft_tokens: int


@dataclass(frozen=True)
class Offered:
    """A draft at one place of an answer: how many of its tokens the target wrote, and its stated survival."""

    right: int
    survival: Sequence[float]


@dataclass(frozen=True)
class TracedRequest:
    arrived: float
    """Seconds after the first request."""
    finished_before: int
    """Requests that had finished when it arrived."""
    prompt_tokens: int
    cached_tokens: int
    """Of its prompt, that were in the prefix cache."""
    output_tokens: int
    max_tokens: int
    """The limit of its answer."""
    offers: Mapping[str, Mapping[int, Offered]]
    """By proposer, by the number of output tokens before the draft."""

    def as_dict(self) -> dict[str, Any]:
        offers = {
            name: [[place, offered.right, list(offered.survival)] for place, offered in places.items()]
            for name, places in self.offers.items()
        }
        return {**asdict(self), "offers": offers}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        offers = {
            name: {place: Offered(right, survival) for place, right, survival in places}
            for name, places in content["offers"].items()
        }
        return cls(**{**content, "offers": offers})


@dataclass(frozen=True)
class Trace:
    limits: Limits
    profile: PassProfile | None
    objective: Objective
    steps: Sequence[StepOutcome]
    requests: Sequence[TracedRequest]


def read_trace(path: Path) -> Trace:
    """Read a trace, compressed (.gz) or not; a last line that is cut off, because the server was killed, is
    left out."""
    try:
        content = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
        lines = content.split("\n")[:-1]
        head, *rest = [json.loads(line) for line in lines]
        if head.get("slipstream_trace") != VERSION:
            raise ValueError(f"it begins with {str(head)[:60]}")
        profile = PassProfile.from_dict(head["profile"]) if head["profile"] else None
        steps = [
            StepOutcome(**{**line["step"], "step": Step(*line["step"]["step"])})
            for line in rest
            if "step" in line
        ]
        requests = [TracedRequest.from_dict(line["request"]) for line in rest if "request" in line]
        return Trace(Limits(**head["limits"]), profile, Objective(head["objective"]), steps, requests)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: no trace of slipstream serve --trace: {error}") from error
