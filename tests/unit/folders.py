"""Model folders of a few kilobytes: everything but real weights, for tests that load none."""

import json
import struct
from pathlib import Path
from typing import Any

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 8,
    "max_position_embeddings": 128,
    "dtype": "bfloat16",
}
WORDS = ("a", "b", "c", "d", "e", "f", "g", "h")


def write_model(
    folder: Path, *, words: tuple[str, ...] = WORDS, parameters: int = 1000, **config: Any
) -> str:
    """A folder with config, tokenizer and a safetensors header that claims `parameters` numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**LLAMA, **config}))
    write_tokenizer(folder, words)
    write_weights(folder, parameters)
    return str(folder)


def write_head(folder: Path, parameters: int = 10, **config: Any) -> str:
    """A folder without a tokenizer, as Medusa and EAGLE heads have it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_weights(folder, parameters)
    return str(folder)


def write_tokenizer(folder: Path, words: tuple[str, ...], special: tuple[str, ...] = ()) -> None:
    from tokenizers import AddedToken, Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in special])
    tokenizer.save(str(folder / "tokenizer.json"))


def write_weights(folder: Path, parameters: int, dtype: str = "BF16") -> None:
    header = json.dumps({"w": {"dtype": dtype, "shape": [parameters], "data_offsets": [0, 0]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


def write_training(folder: str, target: str, survival: list[float]) -> None:
    """As `slipstream train` leaves it beside a drafter."""
    held_out = [{"texts": "greedy", "acceptance": {"drafter": {"survival": survival}}}]
    content = {"recipe": {"target": target}, "held_out": held_out}
    (Path(folder) / "training.json").write_text(json.dumps(content))


def write_vllm(root: Path, **modules: str) -> Path:
    """Write source that looks like vLLM's, with these modules of models; return its folder."""
    models = root / "vllm" / "model_executor" / "models"
    models.mkdir(parents=True)
    for name, text in modules.items():
        (models / f"{name}.py").write_text(text)
    return root / "vllm"
