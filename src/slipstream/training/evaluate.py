"""The number that matters: how many draft tokens the target accepts, on held-out texts.

A draft token that is certain of itself is accepted as often as the target writes that token, whatever the
sampling: so on texts that were sampled as they will be served, what would have been accepted is what agrees
with the text. From each step the text is followed to the next one, as the engine does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.drafting.base import Draft, Proposer, RequestInfo, common_prefix
from slipstream.drafting.composer import Composer
from slipstream.drafting.registry import make_proposer
from slipstream.drafting.requests import RunningRequest
from slipstream.loop import SpeculationLoop
from slipstream.planning.policy import VerifyAll
from slipstream.planning.prediction import Acceptance
from slipstream.planning.step_cost import Step
from slipstream.training.drafter import Batch, TrainableDrafter
from slipstream.training.features import Example, batches_of

BATCH_TOKENS = 2048
FREE: Mapping[str, Mapping[str, Any]] = {
    "ngram": {},
    "suffix": {
        "share": False, "max_tokens": 0, "max_age": 0.0, "share_prompts": False, "per_matched_token": 1.0,
    },
}  # fmt: skip

Guesses = NDArray[np.int64]
"""[places, draft tokens]: what would be drafted at each place of an answer, as long as it is right."""


@torch.inference_mode()
def guess(drafter: TrainableDrafter, examples: Sequence[Example]) -> list[Guesses]:
    device = drafter.head.device
    found: list[Guesses] = [np.empty((0, 0), np.int64)] * len(examples)
    for group in batches_of([len(example.tokens) for example in examples], BATCH_TOKENS):
        batch = Batch.of([examples[i] for i in group], device)
        drafted_at = batch.places(1, prompts_too=False)
        drafted = torch.stack([drafter.guesses(s[drafted_at]) for s in drafter.states(batch)], dim=-1)
        tokens = torch.zeros(*drafted_at.shape, drafted.shape[-1], dtype=drafted.dtype, device=device)
        tokens[drafted_at] = drafted
        for i, row in zip(group, tokens.cpu().numpy(), strict=True):
            found[i] = row[: len(examples[i].tokens)]
    return found


def alone(examples: Sequence[Example], guesses: Sequence[Guesses]) -> Acceptance:
    """Return the acceptance of a drafter that is asked at every step."""
    depth = guesses[0].shape[1]
    accepted = np.zeros(depth)
    steps = 0
    for example, drafts in zip(examples, guesses, strict=True):
        text = example.tokens.tolist()
        newest = example.prompt_length  # the first token of the answer needs no draft
        while newest < len(text) - 1:
            right = common_prefix(drafts[newest - 1].tolist(), text[newest + 1 : newest + 1 + depth])
            accepted[:right] += 1
            steps += 1
            newest += right + 1
    survival = accepted / max(steps, 1)
    return Acceptance((1.0,) * depth, tuple(survival.tolist()))


class _Recorded(Proposer):
    """A drafter whose guesses are known already."""

    name = "drafter"
    free = False

    def __init__(self, expected: Sequence[float]) -> None:
        self._expected = expected
        self.guesses: Guesses = np.empty((0, 0), np.int64)
        self._read = 0

    def start(self, request: RequestInfo) -> None:
        self._read = 0

    def observe(self, request_id: str, tokens: Sequence[int]) -> None:
        self._read += len(tokens)

    def propose(self, wanted: Mapping[str, int]) -> dict[str, Draft]:
        return {
            request: Draft(self.guesses[self._read - 2, :max_tokens].tolist(), self._expected[:max_tokens])
            for request, max_tokens in wanted.items()
        }

    def forget(self, request_id: str) -> None:
        pass

    def expected_survival(self, max_tokens: int) -> Sequence[float]:
        return self._expected[:max_tokens]


class WrittenRequest(RunningRequest):
    """A text that is written already; the first token of its answer needs no draft."""

    def __init__(self, request_id: str, text: list[int], num_prompt_tokens: int, depth: int) -> None:
        super().__init__(request_id)
        self._text, self._prompt, self._depth = text, num_prompt_tokens, depth
        self._written = num_prompt_tokens + 1

    @property
    def tokens(self) -> list[int]:
        return self._text[: self._written]

    @property
    def num_prompt_tokens(self) -> int:
        return self._prompt

    @property
    def tokens_left(self) -> int:
        return len(self._text) - self._written

    @property
    def max_draft_tokens(self) -> int:
        return self._depth

    @property
    def is_finished(self) -> bool:
        return self._written >= len(self._text)

    def write(self, drafts: Sequence[int]) -> int:
        """Write the accepted draft tokens and the next one; return how many were accepted."""
        right = common_prefix(drafts, self._text[self._written :])
        self._written += right + 1
        return right


def composed(
    examples: Sequence[Example],
    guesses: Sequence[Guesses] | None,
    survival: Sequence[float],
    free: Sequence[str],
    vocab_size: int,
) -> Acceptance:
    """Run the engine's speculation loop on the texts, with the free proposers named and the drafter if it has
    guesses: everything that is best for a step is verified."""
    depth = len(survival)
    drafter = _Recorded(survival)
    proposers: list[Proposer] = [make_proposer(name, dict(FREE[name])) for name in free]
    composer = Composer([*proposers, *([drafter] if guesses is not None else [])], vocab_size)
    loop = SpeculationLoop(composer, VerifyAll())
    offered, accepted = np.zeros(depth), np.zeros(depth)
    steps = 0
    for number, example in enumerate(examples):
        request = WrittenRequest(str(number), example.tokens.tolist(), example.prompt_length, depth)
        if guesses is not None:
            drafter.guesses = guesses[number]
        while not request.is_finished:
            draft = loop.draft([request], Step(1)).get(request.id)
            drafts = draft.tokens if draft else ()
            right = request.write(drafts)
            offered[: len(drafts)] += 1
            accepted[:right] += 1
            steps += 1
        loop.finish(request)
    return Acceptance(tuple((offered / max(steps, 1)).tolist()), tuple((accepted / max(steps, 1)).tolist()))


@dataclass(frozen=True)
class Comparison:
    """Acceptance on some held-out texts, of the drafter and of what needs no training."""

    texts: str
    arms: Mapping[str, Acceptance]

    def as_dict(self) -> dict[str, Any]:
        return {
            "texts": self.texts,
            "acceptance": {
                name: {"length": a.tokens, "offered": list(a.offered), "survival": list(a.survival)}
                for name, a in self.arms.items()
            },
        }


def compare(drafter: TrainableDrafter, examples: Sequence[Example]) -> list[Comparison]:
    """Compare the drafter with what needs no training, by temperature and workload, and by temperature
    alone."""
    guesses = guess(drafter, examples)
    vocab_size = int(drafter.head.shape[0])
    groups: dict[str, list[int]] = {}
    for i, example in enumerate(examples):
        sampling = f"temperature {example.temperature:g}" if example.temperature else "greedy"
        groups.setdefault(f"{sampling}, {example.workload}", []).append(i)
        groups.setdefault(sampling, []).append(i)
    compared = []
    for name in sorted(groups):
        some = [examples[i] for i in groups[name]]
        theirs = [guesses[i] for i in groups[name]]
        own = alone(some, theirs)
        arms = {"drafter": own}
        for free in ("ngram", "suffix"):
            arms[free] = composed(some, None, own.survival, [free], vocab_size)
        arms["composed"] = composed(some, theirs, own.survival, ["ngram", "suffix"], vocab_size)
        compared.append(Comparison(name, arms))
    return compared
