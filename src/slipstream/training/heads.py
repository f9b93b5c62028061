"""Heads on the target's last hidden state: Medusa, and the MLP speculator."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from slipstream.engine.worker.mlp_speculator import Norm, token_weight
from slipstream.methods import MEDUSA, MLP_SPECULATOR
from slipstream.training.drafter import Batch, Seen, TrainableDrafter, Whitened, shifted, whiten
from slipstream.training.features import Target


class Medusa(TrainableDrafter):
    """A stack of residual layers per draft token (arXiv 2401.10774); none sees the tokens between."""

    method = MEDUSA.name
    learning_rate = 1e-3

    def __init__(self, target: Target, seen: Seen, num_tokens: int, layers: int) -> None:
        super().__init__(target, seen, num_tokens)
        size = target.hidden_size
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Linear(size, size, bias=False) for _ in range(layers)) for _ in range(num_tokens)
        )
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.1 / math.sqrt(size))
        whitened = Whitened(seen.hidden)  # for all: what a layer gives is near what it was given
        for block in self.blocks:
            for layer in block:
                whiten(layer, whitened)

    @property
    def weights_read(self) -> int:
        return self.num_learnt // self.num_tokens + self.head.numel()

    def forward(self, batch: Batch, num_tokens: int) -> list[torch.Tensor]:
        states = []
        for block in self.blocks[:num_tokens]:
            state = batch.hidden
            for layer in block:
                state = state + functional.silu(layer(state))
            states.append(state)
        return states

    def exported(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        weights = {
            f"blocks.{i}.layers.{j}.weight": layer.weight.detach()
            for i, block in enumerate(self.blocks)
            for j, layer in enumerate(block)
        }
        # vLLM 0.32 has a `token_map` for fewer tokens, and refuses to start with it ("not initialized").
        weights["lm_head.weight"] = self.head
        config = {
            "architectures": ["MedusaModel"],
            "model_type": MEDUSA.name,
            "hidden_size": self.head.shape[1],
            "vocab_size": self.head.shape[0],
            "num_heads": self.num_tokens,
            "num_hidden_layers": len(self.blocks[0]),
            "original_lm_head": True,
        }
        return config, weights

    def start_from(self, weights: dict[str, torch.Tensor]) -> None:
        self.load_plain({n.replace(".layers.", "."): w for n, w in weights.items() if "blocks" in n})


class MLP(TrainableDrafter):
    """A recurrent network over the draft tokens (arXiv 2404.19124), in IBM's layout.

    Its embeddings and its output matrix are learnt as maps of the target's own, so that tokens which are rare
    in the data are drafted and understood too; they are multiplied out on export.
    """

    method = MLP_SPECULATOR.name
    learning_rate = 1e-3
    recurrent = True

    def __init__(self, target: Target, seen: Seen, num_tokens: int, width: int) -> None:
        super().__init__(target, seen, num_tokens)
        size = target.hidden_size
        self.first = nn.Linear(size, width, bias=False)
        self.next = nn.Linear(width, width, bias=False)
        self.from_embedding = nn.Linear(size, width, bias=False)
        self.to_hidden = nn.Linear(width, size, bias=False)
        self.norm = Norm(width)
        self.scale = Norm(size, learned=False)
        self.token_weight = token_weight(width, num_tokens)
        nn.init.ones_(self.norm.weight)
        nn.init.zeros_(self.norm.bias)
        with torch.no_grad():  # an embedding has about unit length where IBM's start
            spread = float(self.embedding.pow(2).mean().sqrt()) or 1.0
            self.from_embedding.weight.normal_(std=1 / (spread * size**0.5 * width**0.5))
            self.to_hidden.weight.normal_(std=1 / width**0.5)
        whiten(self.first, Whitened(self.scale(seen.hidden.float()) / math.sqrt(2)))
        whiten(self.from_embedding, Whitened(self.embedding[seen.common]))

    @property
    def weights_read(self) -> int:
        """Return how many weights are read for one draft token; the embeddings and the output matrix are
        multiplied out."""
        return self.next.weight.numel() + len(self.vocabulary) * self.next.weight.shape[0]

    def forward(self, batch: Batch, num_tokens: int) -> list[torch.Tensor]:
        tokens = batch.tokens
        state = self.scale(batch.hidden) / math.sqrt(2)
        states = []
        for number in range(num_tokens):
            tokens = shifted(tokens)
            known = self.from_embedding(functional.embedding(tokens, self.embedding))
            state = (self.next if number else self.first)(state) + self.token_weight * known
            state = functional.gelu(self.norm(state))
            states.append(self.to_hidden(state))
        return states

    def exported(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        with torch.no_grad():
            weights = {
                "speculator.emb.0.weight": self.from_embedding(self.embedding),
                "speculator.proj.0.weight": self.first.weight,
                "speculator.proj.1.weight": self.next.weight,
                "speculator.head.0.weight": self.head[self.vocabulary] @ self.to_hidden.weight,
                "speculator.ln.0.weight": self.norm.weight,
                "speculator.ln.0.bias": self.norm.bias,
                "speculator.token_map": self.vocabulary,
                # for training on; not needed to draft
                "maps.from_embedding": self.from_embedding.weight,
                "maps.to_hidden": self.to_hidden.weight,
            }
        config = {
            "architectures": ["MLPSpeculatorPreTrainedModel"],
            "model_type": MLP_SPECULATOR.name,
            "emb_dim": self.head.shape[1],
            "inner_dim": self.next.weight.shape[0],
            "n_predict": self.num_tokens,
            "n_candidates": 1,
            "top_k_tokens_per_head": [1] * self.num_tokens,
            "vocab_size": self.head.shape[0],
            "draft_vocab_size": len(self.vocabulary),
            "tie_weights": True,
            "scale_input": True,
        }
        return config, {name: weight.detach() for name, weight in weights.items()}

    def start_from(self, weights: dict[str, torch.Tensor]) -> None:
        self.load_plain(
            {
                "first.weight": weights["speculator.proj.0.weight"],
                "next.weight": weights["speculator.proj.1.weight"],
                "norm.weight": weights["speculator.ln.0.weight"],
                "norm.bias": weights["speculator.ln.0.bias"],
                "from_embedding.weight": weights["maps.from_embedding"],
                "to_hidden.weight": weights["maps.to_hidden"],
            }
        )
