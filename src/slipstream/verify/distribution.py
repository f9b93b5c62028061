"""Sampled texts: many short ones of the speculative engine, held against the law of the bare one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

import numpy as np

from slipstream.serving.client import Answer, Served
from slipstream.verify.prefix_distribution import Partition, PrefixDistribution, Tokens
from slipstream.verify.statistics import LOOKS, Judgement, Sample, findable, judge

LENGTH = 5  # tokens of a text: the first is written without drafts, the next step can verify three
LIKELIEST = 20  # tokens whose probability is told: all that vLLM tells unless told otherwise
TO_KNOW = 192  # texts of the bare engine per prompt, to learn its law
IN_SMALL_BATCHES = 16  # more of them, to see what other batches change
EACH = 32  # texts per request
AT_ONCE = 4  # requests
CATEGORIES = 8  # per prompt
BROKEN_OFF = (16, 44)  # tokens of an answer after which the drawn texts begin
KV_BLOCK = 128  # tokens; other engines have a divisor of it
LEAST_EXPECTED = 10  # texts of a category at the first look
FALSE_ALARM = 1e-3  # in the whole check, all cells together

CELLS: Mapping[str, Mapping[str, Any]] = {
    "temperature 1": {"temperature": 1.0},
    "temperature 0.7": {"temperature": 0.7},
    "top-k 5": {"temperature": 1.0, "top_k": 5},
    "top-p 0.8": {"temperature": 1.0, "top_p": 0.8},
    "min-p 0.1": {"temperature": 1.0, "min_p": 0.1},
    "penalties": {
        "temperature": 1.0, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1,
    },
    "all, seeded": {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "presence_penalty": 0.3, "seed": 0},
    "structured": {"temperature": 1.0, "structured_outputs": {"regex": "[ -~]+"}},
    "logprobs": {"temperature": 1.0, "logprobs": 1},
}  # fmt: skip


@dataclass(frozen=True)
class Reference:
    """What a cell of the speculative engine is held against, for one prompt."""

    prompt: Sequence[int]
    partition: Partition
    counts: Mapping[Tokens, int] | None
    """If the law is not known: those of the bare engine."""

    def sample(self, texts: Sequence[Tokens]) -> Sample:
        categories = list(self.partition.probabilities)
        seen = self.partition.count(texts)
        counts = np.array([seen[category] for category in categories], float)
        if self.counts is not None:
            others = np.array([self.counts.get(category, 0) for category in categories], float)
            return Sample(counts, others=others)
        return Sample(
            counts,
            law=np.array([self.partition.probabilities[category] for category in categories]),
            deviations=np.array([self.partition.deviations[category] for category in categories]),
        )


@dataclass(frozen=True)
class Planned:
    """A cell before its draws: what it will be able to say."""

    name: str
    sampling: Mapping[str, Any]
    references: Sequence[Reference]
    draws: int
    error: float

    @property
    def freedom(self) -> int:
        return sum(len(reference.partition.probabilities) - 1 for reference in self.references)

    @property
    def categories(self) -> int:
        return self.freedom + len(self.references)

    @property
    def known_law(self) -> bool:
        return all(reference.counts is None for reference in self.references)

    @property
    def finds(self) -> float:
        """Return the TV that is found with probability 0.9."""
        return findable(self.draws if self.known_law else self.draws / 2, self.freedom, self.error)


@dataclass(frozen=True)
class Drawn:
    name: str
    sampling: Mapping[str, Any]
    judgement: Judgement
    finds: float
    categories: int
    known_law: bool
    draft_tokens: float
    accepted_tokens: float

    @property
    def verdict(self) -> str:
        return self.judgement.verdict

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def beginnings(bare: Served, speculative: Served, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return prompts and the first tokens of their answers, broken off where drafts are about as often kept
    as rejected: elsewhere there is little to verify. One for sampling that leaves everything possible, one
    for sampling that leaves little."""
    greedy = [{"prompt": list(p), "max_tokens": max(BROKEN_OFF), "temperature": 0} for p in prompts]
    answers = [answer for (answer,) in bare.ask(greedy, AT_ONCE)]
    candidates = [
        cheap([*prompt, *answer.tokens[:end]])
        for prompt, answer in zip(prompts, answers, strict=True)
        for end in BROKEN_OFF
    ]
    chosen = []
    for name in ("temperature 1", "top-p 0.8"):
        worth = [_to_verify(speculative, candidate, CELLS[name]) for candidate in candidates]
        chosen.append(candidates.pop(int(np.argmax(worth))))
    return chosen


def _to_verify(served: Served, prompt: Sequence[int], sampling: Mapping[str, Any]) -> float:
    """Draft tokens, counted most where half of them are kept and not at all where all or none are."""
    before = served.counters()
    _draw(served, prompt, sampling, EACH, count())
    risen = served.risen_since(before)
    drafted, kept = risen["draft_tokens"], risen["accepted_tokens"]
    return kept * (drafted - kept) / max(drafted, 1)


def cheap(prompt: Sequence[int]) -> list[int]:
    """Return the end of the prompt, so long that a prefix cache has all but one token of it: to write five
    tokens thousands of times then does not mean to read a prompt thousands of times."""
    kept = (len(prompt) - 1) // KV_BLOCK * KV_BLOCK + 1
    return list(prompt[-kept:] if kept > 1 else prompt)


def tells_its_law(bare: Served, prompt: Sequence[int]) -> bool:
    """Return whether its log-probabilities are those it samples by (`--logprobs-mode processed_logprobs`)."""
    request = {"prompt": list(prompt), "max_tokens": 1, "logprobs": 5}
    (hot,), (cold,) = bare.ask([{**request, "temperature": t} for t in (1.0, 0.25)], 1)
    return abs(min(hot.likeliest[0].values()) - min(cold.likeliest[0].values())) > 0.1


def plan(
    bare: Served,
    prompts: Sequence[Sequence[int]],
    draws: int,
    cells: Mapping[str, Mapping[str, Any]] = CELLS,
    done: Callable[[str], None] = lambda cell: None,
) -> list[Planned]:
    """Learn the bare engine's law for every cell."""
    known = tells_its_law(bare, prompts[0])
    planned = []
    for name, sampling in cells.items():
        seeds = count()
        references = [
            _known(bare, prompt, sampling, seeds, draws // len(prompts))
            if known
            else _counted(bare, prompt, sampling, seeds, draws // len(prompts))
            for prompt in prompts
        ]
        planned.append(Planned(name, sampling, references, draws, FALSE_ALARM / len(cells)))
        done(name)
    return planned


def _known(
    bare: Served, prompt: Sequence[int], sampling: Mapping[str, Any], seeds: Iterator[int], draws: int
) -> Reference:
    told = {**sampling, "logprobs": LIKELIEST}
    answers = _draw(bare, prompt, told, TO_KNOW, seeds)
    answers += _draw(bare, prompt, told, IN_SMALL_BATCHES, seeds, each=IN_SMALL_BATCHES // AT_ONCE)
    texts = ((a.tokens, [_probabilities(likeliest) for likeliest in a.likeliest]) for a in answers)
    return Reference(prompt, PrefixDistribution.told(texts).partition(_least(draws), CATEGORIES), None)


def _counted(
    bare: Served, prompt: Sequence[int], sampling: Mapping[str, Any], seeds: Iterator[int], draws: int
) -> Reference:
    """Count texts in categories that were chosen on other texts."""
    first = [answer.tokens for answer in _draw(bare, prompt, sampling, TO_KNOW, seeds)]
    partition = PrefixDistribution.counted(first).partition(_least(draws), CATEGORIES)
    texts = [answer.tokens for answer in _draw(bare, prompt, sampling, draws, seeds)]
    return Reference(prompt, partition, partition.count(texts))


def _least(draws: int) -> float:
    return LEAST_EXPECTED / (draws * LOOKS[0])


def _probabilities(logprobs: Mapping[int, float]) -> dict[int, float]:
    """Return the probabilities of the likeliest alone: the token that was written is told too, however
    unlikely it was."""
    falling = sorted(logprobs.items(), key=lambda item: -item[1])[:LIKELIEST]
    return {token: float(np.exp(value)) for token, value in falling}


def check(
    cell: Planned, speculative: Served, wanted: float, done: Callable[[int], None] = lambda draws: None
) -> Drawn:
    """Draw until it is clear, or until all draws are made."""
    texts: list[list[Tokens]] = [[] for _ in cell.references]
    seeds = count(10**6)
    before = speculative.counters()
    judgement = None
    for look in LOOKS:
        for reference, some in zip(cell.references, texts, strict=True):
            missing = int(cell.draws * look / len(texts)) - len(some)
            some += [a.tokens for a in _draw(speculative, reference.prompt, cell.sampling, missing, seeds)]
            done(missing)
        samples = [r.sample(some) for r, some in zip(cell.references, texts, strict=True)]
        judgement = judge(samples, cell.error, wanted, last=look == LOOKS[-1])
        if judgement:
            break
    assert judgement
    risen = speculative.risen_since(before)
    return Drawn(
        cell.name, cell.sampling, judgement, cell.finds, cell.categories, cell.known_law,
        risen["draft_tokens"], risen["accepted_tokens"],
    )  # fmt: skip


def _draw(
    served: Served,
    prompt: Sequence[int],
    sampling: Mapping[str, Any],
    draws: int,
    seeds: Iterator[int],
    each: int = EACH,
) -> list[Answer]:
    requests = []
    for first in range(0, draws, each):
        request = {
            "prompt": list(prompt), "max_tokens": LENGTH, "ignore_eos": "structured_outputs" not in sampling,
            **sampling, "n": min(each, draws - first),
        }  # fmt: skip
        if "seed" in sampling:
            request["seed"] = next(seeds) * EACH  # the texts of a request have this seed and the next ones
        requests.append(request)
    return [answer for answers in served.ask(requests, AT_ONCE) for answer in answers]
