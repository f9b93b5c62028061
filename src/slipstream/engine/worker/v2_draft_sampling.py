"""On the V2 model runner: a drafter that samples its drafts for some requests, and for others drafts its
likeliest tokens, as the scheduler has chosen."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from vllm.utils.torch_utils import async_tensor_h2d


def choose_sampling(speculator: Any) -> None:
    """Let it be chosen how this speculator of vLLM's drafts. It keeps the logits that it samples from for the
    rejection sampler: with all but the largest left out, the token is the likeliest, and certain."""
    base: Any = type(speculator)

    class ChosenSampling(base):
        rows = np.zeros(speculator.max_num_reqs, bool)
        """Whose drafts are argmax, by the request's row; and the same on the device."""
        argmax_rows = torch.zeros(speculator.max_num_reqs, dtype=torch.bool, device=speculator.device)

        def choose_argmax(self, rows: Sequence[int]) -> None:
            """Draft the likeliest tokens for requests of these rows from now on; sample for the others."""
            chosen = np.zeros_like(self.rows)
            chosen[rows] = True
            if not np.array_equal(chosen, self.rows):
                self.rows = chosen
                async_tensor_h2d(chosen, out=self.argmax_rows)

        def compute_draft_logits(self, hidden_states: torch.Tensor, spec_step_idx: int) -> torch.Tensor:
            # [requests of the step, vocabulary]
            logits: torch.Tensor = super().compute_draft_logits(hidden_states, spec_step_idx)
            is_argmax = self.argmax_rows[self.idx_mapping[: logits.shape[0]]]
            least = logits.amax(-1, keepdim=True).masked_fill(~is_argmax[:, None], float("-inf"))
            return logits.masked_fill(logits < least, float("-inf"))

    speculator.__class__ = ChosenSampling
