"""What a drafter states of its tokens, from the logits of its passes."""

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from slipstream.engine.worker.confidence import DrafterConfidence, top_probability

LOGITS = [[2.0, 0.0, -1.0], [0.5, 0.5, 0.0]]


class Model:
    """Gives these logits, one after the other."""

    def __init__(self, *logits: Any) -> None:
        self._logits = iter(logits)

    def compute_logits(self, hidden_states: Any) -> Any:
        return next(self._logits)


def test_the_top_probability_is_the_softmax_of_the_largest() -> None:
    logits = torch.tensor(LOGITS)
    torch.testing.assert_close(top_probability(logits), logits.softmax(-1).amax(-1))
    assert top_probability(torch.tensor([[1e4, 0.0]], dtype=torch.bfloat16)).tolist() == [1.0]


def test_survival_falls_from_pass_to_pass() -> None:
    first, second = torch.tensor(LOGITS), torch.tensor(LOGITS).flip(0)
    model = Model(first, second)
    confidence = DrafterConfidence(model)
    confidence.begin()
    tokens = torch.stack([model.compute_logits(None).argmax(-1) for _ in range(2)], dim=1)
    survival = confidence.survival(tokens)
    assert survival is not None
    a, b = first.softmax(-1).amax(-1).tolist()
    assert survival[0] == pytest.approx([a, a * b])
    assert survival[1] == pytest.approx([b, a * b])


def test_the_heads_of_one_pass_count_one_by_one() -> None:
    model = Model([torch.tensor(LOGITS), torch.tensor(LOGITS)])
    confidence = DrafterConfidence(model)
    assert len(model.compute_logits(None)) == 2
    survival = confidence.survival(torch.zeros(2, 2, dtype=torch.long))
    assert survival is not None
    assert survival[0][1] == pytest.approx(survival[0][0] ** 2)


def test_nothing_is_stated_of_passes_that_were_not_seen() -> None:
    model = Model(*[torch.tensor(LOGITS)] * 3)
    confidence = DrafterConfidence(model)
    model.compute_logits(None)  # a dummy run
    confidence.begin()
    assert confidence.survival(torch.zeros(2, 0)) is None
    model.compute_logits(None)
    assert confidence.survival(torch.zeros(2, 2)) is None
    model.compute_logits(None)
    assert confidence.survival(torch.zeros(3, 1)) is None


def test_logits_that_are_no_numbers_state_nothing() -> None:
    model = Model(torch.tensor([[float("nan"), 0.0, 1.0], LOGITS[0]]))
    confidence = DrafterConfidence(model)
    model.compute_logits(None)
    survival = confidence.survival(torch.zeros(2, 1))
    assert survival is not None
    assert survival[0] == [0.0]
    assert survival[1][0] > 0.5


def test_a_pass_goes_on_when_its_logits_cannot_be_read() -> None:
    model = Model("no tensor", torch.tensor(LOGITS))
    confidence = DrafterConfidence(model)
    assert model.compute_logits(None) == "no tensor"
    assert confidence.survival(torch.zeros(2, 1)) is None
    assert model.compute_logits(None).shape == (2, 3)
    assert confidence.survival(torch.zeros(2, 1)) is None
