import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.bench.plan import BenchmarkPlan, Load
from slipstream.bench.rounds import Records
from slipstream.errors import ConfigError
from slipstream.serving.arms import Arm
from slipstream.workloads.loading import Workload, load_workload


def plan(**changes: Any) -> BenchmarkPlan:
    settings: dict[str, Any] = {
        "model": "m", "arms": [Arm("bare"), Arm("a", "fixed:3"), Arm("b", "fixed:5")],
        "workloads": [load_workload("chat", 8, "")], "loads": [Load(concurrency=4)], "rounds": 2,
        "requests_per_round": 1, "waves": 1, "max_tokens": 8, "temperature": 0.0,
        "ignore_eos": False, "flags": [],
    }  # fmt: skip
    return BenchmarkPlan(**{**settings, **changes})


def test_every_arm_is_first_and_last_equally_often() -> None:
    orders = [[arm.name for arm in plan().order(i)] for i in range(6)]
    for place in (0, -1):
        assert sorted(order[place] for order in orders) == ["a", "a", "b", "b", "bare", "bare"]


def test_requests_per_round() -> None:
    assert Load(concurrency=16).requests_per_round(None) == 16
    assert Load(concurrency=16).requests_per_round(1) == 16
    assert Load(concurrency=2).requests_per_round(5) == 5
    assert Load(concurrency=16).requests_per_round(None, waves=3) == 48
    assert Load(rate=0.5).requests_per_round(None) == 5
    assert Load(rate=0.5).requests_per_round(2) == 2
    assert Load(rate=0.5).requests_per_round(7) == 7


def record(number: int) -> dict[str, Any]:
    requests = load_workload("chat", 8, "").fingerprint
    return {"workload": "chat", "requests": requests, "load": "4 at once", "round": number, "arms": {}}


def test_a_run_is_found_again(tmp_path: Path) -> None:
    first = Records(tmp_path, plan())
    first.add(record(0))
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write('{"workload": "chat", "lo')  # killed while writing
    again = Records(tmp_path, plan(rounds=6))
    assert [r["round"] for r in again.rounds["chat", "4 at once"]] == [0]
    again.add(record(1))
    third = Records(tmp_path, plan())
    assert [r["round"] for r in third.rounds["chat", "4 at once"]] == [0, 1]
    assert len(json.loads((tmp_path / "run.json").read_text())["sessions"]) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 9},
        {"arms": [Arm("bare")]},
        {"flags": ["--dtype", "half"]},
        {"workloads": [Workload("chat", load_workload("code", 8, "").requests)]},
    ],
)
def test_other_settings_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    Records(tmp_path, plan()).add(record(0))
    with pytest.raises(ConfigError, match="another --out"):
        Records(tmp_path, plan(**change))
