"""The drafter's weights as vLLM and Slipstream load them: here, and as safetensors."""

import hashlib
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.checkpoints import Checkpoint
from slipstream.config import Choice
from slipstream.errors import CheckpointError

if TYPE_CHECKING:
    import torch

CONVERTED = "model.safetensors"


def with_files_here(choice: Choice) -> tuple[Choice, list[str]]:
    """(the choice with a drafter that can be loaded, notes on what was done for it).

    Pickled weights are converted once and kept in the cache. The weights of an MLP speculator, which vLLM
    does not load, are fetched.
    """
    checkpoint = choice.drafter_checkpoint
    if checkpoint is None or choice.drafter is None:
        return choice, []
    if checkpoint.has_only_pickled_weights:
        folder = _converted(checkpoint)
        note = f"the drafter's pickled weights were read by weights_only=True and are safetensors in {folder}"
        drafter = choice.drafter.model_copy(update={"model": str(folder), "revision": None})
        return replace(choice, drafter=drafter, drafter_checkpoint=Checkpoint(str(folder))), [note]
    if choice.method == "mlp_speculator":
        checkpoint.fetch_weights()
    return choice, []


def _converted(checkpoint: Checkpoint) -> Path:
    """The folder with the checkpoint's weights as safetensors, made if it is not there."""
    files = checkpoint.fetch_weights()
    assert checkpoint.folder is not None
    known = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    mark = hashlib.sha256(repr(known).encode()).hexdigest()[:16]
    folder = _cache() / f"{Path(checkpoint.name).name}-{mark}"
    if (folder / CONVERTED).exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        draft = Path(scratch) / folder.name
        draft.mkdir()
        for file in checkpoint.folder.iterdir():
            if file.is_file() and file.name not in {weights.name for weights in files}:
                shutil.copy(file, draft)
        _write_safetensors(files, draft / CONVERTED)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    return folder


def _cache() -> Path:
    root = os.environ.get("SLIPSTREAM_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "slipstream") / "converted"


def _write_safetensors(files: list[Path], target: Path) -> None:
    from safetensors.torch import save_file

    weights: dict[str, torch.Tensor] = {}
    for file in files:
        weights |= _read_pickle(file)
    save_file(weights, target, metadata={"format": "pt"})


def _read_pickle(file: Path) -> "dict[str, torch.Tensor]":
    """Tensors by name; nothing but tensors is unpickled, and none that is larger than what is stored."""
    import torch

    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(
            f"{file.name}: cannot be read as plain weights ({reason}); convert it to safetensors yourself, "
            "where you trust it"
        ) from None
    content = content.get("state_dict", content) if isinstance(content, dict) else content
    if not isinstance(content, dict) or not all(isinstance(t, torch.Tensor) for t in content.values()):
        raise CheckpointError(f"{file.name}: not a dictionary of tensors")
    for name, tensor in content.items():
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise CheckpointError(f"{file.name}: {name} claims more numbers than are stored")
    return {str(name): tensor.contiguous().clone() for name, tensor in content.items()}
