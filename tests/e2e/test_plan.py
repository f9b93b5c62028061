"""A server in `auto`: what a request may ask for itself, and what `slipstream explain` shows."""

import json
import os
import subprocess
import sys
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.server import Server

TRIES = 5
PROMPT = "Again and again: red, green, blue, red, green, blue, red, green, blue, red,"


def generate(server: Server, **wish: Any) -> tuple[str, int, int]:
    """(the text, steps with drafts, draft tokens in them)."""
    client = openai.OpenAI(api_key="EMPTY", base_url=f"{server.url}/v1")
    model = client.models.list().data[0].id
    before = counted(server)
    answer = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=40, temperature=0, extra_body={"vllm_xargs": wish}
    )
    drafts, tokens = (int(after - earlier) for after, earlier in zip(counted(server), before, strict=True))
    return answer.choices[0].text, drafts, tokens


def counted(server: Server) -> tuple[float, float]:
    values = {
        sample.name.removeprefix("vllm:spec_decode_num_"): sample.value
        for family in text_string_to_metric_families(server.get("/metrics"))
        for sample in family.samples
    }
    return values["drafts_total"], values["draft_tokens_total"]


def explain(server: Server, *options: str) -> str:
    environ = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "slipstream", "explain", "--url", server.url, *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout


def test_a_request_says_for_itself_how_much(auto_server: Server) -> None:
    text, drafts, tokens = generate(auto_server, speculate="off")
    assert (drafts, tokens) == (0, 0)
    for _ in range(TRIES):  # the planner goes by what steps take, and a machine may hang just then
        planned_text, drafts, tokens = generate(auto_server)
        assert planned_text == text
        if drafts:
            break
    assert drafts > 0
    pinned_text, drafts, tokens = generate(auto_server, speculate=2)
    assert pinned_text == text
    assert 1.5 * drafts < tokens <= 2 * drafts


def test_an_unknown_wish_is_refused_with_what_to_write(auto_server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="write off, auto or a number of draft tokens"):
        generate(auto_server, speculate="maybe")


def test_explain(auto_server: Server) -> None:
    for _ in range(TRIES):
        generate(auto_server)
        report = json.loads(explain(auto_server, "--json"))
        planner = report["planner"]
        if not planner["paused"] and any(plan["verified"] for plan in planner["plans"]):
            break
    assert sum(report["draft_tokens"].values()) >= sum(report["accepted_tokens"].values()) > 0
    assert 0 < report["acceptance"]["ngram"][0] <= 1
    assert planner["steps"] > 20
    assert planner["step_seconds"][0][0] == 0
    seconds = [s for _, s in planner["step_seconds"]]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    verified = [plan for plan in planner["plans"] if plan["verified"]]
    assert verified
    assert all(plan["verified"] <= plan["offered"] for plan in verified)
    assert not planner["paused"]

    shown = explain(auto_server)
    assert "speculating" in shown
    assert "ngram" in shown
    assert "by draft tokens verified in it" in shown
    assert "most tokens/s" in shown


def test_explain_says_where_it_looked() -> None:
    command = [sys.executable, "-m", "slipstream", "explain", "--url", "http://127.0.0.1:9"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "is the server running?" in " ".join(ended.stderr.split())
