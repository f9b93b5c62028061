"""Whose text is whose: the key under which finished texts are shared; and what workers answer to drafting."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from slipstream.drafting import Draft
from slipstream.engine.core.scheduler import WorkerDrafter, _tenant


def request(salt: str | None = None, adapter: str | None = None) -> Any:
    lora = SimpleNamespace(lora_name=adapter) if adapter else None
    return SimpleNamespace(cache_salt=salt, lora_request=lora)


def test_nothing_is_shared_without_a_policy() -> None:
    assert _tenant(request("a"), "off") is None
    assert _tenant(request(None), "salt") is None


def test_the_same_salt_and_adapter_share() -> None:
    assert _tenant(request("a"), "salt") == _tenant(request("a"), "salt") is not None
    assert _tenant(request("a"), "all") == _tenant(request("b"), "all") is not None
    assert _tenant(request("a", "x"), "all") != _tenant(request("a"), "all")


def test_no_two_tenants_have_one_key() -> None:
    pairs = [("b/c", "a"), ("c", "a/b"), ("c", "a"), ("", "a"), ("None", None), ("a', 'b", None), ("b", "a'")]
    requests = [request(salt or "-", adapter) for salt, adapter in pairs]
    assert len({_tenant(r, "salt") for r in requests}) == len(requests)


def test_a_drafter_states_how_sure_it_is_else_what_is_believed_before() -> None:
    drafter = WorkerDrafter("draft_model")
    answers = [None, {"sure": ([5, 6], [0.9, 0.8]), "silent": ([7, 8], [])}]  # by rank
    drafter.executor = SimpleNamespace(collective_rpc=lambda *args, **kwargs: answers)
    drafts = drafter.propose({"sure": 2, "silent": 2})
    assert drafts["sure"] == Draft([5, 6], [0.9, 0.8])
    assert drafts["silent"] == Draft([7, 8], drafter.expected_survival(2))
