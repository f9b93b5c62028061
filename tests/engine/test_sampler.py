"""vLLM's rejection sampler on CPU, as our worker runs it, against the exact distribution.

40,000 requests with the same two one-hot drafts. A chi-square test rejects at p < 1e-6 per case (6 tests,
so a false alarm in 1 of 160,000 runs); a total variation of 0.02 is found practically always at this size.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from slipstream.engine.patches import mend_expand_kernel

REQUESTS = 40_000
VOCAB = 6
# [2 drafts, vocab]: the target's logits at each draft position
LOGITS = torch.tensor([[1.0, 0.5, 0.2, -0.3, -1.0, 0.8], [0.1, 1.2, -0.5, 0.9, 0.4, -0.2]])
DRAFTS = (0, 3)
BONUS = 5


@pytest.fixture(scope="module", autouse=True)
def _cpu_kernels() -> None:
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()
    mend_expand_kernel()


def sample(temperature: float, top_k: int | None, top_p: float | None) -> np.ndarray[Any, Any]:
    """[requests, 3] output tokens, -1 after the first rejection."""
    from vllm.v1.sample.rejection_sampler import apply_sampling_constraints, rejection_sample

    def every(value: float | None, dtype: torch.dtype) -> torch.Tensor | None:
        return None if value is None else torch.full((REQUESTS,), value, dtype=dtype)

    metadata: Any = SimpleNamespace(  # the part of SamplingMetadata that is read
        all_greedy=False,
        all_random=True,
        generators={},
        temperature=every(temperature, torch.float32),
        top_k=every(top_k, torch.int32),
        top_p=every(top_p, torch.float32),
    )
    cumulative = torch.arange(2, 2 * REQUESTS + 1, 2, dtype=torch.int32)
    logits = apply_sampling_constraints(LOGITS.repeat(REQUESTS, 1), cumulative, metadata)
    return rejection_sample(
        draft_token_ids=torch.tensor(DRAFTS, dtype=torch.int32).repeat(REQUESTS),
        num_draft_tokens=[2] * REQUESTS,
        max_spec_len=2,
        cu_num_draft_tokens=cumulative,
        draft_probs=None,
        target_logits=logits,
        bonus_token_ids=torch.full((REQUESTS, 1), BONUS, dtype=torch.int32),
        sampling_metadata=metadata,
    ).numpy()


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
def test_the_output_follows_the_target(temperature: float, top_k: int | None, top_p: float | None) -> None:
    torch.manual_seed(0)
    output = sample(temperature, top_k, top_p)
    check(output[:, 0], exact(0, temperature, top_k, top_p))
    accepted = output[:, 0] == DRAFTS[0]
    check(output[accepted, 1], exact(1, temperature, top_k, top_p))
    assert (output[~accepted, 1:] == -1).all()
    all_accepted = accepted & (output[:, 1] == DRAFTS[1])
    assert (output[all_accepted, 2] == BONUS).all()
    assert (output[~all_accepted, 2] == -1).all()


def test_the_check_can_fail() -> None:
    torch.manual_seed(0)
    with pytest.raises(AssertionError):
        check(sample(1.0, None, None)[:, 0], exact(0, 0.8, None, None))
