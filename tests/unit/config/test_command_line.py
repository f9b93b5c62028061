"""Speculation flags are taken out of a `vllm serve` command line; the rest stays as it stands."""

from pathlib import Path

import pytest

from slipstream.config.command_line import split_flags
from slipstream.errors import ConfigError


def test_ours_and_vllms_are_told_apart() -> None:
    flags = [
        "model",
        "--dtype",
        "float32",
        "--speculate",
        "off",
        "-tp",
        "2",
        "--port=80",
        "-O3",
        "--enforce-eager",
    ]
    arguments, rest = split_flags(flags)
    assert arguments == {"speculate": "off"}
    assert rest == ["model", "--dtype", "float32", "-tp", "2", "--port=80", "-O3", "--enforce-eager"]


def test_the_classic_command_line() -> None:
    flags = (
        "--host 0.0.0.0 --port 8000 --model facebook/opt-6.7b --seed 42 -tp 1 "
        "--speculative_model facebook/opt-125m --use-v2-block-manager "
        "--num_speculative_tokens 5 --gpu_memory_utilization 0.8"
    )
    arguments, rest = split_flags(flags.split())
    assert arguments == {
        "speculative_model": "facebook/opt-125m",
        "use_v2_block_manager": True,
        "num_speculative_tokens": 5,
    }
    assert rest == [
        "--host",
        "0.0.0.0",
        "--port",
        "8000",
        "--model",
        "facebook/opt-6.7b",
        "--seed",
        "42",
        "-tp",
        "1",
        "--gpu_memory_utilization",
        "0.8",
    ]


@pytest.mark.parametrize("prefix", ["--speculative-config", "--speculative_config", "-sc"])
def test_vllms_dotted_form(prefix: str) -> None:
    flags = ["m", f"{prefix}.method=ngram", f"{prefix}.num_speculative_tokens", "3", "--port", "1"]
    arguments, rest = split_flags(flags)
    assert arguments == {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    assert rest == ["m", "--port", "1"]


def test_vllms_json_form() -> None:
    for flag in ("--speculative-config", "-sc"):
        arguments, rest = split_flags(["m", flag, '{"method": "ngram"}'])
        assert (arguments, rest) == ({"speculative_config": '{"method": "ngram"}'}, ["m"])


def test_options_in_vllms_config_file(tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("speculative-config: {method: ngram, num_speculative_tokens: 3}\nport: 1\n")
    arguments, rest = split_flags(["m", "--config", str(file)])
    assert arguments == {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    assert rest == ["m", "--config", str(file)]


def test_only_vllms_own_key_can_stand_in_its_config_file(tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("speculate: off\n")
    with pytest.raises(ConfigError, match="speculate cannot stand"):
        split_flags(["m", f"--config={file}"])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--num-speculative-tokens", "few"], "invalid int value: 'few'"),
        (["--speculate"], "expected one argument"),
        (["-sc.method"], "its value is missing"),
        (["-sc.method", "ngram", "-sc", "{}"], "both whole and in parts"),
    ],
)
def test_mistakes(flags: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        split_flags(flags)
