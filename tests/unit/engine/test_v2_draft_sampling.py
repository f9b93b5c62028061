"""A speculator's drafts for some requests argmax and for others sampled, from logits made up here."""

from abc import ABC
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch

from slipstream.engine.worker.v2_draft_sampling import choose_sampling

LOGITS = torch.tensor([[1.0, 3.0, 2.0], [0.5, 0.0, 4.0], [2.0, 2.0, 1.0]])


class Speculator(ABC):  # noqa: B024 - as vLLM's are: not every class can be put in place of such a one
    max_num_reqs = 8
    device = torch.device("cpu")
    idx_mapping = torch.tensor([5, 2, 7, -1, -1, -1, -1, -1])  # row by place in the step; -1 is none

    def compute_draft_logits(self, hidden_states: Any, spec_step_idx: int) -> Any:
        return LOGITS.to(hidden_states.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_chosen_requests_only_the_largest_logit_is_left(dtype: Any) -> None:
    speculator: Any = Speculator()
    choose_sampling(speculator)
    hidden_states = torch.zeros(3, 1, dtype=dtype)
    assert torch.equal(speculator.compute_draft_logits(hidden_states, 0), LOGITS.to(dtype))

    speculator.choose_argmax([5, 7])
    none = float("-inf")
    expected = torch.tensor([[none, 3.0, none], [0.5, 0.0, 4.0], [2.0, 2.0, none]], dtype=dtype)
    found = speculator.compute_draft_logits(hidden_states, 0)
    assert found.dtype == dtype  # vLLM's sampler insists on that of its cache
    assert torch.equal(found, expected)

    speculator.choose_argmax([])
    assert torch.equal(speculator.compute_draft_logits(hidden_states, 0), LOGITS.to(dtype))
