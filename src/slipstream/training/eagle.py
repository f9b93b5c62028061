"""EAGLE (arXiv 2401.15077): one decoder layer on (embedding of the newest token, hidden state before it).

Trained on its own states as well as on the target's, as EAGLE-3 is (arXiv 2503.01840): the second draft token
is made from the state of the first. It has the first EAGLE's layout, which vLLM loads for Llama-like layers
whatever the target is.
"""

from abc import abstractmethod
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from slipstream.methods import EAGLE
from slipstream.training.drafter import Batch, Seen, TrainableDrafter, Whitened, shifted, whiten
from slipstream.training.features import Target

Keys = tuple[torch.Tensor, torch.Tensor]


class EagleHead(TrainableDrafter):
    """One Llama layer that makes all draft tokens, one after the other: what EAGLE and EAGLE-3 share."""

    learning_rate = 1e-3
    recurrent = True
    architecture: str
    layout: ClassVar[Mapping[str, str]]
    """The name of each weight in the checkpoint, and here."""

    def __init__(self, target: Target, seen: Seen, num_tokens: int, fused: int, attending: int) -> None:
        """`fused` and `attending` are the sizes of what `fc` and attention take."""
        super().__init__(target, seen, num_tokens)
        config = target.config.get_text_config()
        size = target.hidden_size
        self.heads = config.num_attention_heads
        self.kv_heads = getattr(config, "num_key_value_heads", None) or self.heads
        self.head_dim = getattr(config, "head_dim", None) or size // self.heads
        self.inner = config.intermediate_size
        self.epsilon = getattr(config, "rms_norm_eps", 1e-6)
        self.theta = float((getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10000.0))
        self.fc = nn.Linear(fused, size, bias=False)
        self.q_proj = nn.Linear(attending, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(attending, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(attending, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, size, bias=False)
        self.gate_proj = nn.Linear(size, self.inner, bias=False)
        self.up_proj = nn.Linear(size, self.inner, bias=False)
        self.down_proj = nn.Linear(self.inner, size, bias=False)
        self.norm = nn.Parameter(torch.ones(size))
        with torch.no_grad():
            for weight in self.parameters():
                if weight.dim() > 1:
                    weight.normal_(std=0.3 * weight.shape[1] ** -0.5)

    @abstractmethod
    def _read(self, batch: Batch) -> torch.Tensor:
        """Return what the target's states are to the first pass [texts, length, hidden size]."""

    @abstractmethod
    def _enter(self, newest: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what attention is given, and what its result is added to."""

    def _leave(self, x: torch.Tensor) -> torch.Tensor:
        """Return the state that tokens are made of; the next pass is given `x` itself."""
        return x

    def forward(self, batch: Batch, num_tokens: int) -> list[torch.Tensor]:
        """Pass number s, at place p, stands for the draft that began at p - s: it sees the keys of the first
        pass (made of the target's states) up to p - s, and one key of each pass after it."""
        length = batch.tokens.shape[1]
        rotation = self._rotation(length, batch.tokens.device)
        at = torch.arange(length, device=batch.tokens.device)
        newest = functional.embedding(shifted(batch.tokens), self.embedding)
        before = self._read(batch)
        kept: list[Keys] = []
        states = []
        for number in range(num_tokens):
            attending, x = self._enter(newest, before)
            seen = at[None] <= at[:, None] - number
            query, keys = self._project(attending, rotation)
            kept.append(keys)
            x = x + self.o_proj(self._attend(query, kept, seen))
            normed = self._normed(x, self.norm)
            x = x + self.down_proj(functional.silu(self.gate_proj(normed)) * self.up_proj(normed))
            states.append(shifted(self._leave(x), number) if number else self._leave(x))
            before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
        return states

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.epsilon) * weight

    def _rotation(self, length: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
        frequencies = self.theta ** -(torch.arange(0, self.head_dim, 2, device=device) / self.head_dim)
        angles = torch.arange(length, device=device)[:, None] * frequencies[None]
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()

    def _project(self, x: torch.Tensor, rotation: Any) -> tuple[torch.Tensor, Keys]:
        """Return queries, keys and values, each [texts, heads, length, head size]; keys and values once
        for each query head."""

        def split(y: torch.Tensor, heads: int) -> torch.Tensor:
            y = y.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)
            return y.repeat_interleave(self.heads // heads, dim=1)

        def rotated(y: torch.Tensor) -> torch.Tensor:
            cos, sin = rotation
            low, high = y.chunk(2, dim=-1)
            return y * cos + torch.cat([-high, low], dim=-1) * sin

        query = rotated(split(self.q_proj(x), self.heads))
        key = rotated(split(self.k_proj(x), self.kv_heads))
        return query, (key, split(self.v_proj(x), self.kv_heads))

    def _attend(self, query: torch.Tensor, kept: list[Keys], seen: torch.Tensor) -> torch.Tensor:
        """Attend to `seen` of the first pass's keys; and of every later pass one, at the place it stands
        for."""
        (key, value), later = kept[0], kept[1:]
        query = query * self.head_dim**-0.5
        scores = (query @ key.transpose(-1, -2)).float().masked_fill(~seen, -1e9)
        moved = [
            tuple(torch.roll(part, len(later) - i - 1, dims=2) for part in keys)
            for i, keys in enumerate(later)
        ]
        own = [(query * k).sum(-1, keepdim=True).float() for k, _ in moved]
        weights = torch.cat([scores, *own], dim=-1).softmax(-1).to(value.dtype)
        length = key.shape[2]
        result = weights[..., :length] @ value
        for i, (_, v) in enumerate(moved):
            result = result + weights[..., length + i, None] * v
        return result.transpose(1, 2).flatten(2)

    def exported(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        config = {
            "architectures": [self.architecture],
            "model_type": "llama",
            "hidden_size": self.head.shape[1],
            "intermediate_size": self.inner,
            "num_hidden_layers": 1,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.head.shape[0],
            "rms_norm_eps": self.epsilon,
            "rope_theta": self.theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.theta},
            "max_position_embeddings": self.target_config.get_text_config().max_position_embeddings,
            "tie_word_embeddings": False,
            "hidden_act": "silu",
        }
        return config, {name: attrgetter(ours)(self).detach() for name, ours in self.layout.items()}

    def start_from(self, weights: dict[str, torch.Tensor]) -> None:
        # Embeddings may be there: the target's are used. A head with other weights computes something else.
        unknown = [name for name in weights if name not in self.layout and "embed_tokens" not in name]
        if unknown:
            raise KeyError(f"unknown weights: {unknown[:3]}")
        self.load_plain({ours: weights[name] for name, ours in self.layout.items()})


def layer_layout(prefix: str) -> dict[str, str]:
    """Return the names of the layer's weights: in a checkpoint, after the prefix, and here."""
    return {
        **{f"{prefix}.self_attn.{part}_proj.weight": f"{part}_proj.weight" for part in "qkvo"},
        **{f"{prefix}.mlp.{part}_proj.weight": f"{part}_proj.weight" for part in ("gate", "up", "down")},
        f"{prefix}.post_attention_layernorm.weight": "norm",
    }


class Eagle(EagleHead):
    method = EAGLE.name
    imitation = 0.2
    architecture = "EagleLlamaForCausalLM"
    layout: ClassVar = {"fc.weight": "fc.weight", **layer_layout("layers.0")}

    def __init__(self, target: Target, seen: Seen, num_tokens: int) -> None:
        size = target.hidden_size
        super().__init__(target, seen, num_tokens, fused=2 * size, attending=size)
        self._start(float(self.embedding.pow(2).mean().sqrt()))
        whiten(self.fc, Whitened(self.embedding[seen.common], seen.hidden))

    @torch.no_grad()
    def _start(self, embedding_scale: float) -> None:
        """Start near the hidden state it is given, so that the output matrix understands it; with
        embeddings large enough to be heard, and attention that is not yet sharp: its input is not normed."""
        size = self.fc.weight.shape[0]
        self.fc.weight[:, :size] /= embedding_scale
        self.fc.weight[:, size:] += torch.eye(size)

    def _read(self, batch: Batch) -> torch.Tensor:
        return batch.hidden

    def _enter(self, newest: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.fc(torch.cat([newest, before], dim=-1))
        return x, x
