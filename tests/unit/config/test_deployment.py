from pathlib import Path

from slipstream.config import Deployment


def test_keyword_arguments() -> None:
    deployment = Deployment.from_arguments("m", {"tensor_parallel_size": 2, "dtype": "float32", "seed": 1})
    assert deployment == Deployment("m", tensor_parallel_size=2, dtype="float32")


def test_flags_in_their_spellings() -> None:
    expected = Deployment("m", tensor_parallel_size=2, max_model_len=512, trust_remote_code=True)
    for flags in (
        ["m", "--tensor-parallel-size", "2", "--max-model-len=512", "--trust-remote-code"],
        ["--model", "m", "-tp", "2", "--max_model_len", "512", "--trust-remote-code"],
        ["m", "-tp=2", "--trust-remote-code", "--max-model-len", "512"],
    ):
        assert Deployment.from_flags(flags) == expected


def test_no_model_at_first_sight() -> None:
    assert Deployment.from_flags(["--port", "80"]) is None


def test_what_only_vllm_can_read_is_left_to_it() -> None:
    assert Deployment.from_flags(["m", "--max-model-len", "32k"]) == Deployment("m")


def test_vllms_config_file(tmp_path: Path) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("model: from-file\ntensor-parallel-size: 2\nmax-model-len: 64\n")
    assert Deployment.from_flags(["--config", str(file), "--max-model-len", "32"]) == Deployment(
        "from-file", tensor_parallel_size=2, max_model_len=32
    )
