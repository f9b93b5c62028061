"""What Slipstream adds to the server: GET /v1/slipstream/plan, which `slipstream explain` shows (numbers,
nothing of anybody's text); and the canary, if it was asked for.

Under /v1, because vLLM's API key guards what is there and nothing else.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, HTTPException
from starlette.requests import Request

from slipstream.engine.server.metrics import Exporter, export_for_ever
from slipstream.engine.server.shadow import Shadow
from slipstream.engine.settings import KEY, SHADOW_VARIABLE, read_share
from slipstream.ops.explain import PATH

logger = logging.getLogger("vllm.slipstream")

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
        try:
            self._watch(engine_client, state)
        except Exception:
            logger.exception("no metrics of drafting, and nothing is written again to be compared")

    def _watch(self, engine_client: Any, state: Any) -> None:
        """Export what the engines count, in one of the API servers; and start the canary."""
        config = engine_client.vllm_config
        if KEY in (config.additional_config or {}) and engine_client.engine_core.client_index == 0:
            exporter = Exporter(config.model_config.served_model_name)
            state.slipstream_exporter = asyncio.create_task(export_for_ever(engine_client, exporter))
        if share := read_share(SHADOW_VARIABLE, os.environ.get(SHADOW_VARIABLE, "")):
            engine_client.generate = Shadow(engine_client, share).generate
