"""A canary for a running server: some of its finished greedy requests are written again without speculation,
while nobody waits, and compared. What they say stays in memory until then, and goes nowhere else."""

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter, Histogram
from vllm.sampling_params import RequestOutputKind, SamplingParams

from slipstream.drafting.base import common_prefix
from slipstream.engine.core.request_options import KEY

WAITING = 64  # requests that are kept; with more, the oldest goes
IDLE_SECONDS = 0.5

logger = logging.getLogger("vllm.slipstream")  # so that it is shown


@dataclass(frozen=True)
class Finished:
    prompt: list[int]
    tokens: list[int]
    sampling: SamplingParams
    lora: Any
    salt: str | None
    """Of the prefix cache, which keeps tenants apart."""


class Shadow:
    """Wraps an engine's `generate` and samples requests for replay."""

    def __init__(self, engine: Any, share: float) -> None:
        self._generate = engine.generate
        self._share = share
        self._random = random.Random()
        self._waiting: deque[Finished] = deque(maxlen=WAITING)
        self._running = 0
        self._number = 0
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self.replayed = Counter("slipstream_shadow_replayed", "Greedy requests written again, unspeculated.")
        self.differing = Counter("slipstream_shadow_differing", "Of these, how many came out differently.")
        self.gap = Histogram(
            "slipstream_shadow_gap",
            "Where they differ: log-probability of the best token less that of the second best.",
            buckets=(1e-3, 1e-2, 0.1, 0.5, 1, 2, 4),
        )

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **further: Any
    ) -> AsyncIterator[Any]:
        """Generate as the engine does, and remember some of the requests."""
        if self._task is None:
            self._task = asyncio.create_task(self._replay_for_ever())
        chosen = self._random.random() < self._share and _can_be_replayed(prompt, sampling_params)
        tokens: list[int] = []
        self._running += 1
        try:
            async for output in self._generate(prompt, sampling_params, request_id, **further):
                if chosen:
                    if sampling_params.output_kind != RequestOutputKind.DELTA:
                        tokens.clear()
                    tokens += output.outputs[0].token_ids
                yield output
                if chosen and output.finished and output.outputs[0].finish_reason in ("stop", "length"):
                    lora = further.get("lora_request")
                    salt = prompt.get("cache_salt")
                    self._waiting.append(
                        Finished(output.prompt_token_ids, tokens, sampling_params, lora, salt)
                    )
        finally:
            self._running -= 1

    async def _replay_for_ever(self) -> None:
        while True:
            await asyncio.sleep(IDLE_SECONDS)
            if self._waiting and not self._running:
                finished = self._waiting.popleft()
                try:
                    if not await self._replay(finished):
                        self._waiting.append(finished)
                except Exception:
                    if not self._failures:
                        logger.exception("a request could not be written again; said once")
                    self._failures += 1

    async def _replay(self, finished: Finished) -> bool:
        """Write the request again and compare. Return False if somebody came, who must not wait for it."""
        self._number += 1
        sampling = finished.sampling.clone()
        sampling.output_kind = RequestOutputKind.DELTA
        sampling.extra_args = {**(sampling.extra_args or {}), KEY: "off"}
        sampling.max_tokens = len(finished.tokens)
        sampling.logprobs = max(sampling.logprobs or 0, 2)
        written: list[int] = []
        likeliest: list[Any] = []
        prompt: dict[str, Any] = {"prompt_token_ids": finished.prompt}
        if finished.salt is not None:
            prompt["cache_salt"] = finished.salt
        answers = self._generate(
            prompt,
            sampling,
            f"shadow-{self._number}",
            lora_request=finished.lora,
        )
        async for output in answers:
            written += output.outputs[0].token_ids
            likeliest += output.outputs[0].logprobs
            if self._running:
                await answers.aclose()
                return False
        self.replayed.inc()
        if written != finished.tokens:
            self._report(common_prefix(written, finished.tokens), likeliest)
        return True

    def _report(self, position: int, likeliest: list[Any]) -> None:
        best = sorted((entry.logprob for entry in likeliest[position].values()), reverse=True)
        gap = best[0] - best[1]
        self.differing.inc()
        self.gap.observe(gap)
        logger.warning(
            "a greedy request came out differently without speculation, from token %d on; the two best "
            "tokens are %.2g apart there. A small gap is rounding; `slipstream verify` tells.", position, gap,
        )  # fmt: skip


def _can_be_replayed(prompt: Any, sampling: SamplingParams) -> bool:
    """Speculated for, greedy, one answer, and nothing in the prompt but tokens."""
    if (sampling.extra_args or {}).get(KEY) == "off":
        return False
    plain = isinstance(prompt, dict) and not (prompt.keys() & {"multi_modal_data", "mm_kwargs"})
    return plain and sampling.temperature == 0 and sampling.n == 1 and not sampling.prompt_logprobs
