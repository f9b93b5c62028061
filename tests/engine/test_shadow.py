"""The canary, on a made-up engine: whose prefix cache it uses, and that it survives what goes wrong."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.engine.core.request_options import KEY
from slipstream.engine.server import shadow as shadowing


class Engine:
    """Writes three tokens; fails in the replays that are named."""

    def __init__(self, failing: tuple[int, ...] = ()) -> None:
        self.replays: list[Any] = []
        self._failing = failing

    async def generate(
        self, prompt: Any, sampling: Any, request_id: str, **further: Any
    ) -> AsyncIterator[Any]:
        if (sampling.extra_args or {}).get(KEY) == "off":
            self.replays.append(prompt)
            if len(self.replays) in self._failing:
                raise RuntimeError("planted")
        logprobs = [{7: SimpleNamespace(logprob=-0.1), 8: SimpleNamespace(logprob=-2.0)}] * 3
        answer = SimpleNamespace(token_ids=[7, 7, 7], finish_reason="length", logprobs=logprobs)
        yield SimpleNamespace(outputs=[answer], finished=True, prompt_token_ids=[1, 2, 3])


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Prometheus' registry, which knows each counter once, and without waiting."""
    counter = lambda *args, **kwargs: SimpleNamespace(inc=lambda: None, observe=lambda gap: None)  # noqa: E731
    monkeypatch.setattr(shadowing, "Counter", counter)
    monkeypatch.setattr(shadowing, "Histogram", counter)
    monkeypatch.setattr(shadowing, "IDLE_SECONDS", 0.001)


def replayed(engine: Engine, prompts: list[Any], count: int) -> list[Any]:
    async def run() -> None:
        from vllm import SamplingParams

        shadow = shadowing.Shadow(engine, 1.0)
        for number, prompt in enumerate(prompts):
            async for _ in shadow.generate(prompt, SamplingParams(temperature=0), f"{number}"):
                pass
        async with asyncio.timeout(60):
            while len(engine.replays) < count:
                await asyncio.sleep(0.001)

    asyncio.run(run())
    return engine.replays


def test_a_salted_request_stays_in_its_part_of_the_prefix_cache(watched: None) -> None:
    prompts = [{"prompt_token_ids": [1, 2, 3], "cache_salt": "tenant"}, {"prompt_token_ids": [1, 2, 3]}]
    assert replayed(Engine(), prompts, 2) == prompts


def test_it_goes_on_after_a_failure(watched: None, caplog: pytest.LogCaptureFixture) -> None:
    prompts = [{"prompt_token_ids": [1, 2, 3]}] * 4
    assert len(replayed(Engine(failing=(1, 2)), prompts, 4)) == 4
    assert sum("could not be written again" in record.message for record in caplog.records) == 1
