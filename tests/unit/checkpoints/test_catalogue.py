"""The catalogue of published drafters is sound, and finds a target by id, by folder or by shape."""

from pathlib import Path
from typing import Any

from slipstream.checkpoints import Checkpoint, open_checkpoint
from slipstream.checkpoints.catalogue import SHAPE, published_drafters, read_catalogue
from slipstream.methods import DRAFTERS
from unit.folders import write_model

LLAMA_3_8B: Any = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 128256}


def test_every_entry_has_a_source() -> None:
    catalogue = read_catalogue()
    named: list[tuple[str, str]] = []
    for group in catalogue["drafters"]:
        assert group["method"] in DRAFTERS
        assert group["source"].startswith("https://")
        assert str(group["date"]) > "2024"
        for drafter, targets in group["drafters"].items():
            assert targets
            assert all(name.count("/") == 1 for name in (drafter, *targets))
            named += [(drafter, target) for target in targets]
    assert len(named) == len(set(named)) > 80
    targets = {target for _, target in named}
    assert set(catalogue["aliases"].values()) <= targets
    assert catalogue["shapes"].keys() <= targets
    assert all(len(shape) == 1 + len(SHAPE) for shape in catalogue["shapes"].values())


def test_a_target_is_known_by_its_id() -> None:
    found = {entry.drafter: entry for entry in published_drafters(Checkpoint("Qwen/Qwen3-8B"))}
    assert found["Qwen/Qwen3-0.6B"].method == "draft_model"
    assert found["Qwen/Qwen3-0.6B"].note == "has the tokenizer of Qwen/Qwen3-8B"
    assert found["z-lab/Qwen3-8B-DFlash-b16"].note == "published for Qwen/Qwen3-8B"
    assert found["RedHatAI/Qwen3-8B-speculator.eagle3"].method == "eagle3"
    assert found["z-lab/Qwen3-8B-DFlash-b16"].method == "dflash"
    assert not any(entry.by_shape for entry in found.values())
    alias = published_drafters(Checkpoint("meta-llama/Meta-Llama-3.1-8B-Instruct"))
    assert alias == published_drafters(Checkpoint("meta-llama/Llama-3.1-8B-Instruct"))


def test_a_folder_is_known_by_its_name_else_by_its_shape(tmp_path: Path) -> None:
    named = open_checkpoint(write_model(tmp_path / "llama-3.1-8b-instruct", **LLAMA_3_8B))
    assert {entry.target for entry in published_drafters(named)} == {"meta-llama/Llama-3.1-8B-Instruct"}
    other = open_checkpoint(write_model(tmp_path / "ours", **LLAMA_3_8B))
    found = published_drafters(other)
    assert {entry.target for entry in found} == {
        "meta-llama/Meta-Llama-3-8B-Instruct",
        "meta-llama/Llama-3.1-8B-Instruct",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
    }
    assert all("make sure that it is this model" in entry.note for entry in found)


def test_nothing_is_published_for_an_unknown_model(tmp_path: Path) -> None:
    assert published_drafters(open_checkpoint(write_model(tmp_path / "ours"))) == []
