"""`slipstream verify` on real servers: one that is sound passes, one with a planted bug does not."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.server import QUICK, Server
from slipstream.serving.arms import Arm
from slipstream.serving.client import Served
from slipstream.serving.servers import running
from slipstream.testing import models
from slipstream.verify.checks import BARE_FLAGS, FORCED, Wanted, Watcher, conversations, verify_servers
from slipstream.verify.distribution import check, plan
from slipstream.verify.greedy import check_greedy

FLAGS = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "1024")
TRIES = 3
"""With fresh draws. A false alarm has a chance of at most `distribution.FALSE_ALARM`, that is 1e-3, and 1e-9
three times in a row."""
REPEATING, LENGTH = "Again and again: " + "red, green, blue, " * 40, 129
"""A text that the free proposers go on with, as many tokens of it as a prefix cache has but for the last."""
HOT = {"temperature": 2.0, "top_k": 10}
"""So that about half of these drafts are rejected, and the token after a rejection may be any of several."""


LOOKUP = '{"mode": "fixed", "num_draft_tokens": 4, "ngram": {}, "suffix": {}}'


def planted(name: str, worker: str, *flags: str) -> Arm:
    """Without a planner, which would first measure what a pass takes."""
    return Arm(name, LOOKUP, QUICK, (*flags, "--worker-cls", f"engine.planted.{worker}"))


@pytest.mark.alone
def test_parted_ranks_are_found(tiny_llama: str, tmp_path: Path) -> None:
    """The tiny Llama repeats itself, so there is something to draft."""
    flags = (*FLAGS[:3], "--tensor-parallel-size", "2")
    arm = planted("parted", "PartedRanksWorker")
    greedy = Wanted(prompts=8, max_tokens=32, cells={}, known_bad=False)
    with running(tiny_llama, [arm], flags, tmp_path, timed=False) as started:
        url = started[arm.name].url
        result = verify_servers(Served(url, "off"), Served(url), greedy, Watcher())
    assert result["greedy"]["drafted"] > 0
    assert result["greedy"]["verdict"] == "differs"


@pytest.fixture(scope="module")
def servers(
    smollm2: str, auto_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Served]]:
    arms = [
        planted("recovery", "WrongRecoveryWorker"),
        planted("stale", "StaleKeysWorker", "--shadow", "1"),
    ]
    with running(smollm2, arms, FLAGS, tmp_path_factory.mktemp("verify"), timed=False) as started:
        others = {name: Served(server.url) for name, server in started.items()}
        yield {"sound": Served(auto_server.url), **others}


def command(folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    run = subprocess.run(
        [sys.executable, "-m", "slipstream", "verify", *arguments, "--out", str(folder)],
        capture_output=True, text=True, env={**os.environ, "COLUMNS": "160"}, timeout=2000,
    )  # fmt: skip
    assert run.returncode in (0, 1, 3), run.stdout + run.stderr
    return run, json.loads((folder / "certificate.json").read_text())


def test_short_form(tmp_path: Path) -> None:
    """A sound server passes all that the short form promises. The model is small, and so is its vocabulary:
    thousands of texts are written in no time."""
    arms = [Arm("bare", environment=QUICK, flags=BARE_FLAGS), Arm("sound", "auto", QUICK)]
    with running(str(models.stuttering_llama()), arms, FLAGS[:3], tmp_path, timed=False) as started:
        urls = ("--url", started["sound"].url, "--bare-url", started["bare"].url)
        for _ in range(TRIES):  # again with fresh draws, if a cell differs by chance
            run, certificate = command(tmp_path, *urls, "--short")
            if all(cell["verdict"] == "same" for cell in certificate["distribution"]):
                break
    assert run.returncode == 0, run.stdout
    assert certificate["verdict"] == "same"
    assert certificate["greedy"]["verdict"] == "equal"
    assert certificate["greedy"]["accepted"] > 100
    assert certificate["logprobs"]["verdict"] == "equal"
    assert certificate["logprobs"]["compared"] > 500
    for cell in certificate["distribution"]:
        assert cell["known_law"]
        assert cell["verdict"] == "same"
        enough = 0.08 * cell["judgement"]["draws"]
        assert cell["accepted_tokens"] > enough
        assert cell["draft_tokens"] - cell["accepted_tokens"] > enough
    assert "finds a TV of" in run.stderr
    assert "<table>" in (tmp_path / "certificate.html").read_text()


def test_wrong_recovered_token_is_found(servers: dict[str, Served]) -> None:
    """By a server against itself without speculation. Its log-probabilities are not those it samples by, so
    two samples are compared."""
    url = servers["recovery"].url
    bare, speculative = Served(url, "off"), Served(url, FORCED)
    greedy, _ = check_greedy(bare, Served(url), conversations(bare, 4), 16)
    assert greedy.verdict == "equal"  # greedy never sees it
    prompt = bare._call("/tokenize", {"model": bare.model, "prompt": REPEATING})["tokens"][:LENGTH]
    (cell,) = plan(bare, [prompt], 240, {"hot": HOT})
    assert not cell.known_law
    assert check(cell, speculative, 0.02).verdict == "differs"


def test_stale_keys_are_found(servers: dict[str, Served], tmp_path: Path) -> None:
    """The same, by the command."""
    little = ("--short", "--prompts", "8", "--max-tokens", "24", "--draws", "0")
    run, certificate = command(tmp_path, "--url", servers["stale"].url, *little)
    assert run.returncode == 1, run.stdout
    assert certificate["greedy"]["verdict"] == "differs"


def test_shadow_counts(servers: dict[str, Served]) -> None:
    """Greedy requests are written again once nobody waits. One in ten of the sound server's is, so it is
    asked again if none was, and then left alone for longer."""
    asked = [{"prompt": p, "max_tokens": 8, "temperature": 0} for p in conversations(servers["sound"], 32)]
    servers["stale"].ask([{**request, "max_tokens": 24} for request in asked[:8]], 8)
    for seconds in (30, 60, 120, 240, 480):
        servers["sound"].ask(asked, 8)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if shadow(servers["sound"], "replayed") and shadow(servers["stale"], "differing"):
                assert shadow(servers["sound"], "differing") == 0
                return
            time.sleep(0.5)
    raise AssertionError("nothing was written again, or the wrong text was not found")


def shadow(served: Served, what: str) -> float:
    with served._open("/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith(f"slipstream_shadow_{what}_total")
    )
