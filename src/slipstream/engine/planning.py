"""What the schedulers that plan have in common, whether a step at a time or a step ahead."""

import logging
from typing import Any

from slipstream.planning.step_cost import Step

logger = logging.getLogger("slipstream")

SURVIVAL_PER_TOKEN = 0.7  # of a drafter, before anything has been seen


def stated_survival(most: int) -> list[float]:
    """What is believed of a drafter's tokens before anything has been seen."""
    return [SURVIVAL_PER_TOKEN ** (j + 1) for j in range(most)]


class Plans:
    """Mixed into a scheduler of vLLM's, before its own class."""

    _failures = 0

    def _described(self, output: Any) -> Step:
        """The step that was scheduled."""
        requests = len(output.num_scheduled_tokens)
        drafts = sum(map(len, output.scheduled_spec_decode_tokens.values()))
        prefill = output.total_num_scheduled_tokens - requests - drafts
        return Step(requests, drafts, prefill, self._context())

    def _context(self: Any) -> int:
        """Tokens in the cache, about."""
        return int(self.kv_cache_manager.usage * (self.cache_config.num_gpu_blocks or 0) * self.block_size)

    def _failed(self, what: str, consequence: str) -> None:
        """A fault of our own: counted, logged once, and the requests go on."""
        if not self._failures:
            logger.exception("%s failed; %s", what, consequence)
        self._failures += 1
