"""GET /slipstream/plan: what `slipstream explain` shows. Numbers only, nothing of anybody's text."""

from typing import Any

from fastapi import FastAPI, HTTPException
from starlette.requests import Request

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
