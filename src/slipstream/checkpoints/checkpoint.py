"""A model folder or Hugging Face id: its config, its kind, the size of its weights."""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from slipstream.checkpoints import hub
from slipstream.errors import CheckpointError
from slipstream.methods import DFLASH, EAGLE3, recognise

# Bytes of a float in the engine's dtype; what is not listed takes two (auto does, float32 checkpoints too).
FLOATS = {"float64": 8, "float32": 4, "float": 4}
OTHER_FLOATS = 2
# Bytes of the types in safetensors files. Floats are loaded in the engine's dtype, the rest (quantized
# weights) as they are.
STORED_FLOATS = ("F64", "F32", "F16", "BF16")
STORED_OTHERS = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
SAMPLES, SAMPLE_BYTES = 64, 4096
"""What is read of all weights to tell checkpoints apart: training changes all of them."""


@dataclass(frozen=True)
class Checkpoint:
    """One model, read lazily; a file that is absent is None, a file that is broken is an error."""

    name: str
    revision: str | None = None

    @property
    def is_local(self) -> bool:
        return Path(self.name).expanduser().is_dir()

    @cached_property
    def folder(self) -> Path | None:
        """Return the files on this machine: the folder itself, or the snapshot in the Hugging Face cache."""
        if self.is_local:
            return Path(self.name).expanduser()
        config = hub.fetch(self.name, "config.json", self.revision)
        return config.parent if config else None

    def file(self, filename: str) -> Path | None:
        """Return the local path of a small file of this checkpoint; fetched from the hub if need be."""
        if self.folder is None:
            return None
        path = self.folder / filename
        if path.exists():
            return path
        if self.is_local or self._has_weights_here:  # nothing more would be on the hub
            return None
        return hub.fetch(self.name, filename, self.revision)

    def json(self, filename: str) -> dict[str, Any]:
        """Return a JSON file of this checkpoint; empty if it has none."""
        path = self.file(filename)
        if path is None:
            return {}
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.name}: {filename} cannot be read: {error}") from error
        return content

    @cached_property
    def config(self) -> dict[str, Any]:
        return self.json("config.json")

    @cached_property
    def text_config(self) -> dict[str, Any]:
        """Return the language model's part of the config; multimodal models and `speculators` heads nest
        it."""
        keys = ("text_config", "llm_config", "transformer_layer_config")
        nested = next((self.config[key] for key in keys if isinstance(self.config.get(key), dict)), None)
        return self.config if nested is None else nested

    @property
    def architectures(self) -> tuple[str, ...]:
        return tuple(self.config.get("architectures") or ())

    @property
    def vocab_size(self) -> int | None:
        """Return the rows of the embedding table: at least the number of tokens, often padded above it."""
        return self.text_config.get("vocab_size")

    @property
    def hidden_size(self) -> int | None:
        return self.text_config.get("hidden_size") or self.text_config.get("emb_dim")

    @property
    def generates_text(self) -> bool:
        """Return whether vLLM would serve it as a decoder that generates, judged by the signs of the
        checkpoint."""
        if self.config.get("is_encoder_decoder") or self.file("modules.json"):  # the latter: an embedder
            return False
        endings = ("CausalLM", "ConditionalGeneration", "LMHeadModel")
        return not self.architectures or any(name.endswith(endings) for name in self.architectures)

    @property
    def contains_drafter(self) -> bool:
        """Return whether it is in `speculators` format: it names its own target, and vLLM starts both by
        itself."""
        return "speculators_config" in self.config

    @cached_property
    def drafter_method(self) -> str:
        """Return how vLLM would use this checkpoint as a drafter, by the signs that vLLM itself goes by."""
        if self.contains_drafter:
            kind = str(self.config.get("speculators_model_type", EAGLE3.name))
            return {"peagle": EAGLE3.name, "dflash2": DFLASH.name}.get(kind, kind)
        return recognise(self.name, self.architectures, self.config)

    @property
    def drafts_in_parallel(self) -> bool:
        """Return whether it is a P-EAGLE head, which vLLM runs as eagle3 if it is told so."""
        return self.config.get("speculators_model_type") == "peagle"

    @property
    def trained_for(self) -> str:
        """Return the target that `slipstream train` made this drafter for; empty if it did not."""
        return str(self.json("training.json").get("recipe", {}).get("target", ""))

    @property
    def held_out_survival(self) -> tuple[float, ...]:
        """Return for a drafter that `slipstream train` made how often its first, second, ... draft token was
        accepted with all before it, on held-out texts (the greedy ones if there are any)."""
        rows = self.json("training.json").get("held_out", [])
        rows = [row for row in rows if row["texts"] == "greedy"] or rows[:1]
        return tuple(rows[0]["acceptance"]["drafter"]["survival"]) if rows else ()

    @property
    def has_only_pickled_weights(self) -> bool:
        """Return whether its weights could only be loaded by unpickling; False where that is not known."""
        names = self._weight_names
        return bool(names) and not any(name.endswith(".safetensors") for name in names)

    def fetch_weights(self) -> list[Path]:
        """Return the weight files on this machine, fetched from the hub if need be: safetensors if there are
        any."""
        index = "model.safetensors.index.json", "pytorch_model.bin.index.json"
        maps = [self.json(name).get("weight_map") for name in index]
        names = set(next((listed.values() for listed in maps if listed), self._weight_names))
        safe = {name for name in names if name.endswith(".safetensors")}
        found = {name: self._weight_file(name) for name in sorted(safe or names)}
        if lacking := [name for name, file in found.items() if file is None]:
            raise CheckpointError(f"{self.name}: {', '.join(lacking)} cannot be found")
        if not found:
            raise CheckpointError(f"{self.name}: there are no weights")
        return [file for file in found.values() if file is not None]

    def _weight_file(self, name: str) -> Path | None:
        if self.folder is not None and (self.folder / name).exists():
            return self.folder / name
        return None if self.is_local else hub.fetch(self.name, name, self.revision)

    @cached_property
    def num_parameters(self) -> int | None:
        """Return numbers in the weight files, as safetensors or the hub state them; about as many as a pickle
        has room for; None where neither is known."""
        if counted := sum(count for _, count in self._stored_tensors):
            return counted
        if not self.is_local and not self._has_weights_here:
            return hub.num_parameters(self.name, self.revision)
        if self.has_only_pickled_weights and self.folder is not None:
            stored = sum((self.folder / name).stat().st_size for name in self._weight_names)
            dtype = self.config.get("dtype") or self.config.get("torch_dtype") or "float32"
            return stored // FLOATS.get(str(dtype), OTHER_FLOATS) or None
        return None

    def weight_bytes(self, dtype: str = "auto") -> int | None:
        """Return bytes of the weights when loaded in `dtype`; from the index where the weights are not
        here."""
        width = FLOATS.get(dtype, OTHER_FLOATS)
        if self._stored_tensors:
            return sum(
                count * (width if stored in STORED_FLOATS else STORED_OTHERS.get(stored, 1))
                for stored, count in self._stored_tensors
            )
        index = self.json("model.safetensors.index.json").get("metadata") or {}
        return index.get("total_size")

    def kv_bytes_per_token(self, dtype: str = "auto") -> int | None:
        """Return bytes of KV cache for one token with plain attention; None where the config does not
        tell."""
        config = self.text_config
        layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
        if not layers or not heads or not self.hidden_size:
            return None
        head_dim = config.get("head_dim") or self.hidden_size // heads
        kv_heads = config.get("num_key_value_heads") or heads
        return int(2 * layers * kv_heads * head_dim * FLOATS.get(dtype, OTHER_FLOATS))

    @property
    def fingerprint(self) -> str:
        """Return a mark that differs for other weights or another config of the same name: of the config and
        of samples of the weights that are here."""
        digest = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode())
        files = [self.folder / name for name in sorted(self._weight_names)] if self.folder else []
        files = [file for file in files if file.exists()]
        samples = max(SAMPLES // max(len(files), 1), 1)
        for file in files:
            size = file.stat().st_size
            digest.update(f"{file.name} {size} ".encode())
            with file.open("rb") as weights:
                for number in range(samples):
                    weights.seek((2 * number + 1) * max(size - SAMPLE_BYTES, 0) // (2 * samples))
                    digest.update(weights.read(SAMPLE_BYTES))
        return digest.hexdigest()[:16]

    @property
    def _has_weights_here(self) -> bool:
        return any(_is_weight_file(path.name) for path in self.folder.iterdir()) if self.folder else False

    @cached_property
    def _weight_names(self) -> tuple[str, ...]:
        if self.folder is not None and (self.is_local or self._has_weights_here):
            names = [path.name for path in self.folder.iterdir()]
        else:
            names = hub.list_files(self.name, self.revision)
        return tuple(name for name in names if _is_weight_file(name))

    @cached_property
    def _stored_tensors(self) -> tuple[tuple[str, int], ...]:
        """Return (stored type, number of elements) of every tensor here."""
        index = self.json("model.safetensors.index.json").get("weight_map")
        listed = set(index.values()) if index else None  # some folders hold the weights a second time
        files = sorted(self.folder.glob("*.safetensors")) if self.folder else []
        files = [file for file in files if listed is None or file.name in listed]
        return tuple(tensor for file in files for tensor in _read_header(file))


def open_checkpoint(name: str, revision: str | None = None) -> Checkpoint:
    """Return the checkpoint `name`; raises if there is no such folder or id, or it has no config.json."""
    checkpoint = Checkpoint(name, revision)
    if not checkpoint.is_local and (name.startswith(("/", "./", "../", "~")) or name.count("/") > 1):
        raise CheckpointError(f"{name}: no such folder. Give a model folder or a Hugging Face id.")
    if not checkpoint.config:
        raise CheckpointError(
            f"{name}: there is no config.json. Give the folder that holds config.json and the weights."
        )
    return checkpoint


def _is_weight_file(name: str) -> bool:
    return name.endswith((".safetensors", *PICKLED)) and not name.startswith(("training_args", "optimizer"))


def _read_header(file: Path) -> Iterator[tuple[str, int]]:
    """Yield (type, number of elements) of each tensor in a safetensors file, from its header alone."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        try:
            header = json.loads(stream.read(length)) if 0 < length < file.stat().st_size else None
        except ValueError:
            header = None
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: not a safetensors file; a Git LFS pointer that was not fetched?")
    for name, entry in header.items():
        if name != "__metadata__":
            yield entry["dtype"], math.prod(entry["shape"])
