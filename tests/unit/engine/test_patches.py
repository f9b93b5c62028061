"""Patches of a vLLM that differs from the one they were written for."""

import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from slipstream.engine import patches
from slipstream.engine.patches import replaces, why_not_patched
from slipstream.errors import SetupError


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("some_engine")

    def step(requests: int, budget: int) -> str:
        return "vLLM's"

    module.step = step  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_engine", module)
    return module


@pytest.mark.parametrize(
    ("parameters", "result", "said"),
    [
        (("requests", "budget"), "ours", ""),
        (("requests",), "vLLM's", "takes (requests, budget), not (requests)"),
    ],
)
def test_a_patch_of_another_signature_stays_off(
    engine: ModuleType, parameters: tuple[str, ...], result: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patches, "PATCHES", [])
    warnings: list[str] = []
    from vllm.logger import init_logger

    logger = init_logger("vllm.slipstream")
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: warnings.append(record.getMessage()))
    logger.addHandler(handler)

    made = []

    @replaces("some_engine:step", *parameters)
    def patch_the_step(original: Any) -> Any:
        """Show what a patch does. And why."""
        made.append(original(1, 2))
        return lambda requests, budget: "ours"

    patch_the_step()
    patch_the_step()
    logger.removeHandler(handler)
    assert made == ["vLLM's"] * (not said), "applied once"
    (listed,) = patches.PATCHES
    assert (listed.name, listed.purpose) == ("patch_the_step", "Show what a patch does")
    assert engine.step(1, 2) == result
    assert all(said in warning and "patch_the_step stays off" in warning for warning in warnings)
    assert len(warnings) == bool(said), "said once"


def test_what_is_gone_is_named(engine: ModuleType) -> None:
    assert why_not_patched("some_engine:run", ()) == "vLLM has no some_engine:run"
    assert why_not_patched("no_engine:run", ()) == "vLLM has no no_engine:run"


def test_a_patch_may_leave_things_as_they_are(engine: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "PATCHES", [])
    replaces("some_engine:step", "requests", "budget")(lambda original: None)()
    assert engine.step(1, 2) == "vLLM's"


def test_without_a_required_patch_nothing_starts(engine: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "PATCHES", [])
    patch = replaces("some_engine:step", "requests", required=True)(lambda original: None)
    with pytest.raises(SetupError, match=r"takes \(requests, budget\).*--speculate off"):
        patch()


def test_a_refused_option_is_told_though_no_answer_can_hold_it() -> None:
    from vllm.exceptions import VLLMValidationError

    process_inputs = patches.refuse_unknown_options.make(lambda *args: None)
    params = SimpleNamespace(extra_args={"speculate": "\ud800"})
    with pytest.raises(VLLMValidationError, match="write off, auto or a number") as refused:
        process_inputs(None, "request", "prompt", params)
    assert str(refused.value).encode()
