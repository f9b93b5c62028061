"""Proposers that vLLM runs in its workers for us, as `custom_class`."""

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


class MLPSpeculatorDrafter:
    """An MLP speculator, whole on every rank: each computes the same tokens, none waits for another."""

    def __init__(self, vllm_config: Any) -> None:
        self._folder = Settings.of(vllm_config).mlp_speculator
        self._dtype = vllm_config.model_config.dtype

    def load_model(self, model: Any) -> None:
        from slipstream.engine.mlp_speculator import load_mlp_speculator

        device = next(model.parameters()).device
        self._model = load_mlp_speculator(self._folder, self._dtype, device)

    def propose(self, *args: Any, **kwargs: Any) -> list[list[int]]:
        raise NotImplementedError("vLLM gives a custom_class no hidden states; the runner calls draft")

    def draft(self, hidden_states: torch.Tensor, last_tokens: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """hidden_states [requests, hidden], last_tokens [requests] -> [requests, num_tokens]"""
        drafts: torch.Tensor = self._model(hidden_states, last_tokens, num_tokens)
        return drafts
