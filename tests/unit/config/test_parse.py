"""Three forms, one config."""

from pathlib import Path
from typing import Any

import pytest

from slipstream.config import Drafter, Ngram, SpeculationConfig, read_speculation
from slipstream.errors import ConfigError


def read(**arguments: Any) -> SpeculationConfig:
    return read_speculation(arguments)[0]


NGRAM = SpeculationConfig(mode="fixed", num_draft_tokens=5, ngram=Ngram(min=1, max=4))
VLLMS_NGRAM = NGRAM.model_copy(update={"native": True})
DRAFT = SpeculationConfig(mode="fixed", num_draft_tokens=5, drafter=Drafter(model="facebook/opt-125m"))


def test_nothing_asked_for_is_auto() -> None:
    assert read() == SpeculationConfig() == read(speculate="auto") == read(speculate=None)


@pytest.mark.parametrize(
    "arguments",
    [
        {"speculate": {"mode": "fixed", "num_draft_tokens": 5, "ngram": {"min": 1, "max": 4}}},
        {"speculate": '{"mode": "fixed", "num_draft_tokens": 5, "ngram": {"min": 1, "max": 4}}'},
        {"speculate": NGRAM},
    ],
)
def test_ngram_in_our_form(arguments: dict[str, Any]) -> None:
    assert read(**arguments) == NGRAM


@pytest.mark.parametrize(
    "arguments",
    [
        {
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": 5,
                "prompt_lookup_min": 1,
                "prompt_lookup_max": 4,
            }
        },
        {
            "speculative_config": '{"model": "[ngram]", "num_speculative_tokens": 5,'
            ' "prompt_lookup_min": 1, "prompt_lookup_max": 4}'
        },
        {"speculative_model": "[ngram]", "num_speculative_tokens": 5, "ngram_prompt_lookup_max": 4},
    ],
)
def test_ngram_in_vllms_forms_is_vllms_own(arguments: dict[str, Any]) -> None:
    assert read(**arguments) == VLLMS_NGRAM


@pytest.mark.parametrize(
    "arguments",
    [
        {"speculate": "fixed:5", "drafter": "facebook/opt-125m"},
        {
            "speculate": {
                "mode": "fixed",
                "num_draft_tokens": 5,
                "drafter": {"model": "facebook/opt-125m"},
            }
        },
        {"speculative_config": {"model": "facebook/opt-125m", "num_speculative_tokens": 5}},
        {"spec_model": "facebook/opt-125m", "spec_tokens": 5},
        {"speculative_model": "facebook/opt-125m", "num_speculative_tokens": 5},
    ],
)
def test_draft_model_in_every_form(arguments: dict[str, Any]) -> None:
    native = "speculate" not in arguments
    assert read(**arguments) == DRAFT.model_copy(update={"native": native})


def test_files(tmp_path: Path) -> None:
    yaml, json = tmp_path / "s.yaml", tmp_path / "s.json"
    yaml.write_text("mode: fixed\nnum_draft_tokens: 5\nngram: {min: 1, max: 4}\n")
    json.write_text('{"mode": "fixed", "num_draft_tokens": 5, "ngram": {"min": 1, "max": 4}}')
    assert read(speculate=str(yaml)) == read(speculate=json) == NGRAM


def test_yaml_reads_a_bare_off_as_false(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("mode: off\n")
    assert read(speculate=False) == read(speculate=file) == SpeculationConfig(mode="off")


def test_classic_draft_tensor_parallel_size() -> None:
    config = read(speculative_model="m", num_speculative_tokens=3, speculative_draft_tensor_parallel_size=1)
    assert config.drafter is not None
    assert config.drafter.tensor_parallel_size == 1


def test_old_options_without_a_meaning_today_are_noted() -> None:
    config, notes = read_speculation(
        {"speculative_model": "m", "num_speculative_tokens": 3, "use_v2_block_manager": True}
    )
    assert config.drafter is not None
    assert notes == ["use_v2_block_manager is ignored: vLLM has had only that block manager since 0.7"]


def test_vllms_other_options_pass_through() -> None:
    config = read(
        speculative_config={
            "method": "eagle3",
            "model": "m",
            "num_speculative_tokens": 3,
            "draft_sample_method": "probabilistic",
        }
    )
    assert config.vllm == {"draft_sample_method": "probabilistic"}


def test_ngram_defaults_are_read_as_vllm_reads_them() -> None:
    assert read(speculative_config={"method": "ngram", "num_speculative_tokens": 3}).ngram == Ngram(
        min=5, max=5
    )
    given = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    assert read(speculative_config=given).ngram == Ngram(min=4, max=4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"speculate": "atuo"}, "not auto, off or fixed:K, and no file"),
        ({"speculate": "fixed:many"}, "fixed:3"),
        ({"speculate": 3}, "write auto, off"),
        ({"speculate": "{not json"}, "is not JSON"),
        ({"speculate": {"num_draft_token": 3}}, "did you mean 'num_draft_tokens'"),
        ({"speculate": {"drafter": {"modle": "x"}}}, "did you mean 'model'"),
        ({"speculate": {"num_draft_tokens": 0}}, "greater than or equal to 1"),
        ({"speculate": {"num_draft_tokens": "3"}}, "num_draft_tokens='3': input should be a valid integer"),
        ({"speculate": {"mode": "fixed"}}, "num_draft_tokens is missing"),
        ({"speculate": {"mode": "off", "num_draft_tokens": 3}}, "mode is off, but num_draft_tokens is given"),
        ({"speculate": {"ngram": {"min": 5, "max": 2}}}, "min=5 is larger than max=2"),
        (
            {"speculate": {"ngram": {}, "suffix": {}, "native": True}},
            "given: ngram and suffix",
        ),
        ({"speculate": {"ngram": {}, "custom_class": "a.B"}}, "runs alone"),
        ({"speculate": {"suffix": {"share": "everyone"}}}, "'off', 'salt' or 'all'"),
        ({"speculate": {"vllm": {"kv_cache_type": 1}}}, "did you mean 'kv_cache_dtype'"),
        ({"speculate": "off", "drafter": "m"}, "mode is off, but drafter is given"),
        ({"speculate": "auto", "speculative_model": "m"}, "2 forms"),
        (
            {"speculative_config": {"method": "ngram"}, "spec_tokens": 3, "num_speculative_tokens": 3},
            "2 forms",
        ),
        ({"speculative_config": {"method": "ngrm", "num_speculative_tokens": 3}}, "write one of ngram"),
        ({"speculative_config": {"num_spec_tokens": 3}}, "did you mean 'num_speculative_tokens'"),
        ({"speculative_config": {"model": "m", "tensor_parallel_size": 1}}, "draft_tensor_parallel_size"),
        ({"speculative_config": {"method": "medusa", "num_speculative_tokens": 3}}, "model is missing"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "revision": "x"}},
            "revision has no meaning for ngram",
        ),
        ({"speculative_config": {"method": "ngram"}, "spec_method": "ngram"}, "say the same"),
        ({"speculative_config": ["ngram"]}, "write a mapping"),
        ({"num_speculative_tokens": 3}, "without speculative_model"),
        ({"speculative_model": "[ngram]", "num_speculative_tokens": 3}, "ngram_prompt_lookup_max"),
        (
            {"speculative_model": "m", "num_speculative_tokens": 3, "ngram_prompt_lookup_max": 3},
            'belongs to speculative_model="[ngram]"',
        ),
        (
            {"speculative_model": "m", "spec_decoding_acceptance_method": "typical_acceptance_sampler"},
            "changes what the model says",
        ),
        ({"speculative_model": "m", "speculative_disable_by_batch_size": 4}, "num_speculative_tokens"),
        (
            {"speculative_model": "m", "num_speculative_tokens": 3, "speculative_disable_by_batch_size": 0},
            "above 0",
        ),
        ({"speculative_config": {"method": "custom_class", "num_speculative_tokens": 3}}, "dotted path"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 200}},
            "num_speculative_tokens=200",
        ),
        ({"drafter": 5}, "drafter=5"),
    ],
)
def test_mistakes_say_what_to_write(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(**arguments)
    assert said in str(error.value)


def test_an_objective_beside_any_speculate() -> None:
    config, _ = read_speculation({"speculate": {"ngram": {}}, "objective": "latency", "max_ttft_ms": 500.0})
    assert (config.objective, config.max_ttft_ms, config.max_tpot_ms) == ("latency", 500.0, None)
    assert config.ngram is not None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"objective": "speed"}, "'throughput', 'makespan' or 'latency'"),
        ({"max_tpot_ms": 0.0}, "greater than 0"),
        ({"speculate": "fixed:3", "objective": "latency"}, "is for plans of auto, not for mode fixed"),
        ({"speculate": "off", "max_ttft_ms": 5.0}, "max_ttft_ms is for plans of auto, not for mode off"),
        (
            {"speculate": {"objective": "latency"}, "objective": "makespan"},
            "objective='makespan' is given beside speculate.objective='latency'; keep one",
        ),
        ({"speculative_config": {"method": "ngram"}, "objective": "latency"}, "keep one of them"),
    ],
)
def test_an_objective_that_means_nothing_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_speculation(arguments)
    assert said in str(refused.value)


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        NGRAM.num_draft_tokens = 3
