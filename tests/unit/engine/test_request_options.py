"""What a request may ask for itself."""

from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.drafting.requests import AUTO, OFF
from slipstream.engine.core.request_options import parse, requested_draft_tokens


def request(**sampling: Any) -> Any:
    usual: dict[str, Any] = {
        "min_p": 0.0, "logit_bias": None, "trace_decode_token_ids": None, "extra_args": None,
    }  # fmt: skip
    return SimpleNamespace(sampling_params=SimpleNamespace(**(usual | sampling)))


@pytest.mark.parametrize(
    ("wish", "meaning"), [("auto", AUTO), ("off", OFF), (0, OFF), (3, 3), ("3", 3), (200, 200)]
)
def test_a_wish(wish: Any, meaning: int) -> None:
    assert parse(wish) == meaning
    assert requested_draft_tokens(request(extra_args={"speculate": wish})) == meaning


@pytest.mark.parametrize("wish", ["maybe", -1, 2.5, float("inf"), True, None, [1], ""])
def test_what_is_no_wish_says_what_to_write(wish: Any) -> None:
    with pytest.raises(ValueError, match="write off, auto or a number"):
        parse(wish)
    assert requested_draft_tokens(request(extra_args={"speculate": wish})) == AUTO


def test_nothing_asked_for() -> None:
    assert requested_draft_tokens(request()) == AUTO
    assert requested_draft_tokens(request(extra_args={"other": 1})) == AUTO
    assert requested_draft_tokens(None) == OFF


@pytest.mark.parametrize("sampling", [{"min_p": 0.1}, {"logit_bias": {1: 2.0}}])
def test_what_cannot_be_verified_gets_no_drafts(sampling: dict[str, Any]) -> None:
    assert requested_draft_tokens(request(**sampling, extra_args={"speculate": 4})) == OFF


@pytest.mark.parametrize(
    ("wish", "most", "granted"),
    [(8, 3, 3), (2, 3, 2), (8, 0, AUTO), ("off", 0, OFF), ("auto", 3, AUTO), (8, None, 8)],
)
def test_the_operator_has_the_last_word(wish: Any, most: int | None, granted: int) -> None:
    assert requested_draft_tokens(request(extra_args={"speculate": wish}), most) == granted
