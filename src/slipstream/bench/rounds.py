"""Running a plan: arms take turns, and each round is written when all arms have done it."""

import json
import time
import urllib.error
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from slipstream.bench.analysis import speedup
from slipstream.bench.output_comparison import TextComparison
from slipstream.bench.plan import BenchmarkPlan, Cell
from slipstream.engine.load_generator import Request, Traffic, run_concurrently, send
from slipstream.errors import ConfigError
from slipstream.fingerprint import fingerprint
from slipstream.ops.host import installed_vllm
from slipstream.reporting.run_metadata import about_this_run
from slipstream.serving.arms import Arm
from slipstream.serving.servers import Server, ServerError, running
from slipstream.serving.steps import StepTotals, step_times
from slipstream.serving.time_slicing import ActiveClock, RoundRobin, stopped

WARM_UP = -1  # as the number of a round
WARM_UP_TOKENS = 16
STEPS_A_TURN = 8
"""Of the slowest arm, at least: a planner learns nothing from a step in which its process was stopped."""
MOST_ROUNDS = 3  # times the planned rounds, for a cell whose interval stays wide

COUNTERS = ("num_drafts", "draft_tokens", "accepted_tokens")  # the server's own, from its metrics endpoint

Round = dict[str, Any]


class Records:
    """A run's folder: `run.json` says what and with what, `rounds.jsonl` has a line per finished round, so
    that a killed run loses at most one."""

    def __init__(self, folder: Path, plan: BenchmarkPlan) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.rounds: dict[tuple[str, str], list[Round]] = defaultdict(list)
        self._plan = plan.fingerprint
        self._file = folder / "rounds.jsonl"
        text = self._file.read_text() if self._file.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # the last line was cut short by a kill
            self._file.write_text(whole)
        requests = {workload.name: workload.fingerprint for workload in plan.workloads}
        for line in whole.splitlines():
            record = json.loads(line)
            same = requests.get(record["workload"], record["requests"]) == record["requests"]
            if record["plan"] != self._plan or not same:
                raise ConfigError(
                    f"{folder} holds a run with another model, other arms or other settings; "
                    "give the same again to resume it, or another --out"
                )
            self.rounds[record["workload"], record["load"]].append(record)
        description = folder / "run.json"
        sessions = json.loads(description.read_text())["sessions"] if description.exists() else []
        self.description = {"plan": plan.as_dict(), "sessions": [*sessions, about_this_run()]}
        description.write_text(json.dumps(self.description, indent=2) + "\n")

    @property
    def num_rounds(self) -> int:
        return sum(len(rounds) for rounds in self.rounds.values())

    def add(self, record: Round) -> None:
        record["plan"] = self._plan
        self.rounds[record["workload"], record["load"]].append(record)
        with self._file.open("a") as file:
            file.write(json.dumps(record) + "\n")


class Watcher:
    """Is told what a run does; the command line draws it."""

    def doing(self, what: str) -> None: ...

    def finished(self, rounds: int, of: int) -> None: ...


def run(plan: BenchmarkPlan, records: Records, watcher: Watcher, precision: float, budget: float) -> None:
    """Measure what is not yet measured, then again what is too uncertain while `budget` seconds last."""
    deadline = time.monotonic() + budget
    planned = plan.rounds * len(plan.cells)
    missing = [cell for cell in plan.cells if len(records.rounds[cell.key]) < plan.rounds]
    if not missing and not _widest(plan, records, precision):
        return
    with running(plan.model, plan.arms, plan.flags, records.folder / "servers", watcher.doing) as servers:
        bench = Bench(plan, servers)
        for cell in missing:
            while (number := len(records.rounds[cell.key])) < plan.rounds:
                watcher.doing(f"{cell.workload.name}, {cell.load.name}, round {number + 1}")
                records.add(bench.round(cell, number))
                watcher.finished(records.num_rounds, planned)
        while time.monotonic() < deadline and (wide := _widest(plan, records, precision)):
            watcher.doing(f"{wide.workload.name}, {wide.load.name}: again, its interval is wide")
            records.add(bench.round(wide, len(records.rounds[wide.key])))


def _widest(plan: BenchmarkPlan, records: Records, precision: float) -> Cell | None:
    """Return the cell with the widest interval of a speedup, if it is wider than asked for."""
    widths: dict[tuple[str, str], float] = {}
    for cell in plan.cells:
        rounds = records.rounds[cell.key]
        if len(rounds) < MOST_ROUNDS * plan.rounds:
            widths[cell.key] = max(
                (speedup(rounds, plan.arms[0].name, arm.name).half_width for arm in plan.arms[1:]),
                default=0.0,
            )
    wide = [cell for cell in plan.cells if widths.get(cell.key, 0.0) > precision]
    return max(wide, key=lambda cell: widths[cell.key], default=None)


class Bench:
    def __init__(self, plan: BenchmarkPlan, servers: Mapping[str, Server]) -> None:
        self._plan = plan
        self._servers = servers
        self._texts = TextComparison(servers[plan.arms[0].name], plan.model)
        self._turns: dict[tuple[str, str], float] = {}
        """Seconds of a turn, at least, for the cells that are warm."""
        self._form = request_form(servers[plan.arms[0].name], plan.model)

    def round(self, cell: Cell, number: int) -> Round:
        count = cell.load.requests_per_round(self._plan.requests_per_round, self._plan.waves)
        requests = [self._form(request) for request in cell.workload.take(number * count, count)]
        if cell.key not in self._turns:
            short = [replace(r, max_tokens=WARM_UP_TOKENS) for r in requests]
            _, clocks = self._send(cell, short, self._plan.arms, WARM_UP)
            self._turns[cell.key] = STEPS_A_TURN * self._longest_step(clocks)
        for server in self._servers.values():
            server.steps.new()  # what was asked in between is not part of any round
        order = self._plan.order(number)
        raw, clocks = self._send(cell, requests, order, number)
        names = [arm.name for arm in self._plan.arms]
        record: Round = {
            "workload": cell.workload.name,
            "requests": cell.workload.fingerprint,
            "load": cell.load.name,
            "round": number,
            "order": [arm.name for arm in order],
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "arms": {name: self._measured(name, raw[name], clocks[name]) for name in names},
        }
        if self._plan.temperature == 0:
            texts = {
                name: [None if error else text for text, error in zip(
                    raw[name]["generated_texts"], raw[name]["errors"], strict=True
                )]
                for name in names
            }  # fmt: skip
            record["texts"] = self._texts.compare(requests, texts)
        return record

    def _send(
        self, cell: Cell, requests: list[Request], order: Sequence[Arm], number: int
    ) -> tuple[dict[str, dict[str, Any]], dict[str, ActiveClock]]:
        traffic = {arm.name: self._traffic(arm, cell, requests, number) for arm in order}
        closed_loop, turn = cell.load.concurrency is not None, self._turns.get(cell.key, 0.0)
        return send_in_turns(traffic, self._servers, closed_loop, turn)

    def _longest_step(self, clocks: Mapping[str, ActiveClock]) -> float:
        """Return the seconds of a step lately, of the arm where it takes longest."""
        steps = {name: step_times(server.steps.new(), clocks[name]) for name, server in self._servers.items()}
        return max((median(step.wall for step in times) for times in steps.values() if times), default=0.0)

    def _traffic(self, arm: Arm, cell: Cell, requests: list[Request], number: int) -> Traffic:
        return Traffic(
            self._servers[arm.name].url,
            self._plan.model,
            requests,
            concurrency=cell.load.concurrency,
            rate=cell.load.rate,
            seed=number - WARM_UP,
            body={"temperature": self._plan.temperature, "seed": number - WARM_UP},
            salt=_salt(cell, number),
            ignore_eos=self._plan.ignore_eos,
        )

    def _measured(self, arm: str, result: dict[str, Any], own: ActiveClock) -> dict[str, Any]:
        """Return what is kept of a round. Times are the arm's own: without those in which it was stopped."""
        server = self._servers[arm]
        server.require_answers(result["errors"])
        starts, ttfts, latencies = result["start_times"], result["ttfts"], result["latencies"]
        # With asynchronous scheduling a last step of the round before, which wrote nothing, ends in this one.
        steps = [step for step in server.steps.new() if step.begun >= min(starts)]
        return {
            "seconds": own.between(min(starts), min(starts) + result["duration"]),
            "tokens": result["total_output_tokens"],
            "failed": result["failed"],
            "prompt_tokens": result["input_lens"],
            "output_tokens": result["output_lens"],
            "ttft": [own.between(s, s + t) for s, t in zip(starts, ttfts, strict=True)],
            "latency": [own.between(s, s + t) for s, t in zip(starts, latencies, strict=True)],
            "joined": joined(starts, ttfts, latencies),
            "counters": {name: result.get(f"spec_decode_{name}", 0) for name in COUNTERS},
            "steps": StepTotals.of(steps, own).as_dict() if steps else None,
        }


def send_in_turns(
    traffic: Mapping[str, Traffic],
    servers: Mapping[str, Server],
    closed_loop: bool = True,
    turn: float = 0.0,
) -> tuple[dict[str, dict[str, Any]], dict[str, ActiveClock]]:
    """Return the answers and the clock of every server. In a closed loop they take turns many times; an open
    loop has its arrivals in real time, so there one goes after the other. So they do on a GPU, which a
    process that is stopped leaves at work. A `turn` has at least so many seconds."""
    own_time = dict.fromkeys(traffic, ActiveClock())
    if installed_vllm()[1] != "cpu":
        return {name: send(one) for name, one in traffic.items()}, own_time
    groups = {name: servers[name].group for name in traffic}
    if closed_loop:
        with RoundRobin(groups, turn) as turns:
            raw = run_concurrently(traffic, turns.finished)
        return raw, {name: turns.own_time(name) for name in traffic}
    raw = {}
    for name, one in traffic.items():
        with stopped(group for other, group in groups.items() if other != name):
            raw[name] = send(one)
    return raw, own_time


def joined(starts: Sequence[float], ttfts: Sequence[float], latencies: Sequence[float]) -> list[bool]:
    """Return of each request whether others were being written when it came."""
    written = [(s + first, s + last) for s, first, last in zip(starts, ttfts, latencies, strict=True)]
    return [any(begun <= start < ended for begun, ended in written) for start in starts]


def _salt(cell: Cell, number: int) -> str:
    """Return a salt that keeps the prefix cache from answering for prompts that come round again.
    Hexadecimal, since vLLM refuses a salt with a slash in it."""
    return fingerprint([*cell.key, number])


def request_form(server: Server, model: str) -> Callable[[Request], Request]:
    """Return how requests have to be put: as they are, or as completions for a model without a chat
    template."""
    try:
        server.post("/v1/chat/completions", {
            "model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]
        })  # fmt: skip
    except urllib.error.HTTPError as error:
        if error.code != 400:
            raise ServerError(f"arm {server.arm.name} answers {error.code} {error.reason}") from None
        return _as_completion
    return lambda request: request


def _as_completion(request: Request) -> Request:
    if request.messages is None:
        return request
    text = "\n\n".join(str(message["content"]) for message in request.messages)
    return replace(request, messages=None, prompt=text)
