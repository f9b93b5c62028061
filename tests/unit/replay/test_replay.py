"""Traces hold numbers only, and are replayed with the engine's own loop and planner."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from slipstream.cli import app
from slipstream.errors import ConfigError
from slipstream.planning.planner import StepOutcome
from slipstream.planning.step_cost import PassProfile, Step
from slipstream.replay.recorder import TraceRecorder
from slipstream.replay.simulator import learnt_cost, measured, replay
from slipstream.replay.trace import Limits, Trace, read_trace

LIMITS = Limits(max_num_seqs=4, max_num_batched_tokens=64, num_draft_tokens=4)
PROFILE = PassProfile((1, 64), (0.02, 0.02 + 63 * 0.0005))
PROMPT, OUTPUT = 24, 48


def texts(repeating: bool) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [
        (
            [1000 + at % 6 for at in range(PROMPT + OUTPUT)]
            if repeating
            else rng.integers(2000, 40_000, 72).tolist()
        )
        for _ in range(8)
    ]


def recorded(path: Path, repeating: bool) -> Trace:
    """Eight requests at once; steps that take what the profile says."""
    recorder = TraceRecorder(path, LIMITS, {"ngram": {}})
    for number in range(8):
        recorder.start(f"r{number}")
    for requests in range(1, 5):
        for drafts in (0, 4, 8, 16):
            step = Step(requests, drafts, 0, 100)
            for _ in range(5):
                recorder.record(StepOutcome(step, PROFILE(step.tokens), 0.0, requests), PROFILE)
    for number, text in enumerate(texts(repeating)):
        recorder.finish(f"r{number}", text, PROMPT, OUTPUT)
    recorder.write_requests()
    return read_trace(path)


def numbers_in(content: Any) -> Iterator[float]:
    if isinstance(content, dict | list):
        for part in content.values() if isinstance(content, dict) else content:
            yield from numbers_in(part)
    elif isinstance(content, int | float):
        yield content


def test_a_trace_has_no_text(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "trace", repeating=True)
    tokens = {token for text in texts(True) for token in text}
    content = [json.loads(line) for line in (tmp_path / "trace").read_text().splitlines()]
    assert tokens.isdisjoint(numbers_in(content))
    assert [(r.prompt_tokens, r.output_tokens) for r in trace.requests] == [(PROMPT, OUTPUT)] * 8
    assert trace.limits == LIMITS
    assert trace.profile == PROFILE
    assert len(trace.steps) == 80
    for request in trace.requests:
        offers = request.offers["ngram"]
        assert set(offers) == set(range(1, OUTPUT)), "wherever there is something to draft"
        assert all(offered.right == min(4, OUTPUT - place) for place, offered in offers.items())


def test_what_is_wrong_is_no_offer_that_is_right(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "trace", repeating=False)
    assert sum(len(request.offers["ngram"]) for request in trace.requests) == 0
    assert replay(trace, "auto").draft_tokens == 0


def test_the_cost_is_learnt_from_the_steps(tmp_path: Path) -> None:
    cost = learnt_cost(recorded(tmp_path / "trace", repeating=True))
    for step in (Step(1, 0, 0, 100), Step(4, 16, 0, 100)):
        assert cost(step) == pytest.approx(PROFILE(step.tokens), rel=0.02)


def test_policies(tmp_path: Path) -> None:
    """Every draft is right: with four tokens each, a fifth of the steps."""
    trace = recorded(tmp_path / "trace", repeating=True)
    off, fixed, auto = (replay(trace, name) for name in ("off", "fixed:4", "auto"))
    assert off.tokens == fixed.tokens == auto.tokens == 8 * OUTPUT
    assert off.draft_tokens == 0
    assert off.steps > 2 * OUTPUT, "two batches of four"
    assert fixed.steps < off.steps / 3
    assert fixed.accepted_tokens == fixed.draft_tokens > 200
    assert auto.tokens_per_second > 1.5 * off.tokens_per_second
    assert len(off.first_token_seconds) == 8
    assert measured(trace).steps == 80


def test_dear_verifying_is_not_planned(tmp_path: Path) -> None:
    """Offers that are all wrong, where a token costs as much as a step: `fixed` loses, `auto` does not."""
    trace = recorded(tmp_path / "trace", repeating=True)
    poor = [
        replace(
            request,
            offers={"ngram": {place: replace(o, right=0) for place, o in request.offers["ngram"].items()}},
        )
        for request in trace.requests
    ]
    trace = replace(trace, requests=poor * 4)
    fixed, auto, off = (
        replay(trace, name, lambda step: 0.02 * step.tokens) for name in ("fixed:4", "auto", "off")
    )
    assert fixed.accepted_tokens == 0
    assert fixed.tokens_per_second < 0.35 * off.tokens_per_second
    assert auto.tokens_per_second > 0.9 * off.tokens_per_second


def test_the_same_trace_gives_the_same_result(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "trace", repeating=True)
    assert replay(trace, "auto") == replay(trace, "auto")


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("{}\n")
    with pytest.raises(ConfigError, match="no trace of slipstream serve --trace"):
        read_trace(tmp_path / "other")
    with pytest.raises(ConfigError, match="no trace"):
        read_trace(tmp_path / "none")
    trace = recorded(tmp_path / "trace", repeating=True)
    whole = (tmp_path / "trace").read_text()
    (tmp_path / "trace").write_text(whole[:-10])
    assert len(read_trace(tmp_path / "trace").requests) == len(trace.requests) - 1, "cut off by a kill"
    with pytest.raises(ConfigError, match="auto, off or fixed:K"):
        replay(trace, "fixed")


def test_a_closed_loop_is_as_busy_whatever_the_policy(tmp_path: Path) -> None:
    """Two requests at a time, each after another has finished: none comes sooner, and none later."""
    trace = recorded(tmp_path / "trace", repeating=True)
    requests = [
        replace(request, arrived=float(number), finished_before=max(number - 1, 0))
        for number, request in enumerate(trace.requests)
    ]
    trace = replace(trace, requests=requests)
    for policy in ("off", "fixed:4"):
        by_clock, closed = replay(trace, policy), replay(trace, policy, closed_loop=True)
        assert by_clock.tokens == closed.tokens == 8 * OUTPUT
        assert max(closed.first_token_seconds) < 0.1, "nobody waits long"
    assert replay(trace, "fixed:4", closed_loop=True).seconds < replay(trace, "off", closed_loop=True).seconds


def test_a_compressed_trace(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "trace", repeating=True)
    (tmp_path / "trace.gz").write_bytes(gzip.compress((tmp_path / "trace").read_bytes()))
    assert read_trace(tmp_path / "trace.gz") == trace


def test_the_command(tmp_path: Path) -> None:
    recorded(tmp_path / "run.jsonl", repeating=True)
    policies = ("auto", "fixed:4", "off")
    options = [word for policy in policies for word in ("--policy", policy)]
    done = CliRunner().invoke(app, ["replay", str(tmp_path / "run.jsonl"), *options, "--json"])
    assert done.exit_code == 0, done.output
    assert set(json.loads(done.stdout)["replayed"]) == set(policies)
