"""From logits to the law that a request's sampling parameters ask for, in vLLM's order: penalties,
temperature, min-p, top-k, top-p. Target and drafter must both go through it, or drafts are judged by a law
they were not drawn from."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.testing.reference.randomness import Distribution


@dataclass(frozen=True)
class Sampling:
    """Named, and off by default, as in vLLM."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0


def law_of(
    logits: Sequence[float], sampling: Sampling, prompt: Sequence[int] = (), output: Sequence[int] = ()
) -> Distribution:
    scores = _penalised(np.array(logits, float), sampling, prompt, output)
    if sampling.temperature == 0:
        return tuple(float(token == scores.argmax()) for token in range(len(scores)))
    law = _normed(np.exp((scores - scores.max()) / sampling.temperature))
    law = _normed(np.where(law < sampling.min_p * law.max(), 0.0, law))
    if 0 < sampling.top_k < len(law):
        law = _normed(np.where(law < np.sort(law)[-sampling.top_k], 0.0, law))
    rising = np.argsort(law, kind="stable")
    unlikely = law[rising].cumsum() <= 1 - sampling.top_p
    law[rising[:-1][unlikely[:-1]]] = 0.0  # the likeliest always stays
    result: list[float] = _normed(law).tolist()
    return result


def _penalised(
    scores: np.ndarray, sampling: Sampling, prompt: Sequence[int], output: Sequence[int]
) -> np.ndarray:
    """Repetition counts the prompt too; frequency and presence only what was written."""
    for token in {*prompt, *output}:
        rate = sampling.repetition_penalty
        scores[token] = scores[token] / rate if scores[token] > 0 else scores[token] * rate
    for token, count in Counter(output).items():
        scores[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    return scores


def _normed(weights: np.ndarray) -> np.ndarray:
    normed: np.ndarray = weights / weights.sum()
    return normed
