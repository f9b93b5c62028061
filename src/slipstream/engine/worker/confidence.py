"""How sure a drafter is of its tokens: the probability that it gives to its likeliest token, pass by pass.

vLLM's proposers take the likeliest token of a pass's logits and return tokens alone. Here the one method that
gives those logits is wrapped, and of each pass one number per request is kept.
"""

from typing import Any

import torch


class DrafterConfidence:
    """Wraps `compute_logits` of a drafter's model; the logits are passed on as they are."""

    def __init__(self, model: Any) -> None:
        self._compute_logits = model.compute_logits
        self._passes: list[torch.Tensor] = []
        """[requests] each, on the device."""
        model.compute_logits = self._observe

    def _observe(self, *args: Any, **kwargs: Any) -> Any:
        logits = self._compute_logits(*args, **kwargs)
        # Medusa gives a list, one for each of its heads.
        several = logits if isinstance(logits, list) else [logits]
        self._passes += [top_probability(one) for one in several if one is not None]
        return logits

    def begin(self) -> None:
        """Forget passes that were run for something else, as vLLM's dummy runs are."""
        self._passes.clear()

    def survival(self, tokens: torch.Tensor) -> list[list[float]] | None:
        """Return for draft tokens [requests, K] the probability that each and all before it are right, if the
        drafter is as often right as it is sure; None where its logits were not seen once for each token."""
        passes, self._passes = self._passes, []
        if not passes or len(passes) != tokens.shape[1] or any(len(one) != len(tokens) for one in passes):
            return None
        survival: list[list[float]] = torch.stack(passes, dim=1).cumprod(dim=1).tolist()
        return survival


def top_probability(logits: torch.Tensor) -> torch.Tensor:
    """Return the softmax of the largest of logits [requests, vocabulary], of each request."""
    logits = logits.float()
    return (logits.amax(-1) - logits.logsumexp(-1)).exp().clamp(max=1.0)
