"""What Slipstream adds to the server: GET /slipstream/plan, which `slipstream explain` shows (numbers only,
nothing of anybody's text); and the canary, if it was asked for."""

import os
from typing import Any

from fastapi import FastAPI, HTTPException
from starlette.requests import Request

from slipstream.engine.settings import SHADOW_VARIABLE
from slipstream.engine.shadow import Shadow
from slipstream.ops.explain import PATH


class PlanEndpoint:
    """As vLLM wants its endpoint plugins."""

    name = "slipstream"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        @app.get(PATH)
        async def plan(request: Request) -> dict[str, Any]:
            engine = request.app.state.slipstream_engine
            try:
                report: dict[str, Any] = await engine.engine_core.call_utility_async("drafting_report")
            except Exception as error:
                raise HTTPException(404, "this engine does not draft with Slipstream's proposers") from error
            return report

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        state.slipstream_engine = engine_client
        if share := float(os.environ.get(SHADOW_VARIABLE, 0)):
            engine_client.generate = Shadow(engine_client, share).generate
