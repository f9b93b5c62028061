"""Comparing texts, without servers."""

from typing import Any, cast

import pytest

from slipstream.bench.output_comparison import GreedyReference, TextComparison, first_difference
from slipstream.engine.load_generator import Request
from slipstream.serving.servers import Server

REFERENCE = GreedyReference("The cat sat.", starts=(0, 3, 7, 11), gaps=(5.0, 0.1, 3.0, 9.0))


@pytest.mark.parametrize(
    ("one", "other", "where"), [("abc", "abc", None), ("abc", "abd", 2), ("abc", "ab", 2), ("", "a", 0)]
)
def test_first_difference(one: str, other: str, where: int | None) -> None:
    assert first_difference(one, other) == where


def test_the_gap_of_the_token_that_holds_the_character() -> None:
    assert REFERENCE.gap_at(0) == 5.0
    assert REFERENCE.gap_at(4) == 0.1
    assert REFERENCE.gap_at(11) == 9.0
    assert REFERENCE.gap_at(12) is None  # one went on where the other ended: no token of ours says how close


def test_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four requests: equal, different at a near tie, failed in one arm, equal to what bare writes alone."""
    monkeypatch.setattr(GreedyReference, "ask", lambda *arguments: REFERENCE)
    comparison = TextComparison(cast(Server, None), "model")
    requests = [Request([{"role": "user", "content": str(i)}], None, 8) for i in range(4)]
    texts: dict[str, list[Any]] = {
        "bare": ["The cat sat.", "The cat sat.", "The cat sat.", "The dog ran."],
        "k3": ["The cat sat.", "The dog ran.", None, "The cat sat."],
    }
    assert comparison.compare(requests, texts) == {"k3": {"compared": 3, "equal": 1, "gaps": [0.1]}}
