import pytest

from slipstream.training.card import what_it_lacks, where_it_began


@pytest.mark.parametrize(
    ("held_out", "learnt_from", "lacks"),
    [(1.46, 2.22, "more prompts"), (1.46, 1.50, "more time"), (1.0, 1.0, "more time")],
)
def test_what_is_lacking(held_out: float, learnt_from: float, lacks: str) -> None:
    said = what_it_lacks({"history": [{"length": held_out}], "length_learnt_from": learnt_from})
    assert f": {lacks}" in said


def test_where_a_drafter_began() -> None:
    assert where_it_began({"recipe": {"small_model": None}}) == []
    small = {"name": "org/small", "corpus": "texts/law.txt"}
    made = {"tokens": 12_800, "minutes": 3.0, "loss": 2.5}
    lines = where_it_began({"recipe": {"small_model": small}, "pretraining": made})
    assert "org/small" in lines[0]
    assert "12,800 tokens of law.txt" in lines[1]
