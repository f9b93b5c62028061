"""On the V2 model runner: a draft model that runs no pass that nobody has planned.

vLLM 0.32's speculator for draft models takes the step's K and does not look at it: it always runs all its
passes, and the runner throws away what is over. (Its EAGLE speculator does look.) The first pass stays even
with K = 0: in it the drafter reads what the target has written. It goes only where the drafter is left out.
"""

from typing import Any

import torch


def can_be_left_out(speculator: Any) -> None:
    """Let a step end without this speculator of vLLM's; what it has not read then, it never will."""

    def propose_unless_left_out(input_batch: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if speculator.is_left_out:
            drafts: torch.Tensor = speculator.draft_tokens[: input_batch.num_reqs]
            return drafts
        return propose(input_batch, *args, **kwargs)

    propose = speculator.propose
    speculator.is_left_out = False
    speculator.propose = propose_unless_left_out


def limit_draft_passes(runner: Any) -> None:
    from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

    class LimitedSpeculator(StandaloneARSpeculator):
        def propose(
            self, input_batch: Any, *args: Any, num_speculative_tokens: int | None = None, **kwargs: Any
        ) -> torch.Tensor:
            most: int = self.num_speculative_steps  # type: ignore[has-type]
            if num_speculative_tokens is not None:
                self.num_speculative_steps = max(1, min(num_speculative_tokens, most))
            try:
                super().propose(input_batch, *args, **kwargs)
            finally:
                self.num_speculative_steps = most
            drafts: torch.Tensor = self.draft_tokens[: input_batch.num_reqs]
            return drafts

    speculator = getattr(runner, "speculator", None)
    if type(speculator) is StandaloneARSpeculator:
        speculator.__class__ = LimitedSpeculator
