"""Proposers that measure: their drafts are always wrong, so a step's cost can be seen without its gain.

Given to vLLM as `custom_class`. The tokens are pseudo-random with a fixed seed, alike on every rank; the
chance that the target agrees with one is about 1 in the size of the vocabulary.
"""

from typing import Any

import numpy as np


class WrongDrafts:
    """K wrong draft tokens for every request at every step."""

    def __init__(self, vllm_config: Any) -> None:
        self.most = vllm_config.speculative_config.num_speculative_tokens
        self.vocabulary = vllm_config.model_config.get_vocab_size()
        self.random = np.random.default_rng(0)

    def load_model(self, model: Any) -> None:
        pass

    def num_draft_tokens(self) -> int:
        return int(self.most)

    def propose(self, sampled_token_ids: list[list[int]], *args: Any, **kwargs: Any) -> list[list[int]]:
        shape = len(sampled_token_ids), self.num_draft_tokens()
        drafts = self.random.integers(self.vocabulary, size=shape).tolist()
        return [draft if sampled else [] for draft, sampled in zip(drafts, sampled_token_ids, strict=True)]


class WrongDraftsInTurn(WrongDrafts):
    """0, 1, ... K wrong draft tokens in turn, so that one server shows the cost of every K, interleaved
    step by step."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self.turn = -1

    def num_draft_tokens(self) -> int:
        self.turn = (self.turn + 1) % (self.most + 1)
        return self.turn
