"""What Slipstream adds to the server: GET /v1/slipstream/plan, which `slipstream explain` shows (numbers,
nothing of anybody's text); and the canary, if it was asked for.

Under /v1, because vLLM's API key guards what is there and nothing else.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, HTTPException
from starlette.requests import Request

from slipstream.engine.server.metrics import Exporter, export_for_ever
from slipstream.engine.server.shadow import Shadow
from slipstream.engine.settings import SHADOW_VARIABLE
from slipstream.ops.explain import PATH

REPORT_SECONDS = 1.0  # between two reports, which the engine writes between two steps


class Reports:
    """Asks for a report at most once a second, however many want it."""

    def __init__(self, ask: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._ask = ask
        self._asking = asyncio.Lock()
        self._report: dict[str, Any] = {}
        self._asked_at = -REPORT_SECONDS

    async def latest(self) -> dict[str, Any]:
        async with self._asking:
            if time.monotonic() - self._asked_at >= REPORT_SECONDS:
                self._report = await self._ask()
                self._asked_at = time.monotonic()
            return self._report


class PlanEndpoint:
    """As vLLM wants its endpoint plugins."""

    name = "slipstream"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        @app.get(PATH)
        async def plan(request: Request) -> dict[str, Any]:
            reports: Reports = request.app.state.slipstream_reports
            report = await reports.latest()
            if not report:
                raise HTTPException(404, "this engine neither composes nor plans; nothing is to be told")
            return report

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        async def ask() -> dict[str, Any]:
            try:
                report: dict[str, Any] = await engine_client.engine_core.call_utility_async("drafting_report")
            except Exception:  # an engine with another scheduler knows of no such report
                return {}
            return report

        state.slipstream_reports = Reports(ask)
        if engine_client.engine_core.client_index == 0 and await ask():
            exporter = Exporter(engine_client.vllm_config.model_config.served_model_name)
            state.slipstream_exporter = asyncio.create_task(export_for_ever(engine_client, exporter))
        if share := float(os.environ.get(SHADOW_VARIABLE, 0)):
            engine_client.generate = Shadow(engine_client, share).generate
