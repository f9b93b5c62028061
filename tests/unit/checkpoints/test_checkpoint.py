import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.checkpoints import Checkpoint, open_checkpoint
from slipstream.errors import CheckpointError
from unit.folders import write_head, write_model, write_weights


def test_sizes_come_from_the_small_files(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_model(tmp_path / "m", parameters=12345))
    assert checkpoint.num_parameters == 12345
    assert checkpoint.vocab_size == 8
    assert checkpoint.weight_bytes() == 2 * 12345
    assert checkpoint.weight_bytes("float32") == 4 * 12345
    # 2 (K and V) x 2 layers x 2 KV heads x 16 wide x 2 bytes
    assert checkpoint.kv_bytes_per_token() == 256
    assert checkpoint.kv_bytes_per_token("float32") == 512


def test_multimodal_configs_nest_the_language_model(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", vocab_size=None, text_config={"vocab_size": 9, "hidden_size": 4})
    assert open_checkpoint(folder).vocab_size == 9


@pytest.mark.parametrize(
    ("name", "config", "method"),
    [
        ("m", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "draft_model"),
        ("m", {"model_type": "medusa"}, "medusa"),
        ("m", {"medusa_num_heads": 5, "medusa_num_layers": 1}, "medusa"),
        ("m", {"model_type": "mlp_speculator"}, "mlp_speculator"),
        ("m", {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}, "eagle3"),
        ("m", {"architectures": ["EagleLlamaForCausalLM"], "model_type": "llama"}, "eagle"),
        ("eagle3", {"architectures": ["EagleLlamaForCausalLM"], "model_type": "llama"}, "eagle"),
        ("EAGLE-llama", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "eagle"),
        ("m", {"model_type": "deepseek_mtp"}, "mtp"),
        ("m", {"speculators_config": {}, "speculators_model_type": "eagle3"}, "eagle3"),
    ],
)
def test_a_drafters_method_is_told_from_its_checkpoint(
    tmp_path: Path, name: str, config: dict[str, Any], method: str
) -> None:
    assert open_checkpoint(write_head(tmp_path / name, **config)).drafter_method == method


def test_a_fingerprint_is_of_config_and_weights(tmp_path: Path) -> None:
    folder = Path(write_model(tmp_path / "m"))
    first = open_checkpoint(str(folder)).fingerprint
    assert open_checkpoint(str(folder)).fingerprint == first
    (folder / "model.safetensors").write_bytes(bytes(10**6))
    zeros = open_checkpoint(str(folder)).fingerprint
    with (folder / "model.safetensors").open("r+b") as weights:
        weights.seek(500_000)
        weights.write(bytes([1]) * 20_000)
    trained_on = open_checkpoint(str(folder)).fingerprint
    (folder / "config.json").write_text('{"model_type": "llama"}')
    assert len({first, zeros, trained_on, open_checkpoint(str(folder)).fingerprint}) == 4


def test_pickled_weights_are_seen(tmp_path: Path) -> None:
    folder = Path(write_model(tmp_path / "m"))
    assert not open_checkpoint(str(folder)).has_only_pickled_weights
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert open_checkpoint(str(folder)).has_only_pickled_weights


def test_quantized_weights_are_counted_as_they_are_stored(tmp_path: Path) -> None:
    folder = Path(write_model(tmp_path / "m"))
    write_weights(folder, 1000, dtype="F8_E4M3")
    assert open_checkpoint(str(folder)).weight_bytes("bfloat16") == 1000


def test_weights_that_stand_in_the_folder_twice_are_counted_once(tmp_path: Path) -> None:
    folder = Path(write_model(tmp_path / "m", parameters=1000))
    (folder / "consolidated.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model.safetensors"}}')
    assert open_checkpoint(str(folder)).num_parameters == 1000


@pytest.mark.parametrize("name", ["/no/such/folder", "./nowhere", "a/b/c"])
def test_no_such_folder(name: str) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        open_checkpoint(name)


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        open_checkpoint(str(tmp_path))


def test_broken_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        open_checkpoint(str(tmp_path))


def test_an_id_is_found_in_the_hugging_face_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Laid out as huggingface_hub lays it out; no network is needed."""
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    write_model(snapshot, parameters=77)
    refs = tmp_path / "models--org--name" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: pytest.fail("asked the hub"))
    checkpoint = Checkpoint("org/name")
    assert checkpoint.config["model_type"] == "llama"
    assert checkpoint.num_parameters == 77
    assert json.loads((snapshot / "config.json").read_text()) == checkpoint.config
    assert checkpoint.file("generation_config.json") is None  # a whole snapshot has it or has it not
