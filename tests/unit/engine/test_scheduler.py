"""Whose text is whose: the key under which finished texts are shared."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from slipstream.engine.core.scheduler import _tenant


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
