import pytest

from slipstream.training.card import what_it_lacks


@pytest.mark.parametrize(
    ("held_out", "learnt_from", "lacks"),
    [(1.46, 2.22, "more prompts"), (1.46, 1.50, "more time"), (1.0, 1.0, "more time")],
)
def test_what_is_lacking(held_out: float, learnt_from: float, lacks: str) -> None:
    said = what_it_lacks({"history": [{"length": held_out}], "length_learnt_from": learnt_from})
    assert f": {lacks}" in said
