"""Drafters that come pickled, or of which only the small files are here."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from safetensors.torch import load_file, save_file

from slipstream.checkpoints import Checkpoint, hub, open_checkpoint
from slipstream.config import Drafter, ResolvedSpeculation
from slipstream.engine.launch.drafter_files import prepare_drafter
from slipstream.engine.worker.mlp_speculator import load_mlp_speculator
from slipstream.errors import CheckpointError
from unit.folders import write_model


class Executed:
    """Unpickling it writes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return (Path.touch, (self.file,))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def choice(folder: str, method: str = "draft_model") -> ResolvedSpeculation:
    return ResolvedSpeculation(
        method, "", drafter=Drafter(model=folder), drafter_checkpoint=open_checkpoint(folder)
    )


def pickled(folder: Path, content: Any) -> str:
    write_model(folder)
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")
    return str(folder)


def test_pickled_weights_are_converted_once(tmp_path: Path) -> None:
    embeddings = torch.randn(8, 4)
    weights = {"embed": embeddings, "head": embeddings, "half": embeddings[:, :2]}  # tied, and a view
    given = pickled(tmp_path / "opt", weights)
    found, notes = prepare_drafter(choice(given))
    assert found.drafter is not None
    assert found.drafter_checkpoint is not None
    folder = Path(str(found.drafter.model))
    assert not found.drafter_checkpoint.has_only_pickled_weights
    loaded = load_file(folder / "model.safetensors")
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)
    assert (folder / "config.json").read_text() == (Path(given) / "config.json").read_text()
    assert "safetensors" in notes[0]
    written = (folder / "model.safetensors").stat().st_mtime_ns
    prepare_drafter(choice(given))
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    torch.save({"embed": embeddings + 1}, Path(given) / "pytorch_model.bin")
    again, _ = prepare_drafter(choice(given))
    assert again.drafter is not None
    assert again.drafter.model != found.drafter.model  # other weights, another folder


def test_nothing_is_executed(tmp_path: Path, cache: Path) -> None:
    given = pickled(tmp_path / "bad", {})
    harm = tmp_path / "harm"
    for write in (torch.save, lambda content, file: file.write_bytes(pickle.dumps(content))):
        write({"w": Executed(harm)}, Path(given) / "pytorch_model.bin")
        with pytest.raises(CheckpointError, match="cannot be read as plain weights"):
            prepare_drafter(choice(given))
    assert not harm.exists()
    assert not any(cache.rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [([1, 2], "not a dictionary"), ({"w": torch.zeros(1).expand(10**12)}, "more numbers than are stored")],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, content: Any, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        prepare_drafter(choice(pickled(tmp_path / "bad", content)))


def mlp_config(**more: Any) -> dict[str, Any]:
    shape = {"n_predict": 1, "emb_dim": 4, "inner_dim": 4, "vocab_size": 8}
    return {"model_type": "mlp_speculator", **shape, **more}


def mlp_weights(drafted: int = 8) -> dict[str, torch.Tensor]:
    names = {"emb.0.weight": (8, 4), "proj.0.weight": (4, 4), "head.0.weight": (drafted, 4)}
    norms = {"ln.0.weight": (4,), "ln.0.bias": (4,)}
    return {f"speculator.{name}": torch.zeros(shape) for name, shape in {**names, **norms}.items()}


def test_an_mlp_speculator_on_the_hub_is_fetched_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub is a folder here; from it, files come one by one into a snapshot, as huggingface_hub does."""
    remote, snapshot = tmp_path / "remote", tmp_path / "snapshot"
    remote.mkdir()
    snapshot.mkdir()
    (remote / "config.json").write_text(json.dumps(mlp_config()))
    save_file(mlp_weights(), remote / "model.safetensors")

    def fetch(repo: str, filename: str, revision: str | None) -> Path | None:
        if not (remote / filename).exists():
            return None
        (snapshot / filename).write_bytes((remote / filename).read_bytes())
        return snapshot / filename

    monkeypatch.setattr(hub, "fetch", fetch)
    monkeypatch.setattr(hub, "list_files", lambda repo, revision: [file.name for file in remote.iterdir()])
    monkeypatch.setattr(hub, "num_parameters", lambda repo, revision: 123)
    chosen = choice("ibm/accelerator", "mlp_speculator")
    assert chosen.drafter_checkpoint is not None
    assert chosen.drafter_checkpoint.num_parameters == 123
    assert not (snapshot / "model.safetensors").exists()
    prepare_drafter(chosen)
    load_mlp_speculator(str(chosen.drafter_checkpoint.folder), torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("token", [-1, 8])
def test_a_token_outside_of_the_vocabulary_is_refused(token: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(mlp_config(draft_vocab_size=2)))
    tokens = {"speculator.token_map": torch.tensor([3, token])}
    save_file({**mlp_weights(drafted=2), **tokens}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="outside of the vocabulary"):
        load_mlp_speculator(str(tmp_path), torch.float32, torch.device("cpu"))


def test_missing_weights_are_named(tmp_path: Path) -> None:
    folder = Path(write_model(tmp_path / "m"))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"w": "part-2.safetensors"}})
    )
    with pytest.raises(CheckpointError, match="part-2"):
        Checkpoint(str(folder)).fetch_weights()
