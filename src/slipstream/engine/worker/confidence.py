"""How sure a drafter is of its tokens: the probability that it gives to its likeliest token, pass by pass.

vLLM's proposers take the likeliest token of a pass's logits and return tokens alone. Here the one method that
gives those logits is wrapped, and of each pass one number per request is kept. Of a drafter with a vocabulary
of its own it is the likeliest token of that, which may be one that the target does not have. Where vLLM takes
the maximum without that method (`use_local_argmax_reduction`), nothing is known.
"""

import logging
from typing import Any

import torch

logger = logging.getLogger("vllm.slipstream")  # so that it is shown


class DrafterConfidence:
    """Wraps `compute_logits` of a drafter's model; the logits are passed on as they are."""

    def __init__(self, model: Any) -> None:
        self._compute_logits = model.compute_logits
        self._passes: list[torch.Tensor] = []
        """[requests] each, on the device."""
        self._has_failed = False
        model.compute_logits = self._observe

    def _observe(self, *args: Any, **kwargs: Any) -> Any:
        logits = self._compute_logits(*args, **kwargs)
        if not self._has_failed:
            try:
                # Medusa gives a list, one for each of its heads.
                several = logits if isinstance(logits, list) else [logits]
                self._passes += [top_probability(one) for one in several if one is not None]
            except Exception:  # an error in the middle of a pass would leave other ranks waiting
                self._has_failed = True
                logger.exception("how sure the drafter is cannot be told; it drafts on without that")
        return logits

    def begin(self) -> None:
        """Forget passes that were not asked about, as those of a draft that failed."""
        self._passes.clear()

    def survival(self, tokens: torch.Tensor) -> list[list[float]] | None:
        """Return for draft tokens [requests, K] the probability that each and all before it are right, if the
        drafter is as often right as it is sure; None where its logits were not seen once for each token."""
        passes, self._passes = self._passes, []
        if not passes or len(passes) != tokens.shape[1] or any(len(one) != len(tokens) for one in passes):
            return None
        # Logits that are no numbers tell nothing: then the tokens are not worth verifying.
        sure = torch.stack(passes, dim=1).nan_to_num(0.0).clamp(max=1.0)
        survival: list[list[float]] = sure.cumprod(dim=1).tolist()
        return survival


def top_probability(logits: torch.Tensor) -> torch.Tensor:
    """Return the softmax of the largest of logits [requests, vocabulary], of each request."""
    return logits.softmax(-1, dtype=torch.float32).amax(-1)
