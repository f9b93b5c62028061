"""Greedy texts, token for token; and the log-probabilities that come with them.

Two runs of the same model may write different texts without either being wrong: where two tokens are almost
equally likely, rounding decides, and rounding depends on what else is in the batch. How much rounding matters
is measured on the bare engine itself, asked for the same texts in other batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from slipstream.serving.client import Answer, Served

AT_ONCE = 16
ALT_CONCURRENCY = 6
"""Requests at a time, for bare texts in other batches."""
NUM_REPLAYED = 32
"""Prompts that are written again: by the bare engine in other batches, and with log-probabilities."""


@dataclass(frozen=True)
class Difference:
    prompt: int
    position: int
    gap: float
    """By how much bare vLLM found its token more likely than the next best (natural logarithm)."""


@dataclass(frozen=True)
class Greedy:
    compared: int
    tokens: int
    differences: list[Difference]
    noise: float
    """The largest change of a log-probability that another batch made in the bare engine."""
    bare_differences: int
    """Of the bare engine from itself, in other batches, in the first `NUM_REPLAYED` texts."""
    drafted: float
    accepted: float

    @property
    def verdict(self) -> str:
        return verdict_of([difference.gap for difference in self.differences], self.noise)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


@dataclass(frozen=True)
class Logprobs:
    compared: int
    largest: float
    """Difference from bare vLLM's."""
    noise: float

    @property
    def verdict(self) -> str:
        return "equal" if self.largest <= max(2 * self.noise, LEAST_NOISE) else "differs"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


LEAST_NOISE = 1e-3
"""What a log-probability may be off in any precision: it is added up over the vocabulary in float32."""


def verdict_of(gaps: Sequence[float], noise: float) -> str:
    """Return the verdict on texts that part at these gaps. At a tie both tokens may be off, one up and one
    down."""
    if not gaps:
        return "equal"
    return "ties" if max(gaps) <= max(2 * noise, LEAST_NOISE) else "differs"


def check_greedy(
    bare: Served,
    speculative: Served,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    doing: Callable[[str], None] = lambda what: None,
) -> tuple[Greedy, Logprobs]:
    plain = [_request(prompt, max_tokens) for prompt in prompts]
    asked = [{**request, "logprobs": 2} for request in plain]
    doing(f"greedy texts of {len(prompts)} prompts, bare")
    reference = _only(bare.ask(asked, AT_ONCE))
    some = reference[:NUM_REPLAYED]
    again = _only(bare.ask(asked[:NUM_REPLAYED], ALT_CONCURRENCY))
    doing("the same texts with speculation")
    before = speculative.counters()
    texts = _only(speculative.ask(plain, AT_ONCE))
    risen = speculative.risen_since(before)
    told = _only(speculative.ask(asked[:NUM_REPLAYED], AT_ONCE))
    noise = logprob_difference(some, again)
    greedy = Greedy(
        compared=len(prompts),
        tokens=sum(len(answer.tokens) for answer in texts),
        differences=[*differences(reference, texts)],
        noise=noise,
        bare_differences=len(differences(some, again)),
        drafted=risen["draft_tokens"],
        accepted=risen["accepted_tokens"],
    )
    compared = sum(map(len, map(_common, some, told)))
    return greedy, Logprobs(compared, logprob_difference(some, told), noise)


def _request(prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
    return {"prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0}


def _only(answers: Sequence[Sequence[Answer]]) -> list[Answer]:
    return [answer for (answer,) in answers]


def differences(reference: Sequence[Answer], others: Sequence[Answer]) -> list[Difference]:
    """Return where each text first differs from its reference."""
    found = []
    for prompt, (one, other) in enumerate(zip(reference, others, strict=True)):
        if one.tokens != other.tokens:
            position = len(_common(one, other))
            found.append(Difference(prompt, position, _gap(one, position)))
    return found


def _gap(answer: Answer, position: int) -> float:
    if position >= len(answer.likeliest):  # one ended, the other wrote on: its end was decided before
        return float("inf")
    first, second, *_ = [*sorted(answer.likeliest[position].values(), reverse=True), -float("inf")]
    return first - second


def logprob_difference(reference: Sequence[Answer], others: Sequence[Answer]) -> float:
    """Return the largest difference of log-probabilities, of the tokens that both wrote after the same
    beginning."""
    largest = [0.0]
    for one, other in zip(reference, others, strict=True):
        pairs = zip(_common(one, other), one.logprobs, other.logprobs, strict=False)
        largest += [abs(a - b) for _, a, b in pairs]
    return float(np.max(largest))


def _common(one: Answer, other: Answer) -> tuple[int, ...]:
    pairs = zip(one.tokens, other.tokens, strict=False)
    equal = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one.tokens), len(other.tokens)))
    return one.tokens[:equal]
