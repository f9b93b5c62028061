"""A model folder or Hugging Face id: its config, its kind, the size of its weights."""

import json
import math
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from slipstream.errors import CheckpointError

BYTES_OF_DTYPE = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """One model, read lazily; a file that is absent is None, a file that is broken is an error."""

    name: str
    revision: str | None = None

    @property
    def is_local(self) -> bool:
        return Path(self.name).expanduser().is_dir()

    def file(self, filename: str) -> Path | None:
        """The local path of a small file of this checkpoint; fetched from the hub if need be."""
        if self.is_local:
            path = Path(self.name).expanduser() / filename
            return path if path.exists() else None
        return _file_from_hub(self.name, filename, self.revision)

    def json(self, filename: str) -> dict[str, Any]:
        """A JSON file of this checkpoint; empty if it has none."""
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
        """The language model's part of the config; multimodal models nest it."""
        nested = self.config.get("text_config") or self.config.get("llm_config")
        return nested if isinstance(nested, dict) else self.config

    @property
    def architectures(self) -> tuple[str, ...]:
        return tuple(self.config.get("architectures") or ())

    @property
    def vocab_size(self) -> int | None:
        """Rows of the embedding table: at least the number of tokens, often padded above it."""
        return self.text_config.get("vocab_size")

    @property
    def hidden_size(self) -> int | None:
        return self.text_config.get("hidden_size") or self.text_config.get("emb_dim")

    @property
    def generates_text(self) -> bool:
        """Whether vLLM would serve it as a generating model, judged by its architecture's name."""
        names = self.architectures
        return not names or any(
            n.endswith(("CausalLM", "ConditionalGeneration", "LMHeadModel")) for n in names
        )

    @property
    def contains_drafter(self) -> bool:
        """A checkpoint in `speculators` format names its own target; vLLM starts both by itself."""
        return "speculators_config" in self.config

    @cached_property
    def drafter_method(self) -> str:
        """How vLLM would use this checkpoint as a drafter, by the signs that vLLM itself goes by."""
        model_type = str(self.config.get("model_type", ""))
        name = self.name.lower()
        names = " ".join(self.architectures)
        if self.contains_drafter:
            return str(self.config.get("speculators_model_type", "eagle3"))
        if model_type in ("medusa", "mlp_speculator"):
            return model_type
        if "Eagle3" in names or "eagle3" in name:
            return "eagle3"
        if "Eagle" in names or model_type == "eagle" or "eagle-" in name:
            return "eagle"
        if "DFlash" in names or "dflash" in name:
            return "dflash"
        if "DSpark" in names or "dspark" in name:
            return "dspark"
        if model_type.endswith("_mtp") or model_type == "mtp":
            return "mtp"
        return "draft_model"

    @cached_property
    def safetensors_files(self) -> tuple[Path, ...]:
        """The weight files on this machine; empty where the weights are not here (yet)."""
        if self.is_local:
            return tuple(sorted(Path(self.name).expanduser().glob("*.safetensors")))
        config = self.file("config.json")
        return tuple(sorted(config.parent.glob("*.safetensors"))) if config else ()

    @property
    def has_only_pickled_weights(self) -> bool:
        """True for a local folder whose weights could only be loaded by unpickling."""
        if not self.is_local or self.safetensors_files:
            return False
        folder = Path(self.name).expanduser()
        return any(any(folder.glob(pattern)) for pattern in ("*.bin", "*.pt", "*.pth"))

    @cached_property
    def num_parameters(self) -> int | None:
        """Parameters in the weight files, or from the hub's metadata; None if neither is to be had."""
        if self.safetensors_files:
            return sum(_count_parameters(file) for file in self.safetensors_files)
        total_bytes = (self.json("model.safetensors.index.json").get("metadata") or {}).get("total_size")
        if total_bytes:
            return int(total_bytes) // self.bytes_per_parameter()
        return None

    def bytes_per_parameter(self, dtype: str = "auto") -> int:
        if dtype in ("auto", "half"):
            dtype = str(self.text_config.get("dtype") or self.text_config.get("torch_dtype") or "bfloat16")
            if dtype == "float32":
                dtype = "bfloat16"  # what vLLM's dtype="auto" makes of a float32 checkpoint: two bytes
        return BYTES_OF_DTYPE.get(dtype, 2)

    def kv_bytes_per_token(self, dtype: str = "auto") -> int | None:
        """Bytes of KV cache for one token of one request; None where the config does not tell."""
        config = self.text_config
        layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
        if not layers or not heads or not self.hidden_size:
            return None
        head_dim = config.get("head_dim") or self.hidden_size // heads
        kv_heads = config.get("num_key_value_heads") or heads
        return int(2 * layers * kv_heads * head_dim * self.bytes_per_parameter(dtype))


def open_checkpoint(name: str, revision: str | None = None) -> Checkpoint:
    """The checkpoint `name`; raises if there is no such folder or id, or it has no config.json."""
    checkpoint = Checkpoint(name, revision)
    if not checkpoint.is_local and (name.startswith(("/", "./", "../", "~")) or name.count("/") > 1):
        raise CheckpointError(f"{name}: no such folder. Give a model folder or a Hugging Face id.")
    if not checkpoint.config:
        raise CheckpointError(
            f"{name}: there is no config.json. Give the folder that holds config.json and the weights."
        )
    return checkpoint


def _file_from_hub(repo: str, filename: str, revision: str | None) -> Path | None:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    try:
        cached = try_to_load_from_cache(repo, filename, revision=revision)
        if isinstance(cached, str):
            return Path(cached)
        if cached is not None:  # the hub has said before that there is no such file
            return None
        return Path(hf_hub_download(repo, filename, revision=revision))
    except RepositoryNotFoundError as error:
        raise CheckpointError(f"{repo}: no such model on the hub, and no such folder here.") from error
    except HFValidationError as error:
        raise CheckpointError(f"{repo}: no such folder, and not a Hugging Face id ({error}).") from error
    except EntryNotFoundError:
        # LocalEntryNotFoundError is one of these: offline, and the file was never fetched.
        if filename == "config.json":
            raise CheckpointError(
                f"{repo}: not on this machine, and the hub cannot be reached. "
                "Download it first (hf download) or give a folder."
            ) from None
        return None
    except OSError as error:
        raise CheckpointError(f"{repo}: {filename} cannot be fetched: {error}") from error


def _count_parameters(file: Path) -> int:
    """Parameters in one safetensors file, from its header alone."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
