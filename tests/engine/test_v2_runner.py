"""Planning a step ahead: on vLLM's V2 model runner, and with asynchronous scheduling on V1 and V2.

V2 needs Triton, whose kernels are compiled for the CPU (`slipstream.testing.v2`).
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.runs import run_program
from slipstream.testing import models
from slipstream.testing import v2 as v2_on_cpu

HERE = Path(__file__).parent
K = 3
BY_STEP = [[3], [0], [1], [2]]
BY_REQUEST = [[3, 0, 1, 2], [0, 2, 3, 1]]
NOTHING = [[0]]


@dataclass(frozen=True)
class Run:
    texts: list[list[int]]
    counted: dict[str, int]
    steps: list[dict[str, dict[str, int]]]
    """For each step, by the request's number: draft tokens verified, tokens written."""
    passes: list[int]
    """For each step, of the drafter, where they were counted."""

    @property
    def verified(self) -> int:
        return sum(request["verified"] for step in self.steps for request in step.values())


class Arms:
    """Arms on one runner; they are run together, in one process, as soon as one is wanted."""

    def __init__(self, folder: Path, v2: bool, arms: Mapping[str, dict[str, Any]]) -> None:
        self._folder = folder
        self._v2 = v2
        self._arms = arms
        self._runs: dict[str, Run] | None = None

    def __getitem__(self, name: str) -> Run:
        if self._runs is None:
            self._runs = self._run()
        return self._runs[name]

    def _run(self) -> dict[str, Run]:
        arms = {name: dict(arm) for name, arm in self._arms.items()}
        for name, arm in arms.items():
            if "scheduler_cls" in arm:
                script = {"record": str(self._folder / name)} | arm.pop("script", {})
                arm["additional_config"] = {"planned": script}
        environment = {
            **os.environ,
            "VLLM_USE_V2_MODEL_RUNNER": "0",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }
        if self._v2:
            environment = v2_on_cpu.environment(environment)
        results = run_program(HERE / "v2" / "run.py", environment, json.dumps(arms))
        runs = {}
        for name, result in results.items():
            assert result["v2"] == self._v2
            assert result["async"] == arms[name]["async_scheduling"]
            record = self._folder / name
            steps, passes = _lines(record), _lines(record.with_suffix(".passes"))
            runs[name] = Run(result["texts"], result["counted"], steps, passes)
        return runs


def _lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _arm(drafter: dict[str, Any], plan: Any, asynchronous: bool = False) -> dict[str, Any]:
    scheduler = "AsyncScheduler" if asynchronous else "Scheduler"
    return {
        **_bare(),
        "async_scheduling": asynchronous,
        "speculative_config": {**drafter, "num_speculative_tokens": K},
        "scheduler_cls": f"engine.v2.planned.{scheduler}",
        "worker_cls": "slipstream.engine.worker.worker.CPUWorker",
        "script": {"plan": plan} if plan else {},
    }


def _bare(**more: Any) -> dict[str, Any]:
    return {"model": str(models.varied_llama()), "async_scheduling": False, **more}


def _draft_model(folder: Path) -> dict[str, Any]:
    return {"method": "draft_model", "model": str(folder)}


@pytest.fixture(scope="module")
def v2(tmp_path_factory: pytest.TempPathFactory) -> Arms:
    same, noisy = _draft_model(models.varied_llama()), _draft_model(models.noisy_llama())
    eagle = {"method": "eagle", "model": str(models.eagle_head(models.varied_llama()))}
    counting = {"worker_cls": "engine.v2.planned.CountingWorker"}
    arms = {
        "bare": _bare(),
        "fixed": _bare(speculative_config={**same, "num_speculative_tokens": K}),
        "vllm's worker": _arm(same, BY_STEP) | {"worker_cls": "engine.v2.planned.CountingVllmWorker"},
        "by step": _arm(same, BY_STEP) | counting,
        "by request": _arm(same, BY_REQUEST),
        "nothing": _arm(same, NOTHING),
        "noisy": _arm(noisy, BY_REQUEST),
        "eagle": _arm(eagle, BY_STEP) | counting,
        "by step, async": _arm(same, BY_STEP, asynchronous=True),
        "by request, async": _arm(same, BY_REQUEST, asynchronous=True),
        "noisy, async": _arm(noisy, BY_REQUEST, asynchronous=True),
        "eagle, async": _arm(eagle, BY_REQUEST, asynchronous=True),
        "planned": _arm(noisy, None),
        "planned, async": _arm(noisy, None, asynchronous=True),
    }
    return Arms(tmp_path_factory.mktemp("v2"), True, arms)


@pytest.fixture(scope="module")
def v1(tmp_path_factory: pytest.TempPathFactory) -> Arms:
    noisy = _draft_model(models.noisy_llama())
    arms = {
        "bare": _bare(),
        "noisy": _arm(noisy, BY_REQUEST),
        "noisy, async": _arm(noisy, BY_REQUEST, asynchronous=True),
    }
    return Arms(tmp_path_factory.mktemp("v1"), False, arms)


def _assert_followed(run: Run, plan: list[list[int]]) -> None:
    """Every request had verified what was planned in the last step that it was in."""
    due: dict[str, int] = {}
    for step, by_number in zip(run.steps, plan * len(run.steps), strict=False):
        for number, request in step.items():
            assert request["verified"] == due.get(number, 0)
            due[number] = by_number[int(number) % len(by_number)]
    assert run.counted["draft_tokens"] == run.verified
    written = sum(request["written"] - 1 for step in run.steps for request in step.values())
    assert run.counted["accepted_tokens"] == written


def test_a_drafter_of_v2_changes_no_text(v2: Arms) -> None:
    assert v2["fixed"].texts == v2["bare"].texts
    assert v2["fixed"].counted["accepted_tokens"] == v2["fixed"].counted["draft_tokens"] > 0


@pytest.mark.parametrize("mode", ["", ", async"])
@pytest.mark.parametrize(("name", "plan"), [("by step", BY_STEP), ("by request", BY_REQUEST)])
def test_v2_follows_the_plan(v2: Arms, name: str, plan: list[list[int]], mode: str) -> None:
    run = v2[name + mode]
    assert run.texts == v2["bare"].texts
    _assert_followed(run, plan)
    # The drafter is the target itself: all is accepted if it was drafted from the right place.
    assert all(
        request["written"] == request["verified"] + 1 for step in run.steps for request in step.values()
    )


def test_nothing_can_be_planned(v2: Arms) -> None:
    run = v2["nothing"]
    assert run.texts == v2["bare"].texts
    assert run.verified == run.counted["draft_tokens"] == 0


@pytest.mark.parametrize(
    ("name", "plan"),
    [("noisy", BY_REQUEST), ("noisy, async", BY_REQUEST), ("eagle", BY_STEP), ("eagle, async", BY_REQUEST)],
)
def test_v2_follows_the_plan_through_rejections(v2: Arms, name: str, plan: list[list[int]]) -> None:
    run = v2[name]
    assert run.texts == v2["bare"].texts
    _assert_followed(run, plan)
    assert run.counted["accepted_tokens"] < run.counted["draft_tokens"]


def test_a_drafter_runs_no_pass_that_is_not_planned(v2: Arms) -> None:
    """vLLM's draft model always runs K; ours and vLLM's EAGLE what is planned, or one to read the text."""
    assert set(v2["vllm's worker"].passes) == {K}
    for name in ("by step", "eagle"):
        assert v2[name].passes[:8] == [3, 1, 1, 2, 3, 1, 1, 2]
    assert v2["by step"].steps == v2["vllm's worker"].steps


@pytest.mark.parametrize("name", ["noisy", "noisy, async"])
def test_v1_follows_the_plan(v1: Arms, name: str) -> None:
    run = v1[name]
    assert run.texts == v1["bare"].texts
    _assert_followed(run, BY_REQUEST)


def test_the_drafts_are_the_same_everywhere(v1: Arms, v2: Arms) -> None:
    """On both runners, ahead or not, until the first request ends: no draft was made from a wrong place."""
    runs = [arms[name] for arms in (v1, v2) for name in ("noisy", "noisy, async")]
    together = min(sum(len(step) == len(run.texts) for step in run.steps) for run in runs)
    assert together > 5
    assert all(run.steps[:together] == runs[0].steps[:together] for run in runs)
    assert runs[0].counted["accepted_tokens"] > 0


@pytest.mark.parametrize("mode", ["", ", async"])
def test_v2_is_planned(v2: Arms, mode: str) -> None:
    """By the planner: the drafter is right about every other time, so drafts are verified, and not all."""
    run = v2["planned" + mode]
    assert run.texts == v2["bare"].texts
    assert run.counted["draft_tokens"] == run.verified > 0
    assert len({request["verified"] for step in run.steps for request in step.values()}) > 1
