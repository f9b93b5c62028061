"""MLP speculators (IBM's 'accelerators', arXiv 2404.19124): vLLM 0.32 parses the config but has no
implementation.

A small recurrent network: from the target's last hidden state and the last token it makes a state, from the
state a token, and so on, with weights of its own for every position or the same for all (`tie_weights`).
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from slipstream.errors import CheckpointError


class Norm(nn.Module):
    """Scales to unit mean square, then by a learned weight and bias (if it has them)."""

    def __init__(self, size: int, learned: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size)) if learned else None
        self.bias = nn.Parameter(torch.empty(size)) if learned else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return x if self.weight is None else x * self.weight + self.bias


def token_weight(width: int, stages: int) -> float:
    """Return how much the token counts against the state, so that the state keeps its scale."""
    state_weight = 0.5 ** (0.5 / stages)
    return math.sqrt((1 - state_weight**2) * (width / 2)) / state_weight


class MLPSpeculator(nn.Module):
    token_map: torch.Tensor | None

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        vocab, hidden, stages = config["vocab_size"], config["emb_dim"], config["n_predict"]
        inner = config.get("inner_dim") or hidden
        self.emb = nn.ModuleList(nn.Embedding(vocab, inner) for _ in range(stages))
        self.proj = nn.ModuleList(
            nn.Linear(hidden if stage == 0 else inner, inner, bias=False) for stage in range(stages)
        )
        drafted = config.get("draft_vocab_size") or vocab  # ours may draft the frequent tokens alone
        self.head = nn.ModuleList(nn.Linear(inner, drafted, bias=False) for _ in range(stages))
        self.ln = nn.ModuleList(Norm(inner) for _ in range(stages))
        if config.get("tie_weights"):
            for parts, first in ((self.emb, 0), (self.head, 0), (self.ln, 0), (self.proj, 1)):
                for stage in range(first + 1, stages):
                    parts[stage] = parts[first]
        self.ln0 = Norm(hidden, learned=False) if config.get("scale_input") else None
        self.token_weight = token_weight(inner, stages)
        self.register_buffer("token_map", torch.empty(drafted, dtype=torch.long) if drafted < vocab else None)

    def forward(self, state: torch.Tensor, token: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """Draft: state [requests, hidden], token [requests] -> the likeliest tokens [requests, num_tokens]"""
        if self.ln0 is not None:
            state = self.ln0(state) / math.sqrt(2)
        tokens = []
        for stage in range(num_tokens):
            state = self.proj[stage](state) + self.token_weight * self.emb[stage](token)
            state = functional.gelu(self.ln[stage](state))
            token = self.head[stage](state).argmax(-1)
            if self.token_map is not None:
                token = self.token_map[token]
            tokens.append(token)
        return torch.stack(tokens, dim=1)


def load_mlp_speculator(folder: str, dtype: torch.dtype, device: torch.device) -> MLPSpeculator:
    """Load it from config.json and safetensors in the IBM layout (`speculator.emb.0.weight`, ...)."""
    config = json.loads((Path(folder) / "config.json").read_text())
    with torch.device("meta"):
        model = MLPSpeculator(config)
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        weights |= load_file(file)
    weights = {
        name.removeprefix("speculator."): tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in weights.items()
    }
    for name in model.state_dict():
        if name not in weights and config.get("tie_weights"):  # tied weights are often stored once
            part, stage, rest = name.split(".", 2)
            first = "1" if part == "proj" and stage != "0" else "0"
            if (shared := weights.get(f"{part}.{first}.{rest}")) is not None:
                weights[name] = shared
    missing = [name for name in model.state_dict() if name not in weights]
    if missing:
        raise CheckpointError(f"{folder}: the MLP speculator lacks {', '.join(missing[:3])}")
    if model.token_map is not None:
        tokens = weights["token_map"]
        if int(tokens.min()) < 0 or int(tokens.max()) >= config["vocab_size"]:
            raise CheckpointError(f"{folder}: token_map names tokens outside of the vocabulary")
    model.load_state_dict({name: weights[name] for name in model.state_dict()}, assign=True)
    return model.to(device).eval()
