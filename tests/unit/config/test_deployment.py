from pathlib import Path

import pytest

from slipstream.config import Deployment


def test_keyword_arguments() -> None:
    deployment = Deployment.from_arguments("m", {"tensor_parallel_size": 2, "dtype": "float32", "seed": 1})
    assert deployment == Deployment("m", tensor_parallel_size=2, dtype="float32")


def test_flags_in_their_spellings() -> None:
    expected = Deployment("m", tensor_parallel_size=2, max_model_len=512, async_scheduling=True)
    for flags in (
        ["m", "--tensor-parallel-size", "2", "--max-model-len=512", "--async-scheduling"],
        ["--model", "m", "-tp", "2", "--max_model_len", "512", "--async-scheduling"],
        ["m", "-tp=2", "--async-scheduling", "--max-model-len", "512"],
    ):
        assert Deployment.from_flags(flags) == expected


def test_no_model_at_first_sight() -> None:
    assert Deployment.from_flags(["--port", "80"]) is None


@pytest.mark.parametrize(
    ("text", "number"), [("2k", 2000), ("2K", 2048), ("1.5g", 1_500_000_000), ("64", 64)]
)
def test_numbers_as_vllm_reads_them(text: str, number: int) -> None:
    assert Deployment.from_flags(["m", "--kv-cache-memory-bytes", text]) == Deployment(
        "m", kv_cache_memory_bytes=number
    )


@pytest.mark.parametrize("value", ["auto", "-1", -1, None, "many"])
def test_what_is_no_number_is_left_to_vllm(value: object) -> None:
    assert Deployment.from_arguments("m", {"max_model_len": value}) == Deployment("m")


def test_python_values() -> None:
    given = {"dtype": "torch.float32", "logits_processors": [], "gpu_memory_utilization": 0.5}
    assert Deployment.from_arguments("m", given) == Deployment(
        "m", dtype="float32", gpu_memory_utilization=0.5
    )


def test_vllms_config_file(tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("model: from-file\ntensor-parallel-size: 2\nmax-model-len: 64\n")
    assert Deployment.from_flags(["--config", str(file), "--max-model-len", "32"]) == Deployment(
        "from-file", tensor_parallel_size=2, max_model_len=32
    )
