"""`GET /v1/slipstream/plan` behind vLLM's own key, and how often it disturbs the engine."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from fastapi import FastAPI
from fastapi.testclient import TestClient
from vllm.entrypoints.serve.middleware.authenticate import GUARDED_PREFIX, AuthenticationMiddleware

from slipstream.engine.server import endpoint
from slipstream.engine.server.endpoint import PlanEndpoint
from slipstream.ops.explain import PATH

KEY = {"Authorization": "Bearer secret"}


class Engine:
    def __init__(self, report: dict[str, Any] | None) -> None:
        self.report = report
        self.asked = 0

    async def call_utility_async(self, name: str) -> dict[str, Any]:
        assert name == "drafting_report"
        self.asked += 1
        if self.report is None:
            raise AttributeError(name)
        return self.report


def client(engine: Engine) -> TestClient:
    app = FastAPI()
    app.add_middleware(AuthenticationMiddleware, tokens=["secret"])
    plan = PlanEndpoint()
    plan.attach_router(app)
    config = SimpleNamespace(additional_config={})
    asyncio.run(plan.init_state(SimpleNamespace(engine_core=engine, vllm_config=config), app.state, None))
    return TestClient(app)


def test_it_wants_the_servers_key() -> None:
    asked = client(Engine({"steps": 1}))
    assert asked.get(PATH).status_code == 401
    assert asked.get(PATH, headers=KEY).json() == {"steps": 1}


def test_all_that_is_added_wants_the_servers_key() -> None:
    app = FastAPI()
    before = len(app.routes)
    PlanEndpoint().attach_router(app)
    added = [getattr(route, "path", "") for route in app.routes[before:]]
    assert added
    assert all(path.startswith(GUARDED_PREFIX) for path in added)


def test_the_engine_is_asked_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, now = Engine({"steps": 1}), 100.0
    monkeypatch.setattr(endpoint, "time", SimpleNamespace(monotonic=lambda: now))
    asked = client(engine)
    for _ in range(50):
        assert asked.get(PATH, headers=KEY).status_code == 200
    assert engine.asked == 1
    now += 1.0
    asked.get(PATH, headers=KEY)
    assert engine.asked == 2


def test_an_engine_that_knows_of_no_plan() -> None:
    engine = Engine(None)
    asked = client(engine)
    assert [asked.get(PATH, headers=KEY).status_code for _ in range(3)] == [404] * 3
    assert engine.asked == 1
