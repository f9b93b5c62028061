"""Engines that take turns: each in a process of its own, with a clock that stands still while it waits.

On a shared machine the speed of memory changes within seconds, and runs one after the other were seen to
scatter by a quarter. So all arms work on the same, in turns of about a second that end between two steps.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from slipstream.testing import v2

BARE = "bare"
V2 = "@v2"
PAUSED = {"paused": True}
TURN = 1.0  # seconds; a turn ends with the step that goes beyond


def run_in_turns(arms: dict[str, "Arm"], batch: Any) -> dict[str, dict[str, Any]]:
    for arm in arms.values():
        arm.send(batch)
    found: dict[str, dict[str, Any]] = {}
    while len(found) < len(arms):
        for name, arm in arms.items():
            if name not in found:
                answer = arm.take_turn()
                if answer != PAUSED:
                    found[name] = answer
    return found


class Arm:
    """A process with an engine."""

    def __init__(self, name: str, program: str, *arguments: str, trace: Path | None = None) -> None:
        environment = dict(os.environ)
        if name.endswith(V2):
            environment = v2.environment(environment)
        if trace and not name.startswith(BARE):
            trace.mkdir(parents=True, exist_ok=True)
            environment["SLIPSTREAM_TRACE"] = str(trace / f"{name.replace(':', '-')}.jsonl")
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        self._process = subprocess.Popen(
            [sys.executable, program, "--engine", name, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self._answer()

    def send(self, what: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def take_turn(self) -> dict[str, Any]:
        """Let it run until its turn or its batch is over, and return which."""
        self.send("go")
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
