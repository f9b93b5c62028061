"""The installed vLLM has all that `slipstream.engine.contract` lists: imported, and by its source."""

import dataclasses
import importlib
import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from slipstream.cli import app
from slipstream.config.parse import VLLM_KEYS
from slipstream.engine.contract import WORKAROUNDS, Reliance, Workaround, all_reliances
from slipstream.engine.patches import PATCHES, Patch, why_not_patched
from slipstream.engine.worker.runner import DraftInputs
from slipstream.ops.vllm_source import VllmSource
from slipstream.testing.vllm_contract import compare, why_gone, why_unmet
from slipstream.training.eagle3 import layers_in_config, layers_read

RELIANCES = [reliance for _, reliance in all_reliances()]
NEEDS_TRITON = "vllm.v1.worker.gpu."
"""What is in here is not imported on CPU, and seen by its source alone."""
IMPORTED = [reliance for reliance in RELIANCES if not reliance.path.startswith(NEEDS_TRITON)]
TRITON_MODEL = (
    Path(__file__).parents[2] / "deploy" / "triton" / "model_repository" / "slipstream" / "1" / "model.json"
)


def check(reliance: Reliance) -> None:
    found = resolve(reliance.path)
    if reliance.parameters is not None:
        parameters = tuple(p for p in inspect.signature(found).parameters if p != "self")
        assert parameters == reliance.parameters, (
            f"{reliance.path} takes {parameters}, not {reliance.parameters}"
        )
    missing = [name for name in reliance.has if not has(found, name)]
    assert not missing, f"{reliance.path} has no {', '.join(missing)}"
    if reliance.equals is not None:
        assert found == reliance.equals, f"{reliance.path} is {found!r}, not {reliance.equals!r}"


def resolve(path: str) -> Any:
    module, _, attributes = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError) as error:
        raise AssertionError(f"{path} is gone: {error}") from None
    return found


def has(found: Any, name: str) -> bool:
    if isinstance(found, dict):
        return name in found
    fields = {field.name for field in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else set()
    return name in fields or hasattr(found, name)


@pytest.fixture(scope="module")
def source() -> VllmSource:
    import vllm

    assert vllm.__file__ is not None
    return VllmSource(Path(vllm.__file__).parents[1])


@pytest.mark.parametrize("reliance", IMPORTED, ids=lambda reliance: reliance.path)
def test_vllm_still_has_it(reliance: Reliance) -> None:
    check(reliance)


@pytest.mark.parametrize("reliance", RELIANCES, ids=lambda reliance: reliance.path)
def test_its_source_says_the_same(source: VllmSource, reliance: Reliance) -> None:
    """What `scripts/check-vllm` goes by; and the attributes that only instances have."""
    assert why_unmet(source, reliance) == ""


@pytest.mark.parametrize("workaround", WORKAROUNDS, ids=lambda workaround: workaround.ours)
def test_what_is_worked_around_is_there(source: VllmSource, workaround: Workaround) -> None:
    assert why_gone(source, workaround.path, workaround.code) == ""


def test_the_installed_vllm_fits(source: VllmSource) -> None:
    found = compare(source)
    assert found.fits, (found.breaks, found.remedies)


def test_a_workaround_is_a_patch_or_a_class_of_ours() -> None:
    patches = {patch.name for patch in PATCHES}
    for ours in (workaround.ours for workaround in WORKAROUNDS):
        if ours not in patches:
            resolve(f"slipstream.engine.{ours}")


def test_the_runner_gives_its_drafter_what_we_keep() -> None:
    path = "vllm.v1.worker.gpu_model_runner:GPUModelRunner.propose_draft_token_ids"
    (kept,) = [reliance.parameters for reliance in RELIANCES if reliance.path == path]
    assert kept == DraftInputs._fields


def test_a_missing_symbol_is_named() -> None:
    with pytest.raises(AssertionError, match=r"vllm:NoSuchThing is gone"):
        check(Reliance("vllm:NoSuchThing"))
    with pytest.raises(AssertionError, match=r"vllm:LLM has no fly"):
        check(Reliance("vllm:LLM", has=("fly",)))
    with pytest.raises(AssertionError, match=r"cli_env_setup takes \(\), not \('argv',\)"):
        check(Reliance("vllm.entrypoints.serve.utils.api_utils:cli_env_setup", parameters=("argv",)))


def test_triton_knows_every_key_of_our_model() -> None:
    """Triton's vLLM backend hands the file to AsyncEngineArgs as it is."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    assert json.loads(TRITON_MODEL.read_text()).keys() <= known


def test_vllm_reads_the_layers_of_an_eagle3_head_where_they_are_exported() -> None:
    """In each of the places where its runners look; `slipstream train` reads the layers of vLLM's default."""
    interface = resolve("vllm.model_executor.models.interfaces:SupportsEagle3")
    model = SimpleNamespace(model=SimpleNamespace(layers=range(30)))
    assert interface.get_eagle3_default_aux_hidden_state_layers(model) == layers_read(30)
    v1 = resolve("vllm.v1.worker.gpu_model_runner:GPUModelRunner._get_eagle3_aux_layers_from_config")
    v2 = resolve("vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils:get_eagle3_aux_layers_from_config")
    for name, value in layers_in_config((1, 2)).items():
        checkpoint = SimpleNamespace(hf_config=SimpleNamespace(**{name: value}))
        config = SimpleNamespace(draft_model_config=checkpoint)
        assert v1(SimpleNamespace(speculative_config=config)) == (1, 2)
        assert v2(config) == (1, 2)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_what_is_patched_is_what_the_patch_was_written_for(patch: Patch) -> None:
    assert why_not_patched(patch.symbol, patch.parameters) == ""
    assert "Why: " in (patch.make.__doc__ or "")


def test_doctor_lists_the_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed() -> tuple[int, list[dict[str, str]]]:
        result = CliRunner().invoke(app, ["doctor", "--patches", "--json"])
        return result.exit_code, json.loads(result.stdout)

    code, found = listed()
    assert code == 0
    assert {patch["patch"] for patch in found} == {patch.name for patch in PATCHES}
    assert not any(patch["problem"] for patch in found)
    monkeypatch.setattr("vllm.triton_utils.dispatcher._rebind_kernels", lambda: None)
    code, found = listed()
    assert code == 1
    (problem,) = [patch["problem"] for patch in found if patch["problem"]]
    assert "takes (), not (overrides)" in problem


def test_every_option_of_vllms_form_is_known() -> None:
    """A new key in vLLM's speculative_config would otherwise be refused as unknown."""
    from vllm.config import SpeculativeConfig

    made_by_vllm = {
        "target_model_config",
        "target_parallel_config",
        "draft_model_config",
        "draft_parallel_config",
        "tensor_parallel_size",  # exists to warn of itself
    }
    fields = {field.name for field in dataclasses.fields(SpeculativeConfig)}
    assert fields - made_by_vllm == VLLM_KEYS


def test_server_flags_exist() -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    known = make_arg_parser(FlexibleArgumentParser())._option_string_actions
    assert {"--speculative-config", "--host", "--uds"} <= known.keys()


def test_vllm_itself_refuses_sampling_parameters_that_slipstream_serves() -> None:
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError

    for parameters in (SamplingParams(min_p=0.1), SamplingParams(logit_bias={1: 1.0})):
        parameters._validate_spec_decode(None)
        with pytest.raises(VLLMValidationError, match="speculative decoding"):
            parameters._validate_spec_decode(object())


def test_the_table_made_of_speculative_disable_by_batch_size_means_that() -> None:
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    from slipstream.config import read_speculation

    classic = {"speculative_model": "m", "num_speculative_tokens": 3, "speculative_disable_by_batch_size": 4}
    config, _ = read_speculation(classic)
    table = config.vllm["num_speculative_tokens_per_batch_size"]
    lookup = build_dynamic_sd_schedule_lookup(table, vllm_max_batch_size=16, vllm_num_speculative_tokens=3)
    assert lookup[1:] == [3] * 4 + [0] * 12
