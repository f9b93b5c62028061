"""A draft model, distilled from the target: some of its layers, or an existing small model."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from slipstream.checkpoints import Checkpoint
from slipstream.errors import ConfigError
from slipstream.methods import DRAFT_MODEL
from slipstream.training.drafter import Batch, Seen, TrainableDrafter, shifted
from slipstream.training.features import Target
from slipstream.training.recipe import SmallModel

TOKENIZER_FILES = ("tokenizer", "special_tokens", "chat_template", "vocab", "merges", "generation_config")


class DraftModel(TrainableDrafter):
    """Trains a model whose embedding and output matrix stay as they are."""

    method = DRAFT_MODEL.name
    learning_rate = 1e-3
    repeats = True

    def __init__(self, target: Target, seen: Seen, num_tokens: int, model: Any) -> None:
        super().__init__(target, seen, num_tokens)
        self.model = model.float()
        self.model.get_input_embeddings().requires_grad_(False)
        self.model.get_output_embeddings().requires_grad_(False)

    @property
    def output_matrix(self) -> torch.Tensor:
        weight: torch.Tensor = self.model.get_output_embeddings().weight
        return weight

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the model's states [texts, length, its hidden size] while it reads the tokens."""
        state: torch.Tensor = self.model.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state
        return state

    def forward(self, batch: Batch, num_tokens: int) -> list[torch.Tensor]:
        # The state of token t + 1 guesses token t + 2; `repeats`, so one is enough.
        return [shifted(self.read(batch.tokens))]

    def exported(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        config = self.model.config.to_dict()
        weights = self.model.state_dict()
        if config.get("tie_word_embeddings"):
            weights.pop("lm_head.weight", None)
        return config, weights

    def export(self, folder: Path, dtype: torch.dtype) -> None:
        super().export(folder, dtype)
        _copy_files(str(self.target_config.name_or_path), TOKENIZER_FILES, folder)

    def start_from(self, weights: dict[str, torch.Tensor]) -> None:
        missing, unknown = self.model.load_state_dict(weights, strict=False)
        if self.model.config.to_dict().get("tie_word_embeddings"):
            missing = [name for name in missing if name != "lm_head.weight"]
        if missing or unknown:
            raise KeyError(f"missing weights: {missing[:3]}, unknown weights: {unknown[:3]}")


class SmallDraftModel(DraftModel):
    """Trains an existing small model, which knows its language already: with a lower learning rate."""

    learning_rate = 2e-4

    def __init__(self, target: Target, seen: Seen, num_tokens: int, small: SmallModel) -> None:
        model = load_small_model(small)
        if model.config.get_text_config().vocab_size != len(target.head):
            # Tables of one family are padded to different sizes; vLLM takes drafters of the target's size.
            model.resize_token_embeddings(len(target.head), mean_resizing=False)
        super().__init__(target, seen, num_tokens, model)
        self._code = small.name if small.trust_remote_code else None

    def export(self, folder: Path, dtype: torch.dtype) -> None:
        super().export(folder, dtype)
        if self._code is not None:
            _copy_files(self._code, ("configuration_", "modeling_"), folder)


def load_small_model(small: SmallModel) -> Any:
    """Return an existing small model, from safetensors; raises if it cannot be trained here."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        small.name, dtype="auto", use_safetensors=True, trust_remote_code=small.trust_remote_code
    )
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        raise ConfigError(f"--from {small.name}: its output layer has a bias, which training does not know")
    return model


def check_code(small: SmallModel) -> None:
    """Raise if the small model needs code of its own and may not run it."""
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(small.name, trust_remote_code=small.trust_remote_code)
    except ValueError as error:
        raise ConfigError(
            f"--from {small.name}: transformers cannot load it ({str(error).splitlines()[0]}); if it comes "
            "with code that you trust, add --trust-remote-code"
        ) from None


def cut(model: Any, layers: int) -> Any:
    """Return a copy with so many of its layers, the first and the last among them."""
    small = copy.deepcopy(model)
    decoder = small.get_decoder()
    there = len(decoder.layers)
    layers = min(layers, there)
    chosen = [round(i * (there - 1) / max(layers - 1, 1)) for i in range(layers)]
    decoder.layers = nn.ModuleList(decoder.layers[i] for i in chosen)
    small.config.num_hidden_layers = layers
    if types := getattr(small.config, "layer_types", None):
        small.config.layer_types = [types[i] for i in chosen]
    return small


def _copy_files(checkpoint: str, beginnings: tuple[str, ...], folder: Path) -> None:
    source = Checkpoint(checkpoint).folder
    for file in source.iterdir() if source is not None else ():
        if file.name.startswith(beginnings):
            (folder / file.name).write_bytes(file.read_bytes())
