"""vLLM's rejection sampler on CPU, as our worker runs it, against the exact distribution.

40,000 requests with the same two one-hot drafts. A chi-square test rejects at p < 1e-6 per case (6 tests,
so a false alarm in 1 of 160,000 runs); a total variation of 0.02 is found practically always at this size.
"""

from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from engine.sampling import (
    BONUS,
    DRAFTS,
    LOGITS,
    UNDRAFTED,
    VOCAB,
    plainly_greedy,
    prepare,
    sample,
    verify_both_ways,
)


@pytest.fixture(scope="module")
def worker() -> Iterator[Executor]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=prepare) as process:
        yield process


def exact(position: int, temperature: float, top_k: int | None, top_p: float | None) -> np.ndarray[Any, Any]:
    """The target's distribution, by the definitions of temperature, top-k and top-p."""
    logits = LOGITS[position].double().numpy() / temperature
    order = np.argsort(-logits)
    probabilities = np.exp(logits - logits.max())
    probabilities[order[top_k or VOCAB :]] = 0
    probabilities /= probabilities.sum()
    if top_p is not None:
        before = np.cumsum(probabilities[order]) - probabilities[order]
        probabilities[order[before >= top_p]] = 0
    return probabilities / probabilities.sum()


def check(tokens: np.ndarray[Any, Any], probabilities: np.ndarray[Any, Any]) -> None:
    counts = np.bincount(tokens, minlength=VOCAB)
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    test = stats.chisquare(counts[possible], probabilities[possible] * len(tokens))
    assert test.pvalue > 1e-6


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, None, None), (0.6, None, None), (1.5, 4, 0.8)]
)
def test_the_output_follows_the_target(
    worker: Executor, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    output = worker.submit(sample, temperature, top_k, top_p).result()
    assert (output[:UNDRAFTED] == [BONUS, -1, -1]).all()
    output = output[UNDRAFTED:]
    check(output[:, 0], exact(0, temperature, top_k, top_p))
    accepted = output[:, 0] == DRAFTS[0]
    check(output[accepted, 1], exact(1, temperature, top_k, top_p))
    assert (output[~accepted, 1:] == -1).all()
    all_accepted = accepted & (output[:, 1] == DRAFTS[1])
    assert (output[all_accepted, 2] == BONUS).all()
    assert (output[~all_accepted, 2] == -1).all()


def test_the_check_can_fail(worker: Executor) -> None:
    output = worker.submit(sample, 1.0, None, None).result()[UNDRAFTED:]
    with pytest.raises(AssertionError):
        check(output[:, 0], exact(0, 0.8, None, None))


def test_vllms_own_kernel_throws_its_result_away() -> None:
    """Show what our worker patches. When this fails, vLLM is fixed and the patch can go."""
    from vllm.platforms import current_platform
    from vllm.utils.cpu_triton_utils import _expand_kernel_impl

    current_platform.import_kernels()
    output = torch.full((3,), 7.0)
    _expand_kernel_impl(output, torch.tensor([0.5, 0.8]), torch.tensor([1, 3]), 0, 1)
    assert output.tolist() == [7.0, 7.0, 7.0]


def test_greedy_verification_is_vllms(worker: Executor) -> None:
    """Token for token, ties and all; some drafts are accepted whole, some in part, some not at all."""
    for seed in range(20):
        ours, theirs = worker.submit(verify_both_ways, seed).result()
        assert ours == theirs
    lengths = {sum(token != -1 for token in row) for row in ours}
    assert len(lengths) >= 4


@pytest.mark.parametrize(
    ("different", "plain"),
    [
        ({}, True),
        ({"all_greedy": False}, False),
        ({"max_num_logprobs": 0}, False),
        ({"logprob_token_ids": {0: [1]}}, False),
        ({"no_penalties": False}, False),
        ({"allowed_token_ids_mask": torch.zeros(1)}, False),
        ({"bad_words_token_ids": {0: [[1]]}}, False),
        ({"logit_bias": True}, False),
        ({"min_tokens": True}, False),
        ({"custom_processor": True}, False),
    ],
)
def test_what_is_plainly_greedy(worker: Executor, different: dict[str, Any], plain: bool) -> None:
    assert worker.submit(_plainly_greedy, different).result() == plain


def _plainly_greedy(different: dict[str, Any]) -> bool:
    return plainly_greedy(**different)
