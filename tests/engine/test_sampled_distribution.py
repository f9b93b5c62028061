"""Sampled output with composed proposers follows the target's distribution: in the real engine, against
the law written down from the model's own logits (transformers), over 40,000 draws.

The model has 64 tokens; with top_k=3 the first three tokens are one of 27 sequences.
"""

import gc
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import LlamaForCausalLM

import slipstream
from slipstream.testing import models

DRAWS = 40_000
TOP_K = 3
SIGNIFICANT = 1e-4  # twice in a row: a false alarm in one of 1e8 runs
BLOCK = 32
PROMPT = [*np.random.default_rng(1).permutation(64).tolist(), 7]
"""Every token has come up, and the prefix cache holds all but the last."""


@cache
def law() -> dict[tuple[int, ...], float]:
    """The probability of every sequence of three tokens after the prompt."""
    model = LlamaForCausalLM.from_pretrained(models.few_words(), dtype=torch.float32)

    def next_tokens(tokens: list[int]) -> list[tuple[int, float]]:
        with torch.inference_mode():
            top = model(torch.tensor([tokens])).logits[0, -1].topk(TOP_K)
        return list(zip(top.indices.tolist(), top.values.softmax(-1).tolist(), strict=True))

    found: dict[tuple[int, ...], float] = {}
    for a, p_a in next_tokens(PROMPT):
        for b, p_b in next_tokens([*PROMPT, a]):
            for c, p_c in next_tokens([*PROMPT, a, b]):
                found[a, b, c] = p_a * p_b * p_c
    return found


def draw(**options: Any) -> tuple[Counter[tuple[int, ...]], float]:
    """(how often each sequence came, the share of draft tokens that were accepted)."""
    llm = slipstream.LLM(
        str(models.few_words()),
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_model_len=160,
        max_num_seqs=256,
        block_size=BLOCK,
        kv_cache_memory_bytes=512 * 1024**2,
        speculate={"mode": "fixed", "num_draft_tokens": 2, "ngram": {"min": 1, "max": 3}, "suffix": {}},
        **options,
    )
    sampling = slipstream.SamplingParams(temperature=1.0, top_k=TOP_K, max_tokens=4, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": PROMPT}] * DRAWS, sampling, use_tqdm=False)
    counted = {m.name: getattr(m, "value", 0) for m in llm.get_metrics()}
    accepted = counted["vllm:spec_decode_num_accepted_tokens"]
    share = accepted / counted["vllm:spec_decode_num_draft_tokens"]
    assert accepted > DRAWS / 4
    del llm
    gc.collect()
    return Counter(tuple(output.outputs[0].token_ids[:3]) for output in outputs), share


@pytest.fixture(scope="module")
def expected() -> dict[tuple[int, ...], float]:
    found = law()
    assert sum(found.values()) == pytest.approx(1)
    assert len(found) == TOP_K**3
    return found


def p_value(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    assert set(counts) <= set(expected), "a sequence that the target cannot write"
    shares = np.array(list(expected.values()))
    observed = [counts[sequence] for sequence in expected]
    return float(chisquare(observed, sum(observed) * shares / shares.sum()).pvalue)


def total_variation(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    return sum(abs(counts[sequence] / DRAWS - p) for sequence, p in expected.items()) / 2


def test_composed_drafts_leave_the_distribution_as_it_is(expected: dict[tuple[int, ...], float]) -> None:
    found = []
    for seed in (0, 1):  # the second only if the first looks bad, as one in ten thousand does by chance
        counts, accepted = draw(seed=seed)
        assert 0.2 < accepted < 0.6  # drafts are verified, and many are rejected
        found.append(p_value(counts, expected))
        if found[-1] > SIGNIFICANT:
            return
    raise AssertionError(f"twice not the target's distribution: {found}")


def test_a_bias_of_two_hundredths_is_found(expected: dict[tuple[int, ...], float]) -> None:
    found = []
    for seed in (0, 1):  # the second only if the first sees nothing, as one in a hundred thousand does
        counts, _ = draw(worker_cls="engine.planted.PrefersTheBestWorker", seed=seed)
        assert total_variation(counts, expected) < 0.05, "what is planted is small"
        found.append(p_value(counts, expected))
        if found[-1] < SIGNIFICANT:
            return
    raise AssertionError(f"twice not found: {found}")


def test_the_law_is_not_flat(expected: dict[tuple[int, ...], float]) -> None:
    """Else a sampler that ignores the logits would pass."""
    flat = Counter(dict.fromkeys(expected, DRAWS // len(expected)))
    assert p_value(flat, expected) < 1e-6
