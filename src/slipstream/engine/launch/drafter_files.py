"""The drafter's weights as vLLM and Slipstream load them: here, and as safetensors."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cache import build_once, cache_folder
from slipstream.checkpoints import Checkpoint
from slipstream.config import ResolvedSpeculation
from slipstream.errors import CheckpointError
from slipstream.methods import method_of

if TYPE_CHECKING:
    import torch

CONVERTED = "model.safetensors"


def prepare_drafter(choice: ResolvedSpeculation) -> tuple[ResolvedSpeculation, list[str]]:
    """Return the choice with a drafter that can be loaded, and notes on what was done for it.

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
    if choice.method and method_of(choice.method).implementation:
        checkpoint.fetch_weights()
    return choice, []


def _converted(checkpoint: Checkpoint) -> Path:
    """Return the folder with the checkpoint's weights as safetensors, made if it is not there."""
    files = checkpoint.fetch_weights()
    known = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    mark = hashlib.sha256(repr(known).encode()).hexdigest()[:16]

    def convert(folder: Path) -> None:
        assert checkpoint.folder is not None
        for file in checkpoint.folder.iterdir():
            if file.is_file() and file.name not in {weights.name for weights in files}:
                shutil.copy(file, folder)
        _write_safetensors(files, folder / CONVERTED)

    return build_once(
        cache_folder() / "converted" / f"{Path(checkpoint.name).name}-{mark}", convert, CONVERTED
    )


def _write_safetensors(files: list[Path], target: Path) -> None:
    from safetensors.torch import save_file

    weights: dict[str, torch.Tensor] = {}
    for file in files:
        weights |= _read_pickle(file)
    save_file(weights, target, metadata={"format": "pt"})


def _read_pickle(file: Path) -> "dict[str, torch.Tensor]":
    """Return tensors by name; nothing but tensors is unpickled, and none that is larger than what is
    stored."""
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
