"""The live view, of metrics as a server has them."""

import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from rich.console import Console
from typer.testing import CliRunner

from slipstream.cli import app
from slipstream.engine.server.metrics import Exporter
from slipstream.ops import top as top_module
from slipstream.ops.top import Sample, Top

URL = "http://127.0.0.1:8000"
PLAN = {
    "step": 7, "requests": 4, "verified": 5, "prefill": 0, "offered": 9, "expected_tokens": 6.0,
    "seconds": 0.02, "bare_seconds": 0.015, "promise": 1.2, "why": "most tokens/s",
}  # fmt: skip


class Server:
    """Has metrics, which go on between two looks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **planned: Any) -> None:
        self.registry = CollectorRegistry()
        self._exporter = Exporter("m", self.registry)
        labels = ("model_name", "engine")
        self._tokens = Counter("vllm:generation_tokens", "", labels, registry=self.registry).labels("m", "0")
        Gauge("vllm:num_requests_running", "", labels, registry=self.registry).labels("m", "0").set(4)
        self._planned = planned
        self._looks = 0
        monkeypatch.setattr(top_module, "read_metrics", self.read)
        monkeypatch.setattr(top_module, "fetch", lambda url, key: {"planner": {"plans": [PLAN]}})

    def read(self, url: str) -> Sample:
        self._looks += 1
        self._tokens.inc(100)
        counts = {
            "drafts": {"ngram": 10 * self._looks},
            "positions": [("ngram", 1, 10 * self._looks, 8 * self._looks), ("ngram", 2, 10, 2)],
            "budgets": {0: 3, 12: self._looks},
            "step_seconds": 2.0,
            "bare_seconds": 3.0,
            "seconds": {"lookup": 0.02},
            "pauses": 0,
            **self._planned,
        }
        self._exporter.export("0", counts)
        return Sample(generate_latest(self.registry).decode(), float(self._looks))


def test_rates_are_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    Server(monkeypatch, paused=False, speedup=(1.3, 1.2, 1.4))
    top = Top(URL)
    top.look()
    top.look()
    summary = top.summary()
    assert summary["model"] == "m"
    assert summary["tokens_per_second"] == 100
    assert summary["estimated_speedup"] == [1.3, 1.2, 1.4]
    assert summary["draft_tokens_per_second"] == {"ngram": 10}
    assert summary["accepted_tokens_per_second"] == {"ngram": 8}
    assert {bucket: n for bucket, n in summary["steps_by_draft_tokens"].items() if n} == {"16.0": 1}
    assert summary["drafting_share"] == pytest.approx(0.01)


@pytest.mark.parametrize("width", [80, 160])
def test_it_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    Server(monkeypatch, paused=True, speedup=(0.9, 0.8, 0.95))
    top = Top(URL)
    top.look()
    console = Console(width=width, height=24, record=True, highlight=False, no_color=True)
    console.print(top.render(24))
    lines = console.export_text().splitlines()
    assert len(lines) <= 24
    text = "\n".join(lines)
    for said in ("0.90x", "paused", "ngram", "most tokens/s", "tokens/s"):
        assert said in text


def test_a_server_that_does_not_plan_has_no_speedup(monkeypatch: pytest.MonkeyPatch) -> None:
    Server(monkeypatch)
    shown = CliRunner().invoke(app, ["top", "--once", "--interval", "0.2"])
    assert shown.exit_code == 0, shown.output
    assert "speedup not known yet" in shown.output


def test_where_nothing_runs_it_says_where_totals_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for running, said in ((0.0, True), (4.0, False)):
        Server(monkeypatch)
        top = Top(URL)
        top.look()
        summary = {**top.summary(), "running": running, "waiting": 0.0, "tokens_per_second": 0.0}
        assert ("slipstream explain" in top._header(summary).plain) == said


def test_for_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    Server(monkeypatch, speedup=(1.3, 1.2, 1.4))
    shown = CliRunner().invoke(app, ["top", "--json", "--interval", "0.2"])
    assert json.loads(shown.stdout)["estimated_speedup"][0] == 1.3
