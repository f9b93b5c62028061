"""A small model of the target's own kind: some of its layers, distilled from it."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from slipstream.methods import DRAFT_MODEL
from slipstream.training.drafter import Batch, Seen, TrainableDrafter, shifted
from slipstream.training.features import Target

TOKENIZER_FILES = ("tokenizer", "special_tokens", "chat_template", "vocab", "merges", "generation_config")


class DraftModel(TrainableDrafter):
    method = DRAFT_MODEL.name
    learning_rate = 1e-3
    repeats = True

    def __init__(self, target: Target, seen: Seen, num_tokens: int, layers: int, model: Any) -> None:
        super().__init__(target, seen, num_tokens)
        self.model = _cut(model, layers).float()
        self.model.get_input_embeddings().requires_grad_(False)
        self.model.get_output_embeddings().requires_grad_(False)

    def forward(self, batch: Batch, num_tokens: int) -> list[torch.Tensor]:
        decoder = self.model.get_decoder()
        state = decoder(input_ids=batch.tokens, use_cache=False).last_hidden_state
        return [shifted(state)]  # that of token t + 1 guesses token t + 2; `repeats`, so one is enough

    def exported(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        config = self.model.config.to_dict()
        weights = self.model.state_dict()
        if config.get("tie_word_embeddings"):
            weights.pop("lm_head.weight", None)
        return config, weights

    def export(self, folder: Path, dtype: torch.dtype) -> None:
        super().export(folder, dtype)
        for file in Path(self.target_config.name_or_path).glob("*"):
            if file.name.startswith(TOKENIZER_FILES):
                (folder / file.name).write_bytes(file.read_bytes())

    def start_from(self, weights: dict[str, torch.Tensor]) -> None:
        self.model.load_state_dict(weights, strict=False)


def _cut(model: Any, layers: int) -> Any:
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
