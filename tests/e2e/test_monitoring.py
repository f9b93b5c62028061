"""Rules and the dashboard, against a real Prometheus that scrapes a real server."""

import json
import math
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from e2e.server import QUICK, Server, free_port, running_server

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "slipstream.json").read_text())
LOAD_SECONDS = 15
FLAGS = ("--enforce-eager", "--dtype", "float32", "--max-model-len", "256", "--served-model-name", "m")
PROMPTS = ["one two one two one two", "a b c a b c a b", "red green blue red green", "x y x y x y x y"]

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="apt install prometheus")


@contextmanager
def prometheus(folder: Path, server: Server) -> Iterator[str]:
    """Run a Prometheus that scrapes the server every second, with our rules; give its address."""
    port = free_port()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(DEPLOY / "prometheus" / "rules.yml")],
        "scrape_configs": [
            {"job_name": "vllm", "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}]}
        ],
    }
    file = folder / "prometheus.json"
    file.write_text(json.dumps(config))
    process = subprocess.Popen(
        ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}",
         f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def ask(address: str, path: str, **query: str) -> Any:
    url = f"{address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)["data"]


def expressions() -> list[tuple[str, str]]:
    """Return the title and the query of each target of each panel."""
    return [
        (panel["title"], target["expr"].replace("$model", ".*").replace("$__rate_interval", "10s"))
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    ]


def test_rules() -> None:
    folder = DEPLOY / "prometheus"
    for arguments in (["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"]):
        done = subprocess.run(
            ["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_no_panel_is_empty(tiny_llama: str, tmp_path: Path) -> None:
    speculate = '{"suffix": {"share": "all"}, "ngram": {}}'
    flags = (tiny_llama, *FLAGS, "--speculate", speculate)
    with (
        running_server(tmp_path, *flags, environment=QUICK) as server,
        prometheus(tmp_path, server) as address,
    ):
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        end = time.monotonic() + LOAD_SECONDS
        while time.monotonic() < end:
            client.completions.create(model="m", prompt=PROMPTS, max_tokens=48, temperature=0)
        empty = []
        for title, expression in expressions():
            found = ask(address, "query", query=expression)["result"]
            if not any(not math.isnan(float(series["value"][1])) for series in found):
                empty.append((title, expression))
        rules = ask(address, "rules")["groups"]
    assert not empty
    assert all(rule["health"] == "ok" for group in rules for rule in group["rules"])
