"""What the kinds of drafter have in common while they learn.

At place t the target has written up to token t + 1 and shown its hidden state at t. Draft token number j
(from 1) is a guess at token t + 1 + j. Every drafter makes, for each place and each j, a *state* in the space
of the target's hidden states, and the target's output matrix makes tokens of it; an existing small model has
states of its own size, and its own output matrix. As long as the drafts before
were right, the text is the target's own; where one was wrong the rest is not used. So one pass over the
target's text tells how much would have been accepted from every place.
"""

import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import parametrize

from slipstream.errors import CheckpointError
from slipstream.planning.prediction import Acceptance, Situation, flat_curve, predicted_speedup
from slipstream.training.features import Example, Target, padded

LEAST = 0.03
"""Relative to the mean, what a component's variance is at least taken for: below is the noise of bfloat16."""


@dataclass(frozen=True)
class Batch:
    tokens: torch.Tensor
    """[texts, length], padded with 0 at the end"""
    hidden: torch.Tensor
    """[texts, length, hidden size]"""
    lengths: torch.Tensor
    """[texts]"""
    prompt_lengths: torch.Tensor
    """[texts]"""
    layers: torch.Tensor | None = None
    """[texts, length, layers * hidden size], if the examples have states of layers"""

    @classmethod
    def of(cls, examples: Sequence[Example], device: Any = None) -> "Batch":
        lengths = [len(example.tokens) for example in examples]
        longest = padded(max(lengths))
        tokens = _stacked([example.tokens for example in examples], longest, torch.long)
        hidden = _stacked([example.hidden for example in examples], longest, torch.float32)
        prompts = torch.tensor([example.prompt_length for example in examples])
        batch = cls(*(t.to(device) for t in (tokens, hidden, torch.tensor(lengths), prompts)))
        layers = [example.layers for example in examples if example.layers is not None]
        if not layers:
            return batch
        return replace(batch, layers=_stacked(layers, longest, torch.float32).to(device))

    def places(self, number: int, prompts_too: bool) -> torch.Tensor:
        """Return [texts, length]: where draft token `number` can be compared with the text."""
        at = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        there = at[None] + 1 + number < self.lengths[:, None]
        return there if prompts_too else there & (at[None] >= self.prompt_lengths[:, None] - 1)


def _stacked(rows: Sequence[torch.Tensor], length: int, dtype: torch.dtype) -> torch.Tensor:
    """Return rows of several lengths as one tensor, with zeros at the end."""
    whole = torch.zeros(len(rows), length, *rows[0].shape[1:], dtype=dtype)
    for i, row in enumerate(rows):
        whole[i, : len(row)] = row
    return whole


class Seen(NamedTuple):
    """What the texts to learn from are like."""

    vocabulary: torch.Tensor
    """The tokens to draft, in rising order."""
    common: torch.Tensor
    """The tokens to learn from in every batch, in rising order."""
    hidden: torch.Tensor
    """[some places, hidden size]"""
    layers: torch.Tensor | None = None
    """[some places, layers * hidden size], if states of layers are learnt from"""


class Whitened(nn.Module):
    """The parametrization of a matrix that is to be applied to vectors like these, behind each other. Some
    components of hidden states are ten times as large as others, and all of embeddings are small; the matrix
    learns as if they were independent and of one size."""

    def __init__(self, *samples: torch.Tensor) -> None:
        super().__init__()
        whitening, inverse = zip(*map(_whitening, samples), strict=True)
        self.register_buffer("whitening", torch.block_diag(*whitening), persistent=False)
        self.register_buffer("inverse", torch.block_diag(*inverse), persistent=False)

    def forward(self, learnt: torch.Tensor) -> torch.Tensor:
        return learnt @ self.whitening

    def right_inverse(self, matrix: torch.Tensor) -> torch.Tensor:
        return matrix @ self.inverse


def _whitening(samples: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the matrix that makes vectors like these independent and of one size, and its inverse."""
    moments = samples.float().T @ samples.float() / len(samples)
    variances, directions = torch.linalg.eigh(moments)
    sizes = (variances.clamp(min=0) + LEAST * variances.mean()).sqrt()
    return directions / sizes @ directions.T, directions * sizes @ directions.T


def component_sizes(samples: torch.Tensor) -> torch.Tensor:
    """Return the root mean square of each component, which is at least that of the noise of bfloat16."""
    squares = samples.float().pow(2).mean(0)
    return (squares + LEAST * squares.mean()).sqrt()


def whiten(layer: nn.Linear, whitened: Whitened) -> None:
    parametrize.register_parametrization(layer, "weight", whitened)


class TrainableDrafter(nn.Module):
    """`forward` gives the states of the first so many draft tokens, each [texts, length, size of its states]:
    the target's hidden size, unless it has an output matrix of its own."""

    method: str
    learning_rate: float
    recurrent: bool = False
    """Whether the same weights make all its draft tokens: then most is learnt from the first one."""
    repeats: bool = False
    """Whether the state of draft token j at place t is that of the first one at place t + j - 1."""

    imitation: float = 0.0
    """What it counts that a state is the target's hidden state, beside what it says."""

    vocabulary: torch.Tensor
    """The tokens it can draft."""
    common: torch.Tensor
    """Those that it learns from in every batch."""
    embedding: torch.Tensor
    head: torch.Tensor

    def __init__(self, target: Target, seen: Seen, num_tokens: int) -> None:
        super().__init__()
        self.target_config = target.config
        self.num_tokens = num_tokens
        self.target_size = target.num_parameters
        self.register_buffer("vocabulary", seen.vocabulary, persistent=False)
        self.register_buffer("common", seen.common, persistent=False)
        self.register_buffer("embedding", target.embedding.float(), persistent=False)
        self.register_buffer("head", target.head.float(), persistent=False)

    @property
    def weights_read(self) -> int:
        """Return how many weights are read for one draft token: its own, and the output matrix."""
        return self.num_learnt + len(self.vocabulary) * self.output_matrix.shape[1]

    @property
    def output_matrix(self) -> torch.Tensor:
        """Return [vocabulary, size of its states]: what makes logits of them, the target's unless it has its
        own."""
        return self.head

    @property
    def num_learnt(self) -> int:
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    def predicted_speedup(self, acceptance: Acceptance) -> float:
        """Return the speedup with the best number of draft tokens, where reading weights is what takes
        time: few requests."""
        cost = self.weights_read / self.target_size
        return max(
            predicted_speedup(flat_curve(k), acceptance.limited_to(k), Situation(1), k * cost)
            for k in range(self.num_tokens + 1)
        )

    @abstractmethod
    def forward(self, batch: Batch, num_tokens: int) -> list[torch.Tensor]: ...

    def states(self, batch: Batch) -> list[torch.Tensor]:
        """Return the states of all its draft tokens."""
        states = self(batch, 1 if self.repeats else self.num_tokens)
        while len(states) < self.num_tokens:
            states.append(shifted(states[-1]))
        return states

    def guesses(self, states: torch.Tensor) -> torch.Tensor:
        """Return the token that it would draft for each state [..., size of its states]."""
        if len(self.vocabulary) == len(self.head):  # not a copy of the largest matrix for each call
            return (states @ self.output_matrix.T).argmax(-1)
        return self.vocabulary[(states @ self.output_matrix[self.vocabulary].T).argmax(-1)]

    @abstractmethod
    def exported(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return config.json and the weights, as vLLM or Slipstream loads them."""

    @abstractmethod
    def start_from(self, weights: dict[str, torch.Tensor]) -> None:
        """Go on from what `exported` once gave."""

    def load_plain(self, weights: dict[str, torch.Tensor]) -> None:
        """Call `load_state_dict` with weights in which whitening is multiplied out: all of them, and no
        others."""
        state = dict(weights)
        for name, module in self.named_modules():
            if parametrize.is_parametrized(module, "weight"):
                (whitened,) = module.parametrizations.weight
                plain = state.pop(f"{name}.weight")
                state[f"{name}.parametrizations.weight.original"] = whitened.right_inverse(plain)
        self.load_state_dict(state)

    def export(self, folder: Path, dtype: torch.dtype) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config, weights = self.exported()
        weights = {
            name: (tensor.to(dtype) if tensor.is_floating_point() else tensor).contiguous().clone()
            for name, tensor in weights.items()
        }
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def shifted(states: torch.Tensor, by: int = 1) -> torch.Tensor:
    """Shift so that what stood at place t + `by` stands at t; zeros at the end."""
    return torch.cat([states[:, by:], torch.zeros_like(states[:, :by])], dim=1)


def read_weights(folder: str) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        weights |= {name: tensor.float() for name, tensor in load_file(file).items()}
    if not weights:
        raise CheckpointError(f"{folder}: no safetensors; give the folder of an exported drafter")
    return weights
