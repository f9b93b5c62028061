"""The table of drafting methods."""

import importlib

import pytest

from slipstream.methods import DRAFT_MODEL, DRAFTERS, METHODS, Kind, Method, method_of, recognise


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_rows_make_sense(method: Method) -> None:
    assert METHODS[method.name] is method
    assert method.beyond_offered in ("any", "multiples", "none")
    assert method.runner in ("any", "V1", "V2")
    assert not method.plans_ahead or method.composable
    if method.beyond_offered != "any":
        assert method.offered_keys
    assert (method.name in DRAFTERS) == (method.kind in (Kind.MODEL, Kind.HEAD))


@pytest.mark.parametrize("method", [m for m in METHODS.values() if m.implementation], ids=lambda m: m.name)
def test_implementations_can_be_imported(method: Method) -> None:
    pytest.importorskip("torch")
    module, _, name = method.implementation.rpartition(".")
    from slipstream.engine.worker.drafters import HiddenStateDrafter

    assert issubclass(getattr(importlib.import_module(module), name), HiddenStateDrafter)


def test_what_only_vllm_knows_runs_alone() -> None:
    unknown = method_of("some_new_head")
    assert unknown.kind is Kind.HEAD
    assert not unknown.composable
    assert recognise("a", ["LlamaForCausalLM"], {"model_type": "llama"}) == DRAFT_MODEL.name
