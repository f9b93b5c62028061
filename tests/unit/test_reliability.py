"""`benchmarks/openapi.py`: what Schemathesis found, told apart from what bare vLLM does as well."""

import asyncio
import base64
import importlib.util
import json
import shutil
import subprocess
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "openapi.py"
OURS, BARE = "http://ours", "http://bare"
ERROR = b'{"error": {"message": "no"}}'


@pytest.fixture
def openapi() -> ModuleType:
    spec = importlib.util.spec_from_file_location("openapi", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def encoded(content: bytes) -> dict[str, str]:
    return {"$base64": base64.b64encode(content).decode()}


def interaction(path: str, status: int | None) -> dict[str, Any]:
    """Return one as Schemathesis 4.32 writes it; a request without an answer has no response."""
    headers = {"Content-Type": ["application/json"], "Authorization": ["Bearer a key"]}
    request = {"method": "POST", "uri": OURS + path, "headers": headers, "body": encoded(b"{}")}
    if status is None:
        return {"request": request}
    kind = {"content-type": ["application/json"]}
    return {
        "request": request,
        "response": {"status_code": status, "headers": kind, "content": encoded(ERROR), "elapsed": 0.1},
    }


def events(**sent: tuple[str, int | None]) -> list[dict[str, Any]]:
    """Return a report: a request without an error passes its check."""
    checks = {
        case: [
            {"name": "not_a_server_error", "status": "failure" if status >= 500 else "success"},
            {"name": "response_schema_conformance", "status": "success"},
        ]
        for case, (_, status) in sent.items()
        if status is not None
    }
    recorder = {
        "label": "POST /x",
        "checks": checks,
        "interactions": {case: interaction(*answered) for case, answered in sent.items()},
    }
    return [{"Initialize": {"seed": 0}}, {"ScenarioFinished": {"phase": "fuzzing", "recorder": recorder}}]


def test_what_was_sent(openapi: ModuleType) -> None:
    sent = list(openapi.read_sent(events(a=("/x?y=1", 200), b=("/x", 500), c=("/x", None)), OURS))
    assert [request.failed for request in sent] == [[], ["not_a_server_error"], ["no answer"]]
    assert [request.answer for request in sent] == [
        "200 application/json error", "500 application/json error", "no answer",
    ]  # fmt: skip
    assert sent[0].path == "/x?y=1"
    assert sent[0].body == b"{}"
    assert (b"Authorization", b"Bearer a key") in sent[0].headers


def test_only_what_bare_vllm_answers_in_another_way_is_ours(
    openapi: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer a key"
        if request.url.path == "/dies" and request.url.host == "ours":
            raise httpx.ReadError("closed")
        healthy = request.url.path != "/both" and request.url.host == "bare"
        return httpx.Response(
            400 if healthy else 500, content=ERROR, headers={"content-type": "application/json"}
        )

    client = partial(httpx.AsyncClient, transport=httpx.MockTransport(answer))
    monkeypatch.setattr(openapi, "httpx", SimpleNamespace(**{**vars(httpx), "AsyncClient": client}))
    failed = list(openapi.read_sent(events(a=("/both", 500), b=("/ours", 500), c=("/dies", None)), OURS))
    found = asyncio.run(openapi.fails_only_here(failed, OURS, BARE))
    assert [(each["request"], each["answers"]["ours again"]) for each in found] == [
        ("POST /ours", "500 application/json error"),
        ("POST /dies", "no answer"),
    ]
    assert {each["answers"]["bare vLLM's"] for each in found} == {"400 application/json error"}


def test_open_operations(openapi: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    paths: dict[str, dict[str, Any]] = {
        "/v1/x": {"get": {}},
        "/health": {"get": {}, "post": {}},
        openapi.ALTERING[0]: {"post": {}},
    }

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path not in openapi.ALTERING
        if request.url.path == "/openapi.json":
            return httpx.Response(200, json={"paths": paths})
        return httpx.Response(401 if request.url.path.startswith("/v1") else 200)

    client = partial(httpx.AsyncClient, transport=httpx.MockTransport(answer))
    monkeypatch.setattr(openapi, "httpx", SimpleNamespace(**{**vars(httpx), "AsyncClient": client}))
    assert asyncio.run(openapi.open_operations(OURS)) == ["GET /health", "POST /health"]


class Broken(BaseHTTPRequestHandler):
    """Fails at every POST, and wants a key for both."""

    def do_GET(self) -> None:
        answers: dict[str, Any] = {
            "200": {"description": "", "content": {"application/json": {"schema": {}}}}
        }
        body: dict[str, Any] = {
            "required": True,
            "content": {"application/json": {"schema": {"type": "object"}}},
        }
        paths: dict[str, Any] = {
            "/v1/fine": {"get": {"responses": answers}},
            "/v1/broken": {"post": {"requestBody": body, "responses": answers}},
            "/scale_elastic_ep": {"post": {"responses": answers}},
        }
        self.answer(200, {"openapi": "3.1.0", "info": {"title": "x", "version": "1"}, "paths": paths})

    def do_POST(self) -> None:
        assert self.path == "/v1/broken"
        self.answer(500, {"error": "no"})

    def answer(self, status: int, fields: dict[str, Any]) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.startswith("/v1") and self.headers["Authorization"] != "Bearer a key":
            status, fields = 401, {}
        content = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.mark.skipif(shutil.which("schemathesis") is None, reason="schemathesis is not on the PATH")
def test_the_report_of_schemathesis_is_read(openapi: ModuleType, tmp_path: Path) -> None:
    executable, report = Path(shutil.which("schemathesis") or ""), tmp_path / "report.ndjson"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Broken)
    url = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        command = openapi.command(executable, url, "a key", 5, report)
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert report.exists(), done.stdout + done.stderr
        events = [json.loads(line) for line in report.read_text().splitlines()]
        sent = list(openapi.read_sent(events, url))
        found = asyncio.run(openapi.fails_only_here(sent, url, url))
        open_ones = asyncio.run(openapi.open_operations(url))
    finally:
        server.shutdown()
    assert done.returncode == 1  # failures were found
    assert not openapi.errors_of(events)
    assert {request.operation for request in sent} == {"GET /v1/fine", "POST /v1/broken"}
    assert all(request.failed == ["not_a_server_error"] * (request.method == "POST") for request in sent)
    assert {request.answer for request in sent if request.failed} == {"500 application/json error"}
    assert [event["EngineFinished"]["stop_reason"] for event in events if "EngineFinished" in event] == [
        "completed"
    ]
    assert not found  # asked again, the server answers the same
    assert not open_ones
