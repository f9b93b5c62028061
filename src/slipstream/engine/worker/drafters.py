"""Proposers that vLLM runs in its workers for us, as `custom_class`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from slipstream.engine.settings import Settings


class NoDrafter:
    """Nothing is drafted in the workers: free proposers run in the scheduler's process."""

    def __init__(self, vllm_config: Any) -> None:
        pass

    def load_model(self, model: Any) -> None:
        pass

    def propose(self, sampled_token_ids: Sequence[Any], *args: Any, **kwargs: Any) -> list[list[int]]:
        return [[] for _ in sampled_token_ids]


class HiddenStateDrafter(ABC):
    """A drafter that reads the target's hidden states and that vLLM has no implementation of. It is whole on
    every rank: each computes the same tokens, and none waits for another.

    Derive from it, and name the class as the `implementation` of a row in `slipstream.methods`.
    """

    def __init__(self, vllm_config: Any) -> None:
        self._folder = Settings.of(vllm_config).drafter_folder
        self._dtype = vllm_config.model_config.dtype

    def load_model(self, model: Any) -> None:
        """Load the drafter beside the target; called by vLLM."""
        self.load(self._folder, self._dtype, next(model.parameters()).device)

    def propose(self, *args: Any, **kwargs: Any) -> list[list[int]]:
        raise NotImplementedError("vLLM gives a custom_class no hidden states; the runner calls draft")

    @abstractmethod
    def load(self, folder: str, dtype: torch.dtype, device: torch.device) -> None:
        """Load the checkpoint in `folder`."""

    @abstractmethod
    def draft(self, hidden_states: torch.Tensor, last_tokens: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """Draft: hidden_states [requests, hidden], last_tokens [requests] -> [requests, num_tokens]"""


class MLPSpeculatorDrafter(HiddenStateDrafter):
    def load(self, folder: str, dtype: torch.dtype, device: torch.device) -> None:
        from slipstream.engine.worker.mlp_speculator import load_mlp_speculator

        self._model = load_mlp_speculator(folder, dtype, device)

    def draft(self, hidden_states: torch.Tensor, last_tokens: torch.Tensor, num_tokens: int) -> torch.Tensor:
        drafts: torch.Tensor = self._model(hidden_states, last_tokens, num_tokens)
        return drafts
