"""Compare engines in turns: each has a process of its own, and a clock that stands still while it waits.

On a shared machine the speed of memory changes within seconds, and runs one after the other were seen to
scatter by a quarter. So all arms are given the same requests at once, and each runs for about a second at a
time; its turn ends between two steps.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.bench.statistics import mean_ratio
from slipstream.reporting.run_metadata import about_this_run

BARE = "bare"
PAUSED = {"paused": True}
TURN = 1.0  # seconds; a turn ends with the step that goes beyond


def run_in_turns(arms: dict[str, "Arm"], batch: Any, first: int) -> dict[str, dict[str, Any]]:
    """Run a batch with all arms, beginning with the arm of this number, and return what each found."""
    for arm in arms.values():
        arm.send(batch)
    first %= len(arms)
    order = [*list(arms)[first:], *list(arms)[:first]]
    found: dict[str, dict[str, Any]] = {}
    while len(found) < len(arms):
        for name in order:
            if name not in found:
                answer = arms[name].take_turn()
                if answer != PAUSED:
                    found[name] = answer
    return found


def schema_of(body: Mapping[str, Any]) -> Any:
    """Return the JSON schema that a request asks for."""
    form = body.get("response_format")
    return None if form is None else form["json_schema"]["schema"]


def interval_of(ratios: Sequence[float]) -> dict[str, float]:
    """Return the mean of ratios, one of each round, with its interval."""
    found = mean_ratio([float(ratio) for ratio in ratios])
    return {"value": round(found.value, 3), "low": round(found.low, 3), "high": round(found.high, 3)}


def save(options: argparse.Namespace, cells: list[dict[str, Any]]) -> None:
    """Write what was found to `--out`, with what was run."""
    shown = {name: str(value) for name, value in vars(options).items() if name != "model"}
    found = {"about": about_this_run(), "options": shown, "cells": cells}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


class Engine:
    """A process with an engine, which is asked by lines of JSON and answers by `ANSWER` and JSON."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        )  # fmt: skip
        self.start = self._answer()
        """What it says when it is ready."""

    def send(self, what: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def ask(self, what: Any) -> dict[str, Any]:
        self.send(what)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            if text.startswith("ANSWER "):
                found: dict[str, Any] = json.loads(text.removeprefix("ANSWER "))
                return found
        raise SystemExit("an engine ended")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


class Arm(Engine):
    """A program of ours that runs one engine in turns with others (`Turns`)."""

    def __init__(self, name: str, program: str, *arguments: str, trace: Path | None = None) -> None:
        environment = dict(os.environ)
        if trace and not name.startswith(BARE):
            trace.mkdir(parents=True, exist_ok=True)
            environment["SLIPSTREAM_TRACE"] = str(trace / f"{name.replace(':', '-')}.jsonl")
        super().__init__([sys.executable, program, "--engine", name, *arguments], environment)

    def take_turn(self) -> dict[str, Any]:
        """Let it run until its turn or its batch is over, and return which."""
        return self.ask("go")


class Turns:
    """The side of an engine: it waits between two steps when its turn is over, and its clock stands still."""

    def __init__(self) -> None:
        self._clock = time.perf_counter
        self._waited = 0.0
        self._begun = 0.0
        time.perf_counter = self.now  # type: ignore[assignment]

    def now(self) -> float:
        return self._clock() - self._waited

    def wait(self) -> None:
        begun = self._clock()
        assert json.loads(sys.stdin.readline()) == "go"
        self._waited += self._clock() - begun
        self._begun = self.now()

    def skip(self, seconds: float) -> None:
        """Let the clock go on: nothing is to be done for so long."""
        self._waited -= seconds
        self._begun += seconds

    def between_steps(self) -> None:
        if self.now() - self._begun > TURN:
            tell(PAUSED)
            self.wait()


def tell(what: dict[str, Any]) -> None:
    sys.stdout.write(f"ANSWER {json.dumps(what)}\n")
    sys.stdout.flush()


def greedy(limit: int, schema: Any) -> Any:
    """Return sampling parameters; to be called in an engine's process."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    wanted = None if schema is None else StructuredOutputsParams(json=schema)
    return SamplingParams(temperature=0, max_tokens=limit, structured_outputs=wanted)
