"""The measuring commands with real servers: what is counted, not how long it took."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from e2e.server import QUICK
from slipstream.config import SpeculationConfig

BRIEF = ("--max-tokens", "16", "--budget", "1s", "--dtype", "float32", "--enforce-eager")
RUN = (
    "--workload", "edit", "--arm", "k3=fixed:3", "--concurrency", "1,2", "--rate", "8", "--requests", "8",
    "--rounds", "2",
    *BRIEF,
)  # fmt: skip


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "slipstream", *arguments]


def start(arguments: list[str], log: Path) -> "subprocess.Popen[bytes]":
    environ = {**os.environ, **QUICK, "COLUMNS": "200", "NO_COLOR": "1"}
    with log.open("wb") as file:
        return subprocess.Popen(arguments, stdout=file, stderr=subprocess.STDOUT, env=environ)


def finish(arguments: list[str], log: Path) -> str:
    process = start(arguments, log)
    assert process.wait(2000) == 0, log.read_text()[-3000:]
    return log.read_text()


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


@pytest.fixture(scope="module")
def bench(tiny_llama: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is killed after its first round and then finished by the same command."""
    folder = tmp_path_factory.mktemp("bench")
    run = folder / "run"
    arguments = command("bench", tiny_llama, *RUN, "--out", str(run))
    process = start(arguments, folder / "first.log")
    deadline = time.monotonic() + 900
    while not lines(run / "rounds.jsonl"):
        assert process.poll() is None, (folder / "first.log").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    servers = psutil.Process(process.pid).children(recursive=True)
    assert len(servers) >= 4  # two arms, each with its engine at least
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(servers, timeout=60)
    assert not alive, "a killed benchmark must not leave servers behind"
    before = lines(run / "rounds.jsonl")
    finish(arguments, folder / "second.log")
    assert lines(run / "rounds.jsonl")[: len(before)] == before
    return run


def results(run: Path) -> Any:
    return json.loads((run / "results.json").read_text())


def test_every_round_is_there_once(bench: Path) -> None:
    rounds = [json.loads(line) for line in lines(bench / "rounds.jsonl")]
    assert sorted((r["load"], r["round"]) for r in rounds) == [
        ("1 at once", 0), ("1 at once", 1), ("2 at once", 0), ("2 at once", 1), ("8/s", 0), ("8/s", 1)
    ]  # fmt: skip
    assert rounds[0]["order"] == ["bare", "k3"]
    assert rounds[1]["order"] == ["k3", "bare"]
    assert len(results(bench)["sessions"]) == 2


def test_what_we_count_is_what_the_server_counts(bench: Path) -> None:
    """Draft and accepted tokens from our step records against vLLM's own metrics endpoint."""
    drafted = 0
    for line in lines(bench / "rounds.jsonl"):
        for name, arm in json.loads(line)["arms"].items():
            steps = arm["steps"]
            assert sum(steps["offered"]) == arm["counters"]["draft_tokens"]
            assert sum(steps["accepted"]) == arm["counters"]["accepted_tokens"]
            assert (steps["offered"] or [0])[0] == arm["counters"]["num_drafts"]
            drafted += sum(steps["offered"])
            assert 0 <= steps["drafting"] < steps["target"]
            assert (steps["drafting"] > 0) == (name != "bare")
    assert drafted > 0


def test_steps_and_tokens_add_up(bench: Path) -> None:
    """Every answer's first token comes with its prefill; the others from target passes and drafts."""
    for line in lines(bench / "rounds.jsonl"):
        for arm in json.loads(line)["arms"].values():
            steps = arm["steps"]
            assert arm["failed"] == 0
            # An answer may end in the middle of an accepted run; what came after it was thrown away.
            made = len(arm["output_tokens"]) + steps["request_steps"] + sum(steps["accepted"])
            assert arm["tokens"] <= made <= arm["tokens"] + 3 * len(arm["output_tokens"])


def test_float32_texts_are_equal(bench: Path) -> None:
    cells = [cell for cell in results(bench)["cells"] if cell["arm"] == "k3"]
    assert len(cells) == 3
    for cell in cells:
        assert cell["texts"]["equal"] == cell["texts"]["compared"] > 0


def test_no_text_is_written_down(bench: Path) -> None:
    """Neither prompts nor answers, in any file of the run."""
    said = "Return the whole"  # in every prompt of the workload
    for file in bench.rglob("*"):
        if file.is_file():
            assert said not in file.read_text(errors="replace"), file


def test_a_finished_run_starts_nothing(bench: Path, tiny_llama: str, tmp_path: Path) -> None:
    before = (bench / "rounds.jsonl").read_text()
    arguments = command("bench", tiny_llama, *RUN, "--precision", "1e9", "--out", str(bench))
    text = finish(arguments, tmp_path / "third.log")
    assert "starting bare" not in text
    assert (bench / "rounds.jsonl").read_text() == before
    assert "report.html" in text


def test_other_settings_are_not_mixed_in(bench: Path, tiny_llama: str) -> None:
    process = subprocess.run(
        command("bench", tiny_llama, "--arm", "k4=fixed:4", "--out", str(bench), *BRIEF),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert process.returncode == 2
    assert "holds a run with another model, other arms or other settings" in " ".join(process.stderr.split())


def test_tune(tiny_llama: str, tmp_path: Path) -> None:
    out, few = tmp_path / "tune", tmp_path / "few.jsonl"
    shipped = files("slipstream.workloads") / "prompts" / "edit.jsonl"
    few.write_text("".join(shipped.read_text().splitlines(keepends=True)[:6]))
    options = [*BRIEF, "--workload", str(few), "--concurrency", "2", "--out", str(out)]
    text = finish(command("tune", tiny_llama, *options), tmp_path / "log")
    assert "chosen:" in text
    content = json.loads((out / "tune.json").read_text())
    for row in content["cost_curve"]["seconds"]:
        assert row == sorted(row)
        assert row[0] > 0
    wrong = [json.loads(line) for line in lines(out / "servers" / "probe.steps.jsonl")]
    offered, accepted = (sum(sum(step[key]) for step in wrong) for key in ("offered", "accepted"))
    assert offered > 500
    assert accepted < offered / 100  # the probe's drafts are wrong
    drafts = {len(step["offered"]) for step in wrong if not step["prefilling"]}
    assert drafts == set(range(9))  # every K had its turn
    config = SpeculationConfig.build(yaml.safe_load((out / "speculate.yaml").read_text()))
    assert content["choice"]["name"] == config.mode or config.mode == "fixed"
    assert content["confirmation"]["auto"]["value"] > 0
    theirs = json.loads((out / "speculative_config.json").read_text())
    if config.mode == "fixed":
        assert theirs["num_speculative_tokens"] == config.num_draft_tokens
    else:
        assert theirs is None
