"""Finding the speculation that is fastest on this machine for these workloads.

1. Measure what a step costs and what each candidate's drafts are worth, once.
2. Predict every K at every load, and choose.
3. Confirm the best few, and `auto`, against bare vLLM. Prediction stands on counts and on costs that were
   compared step by step, a benchmark has fewer and noisier numbers: it does not choose a K, but what it finds
   slower than bare vLLM is dropped. `auto` has no K to predict; it is chosen where it is measured to be
   clearly faster.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slipstream.bench.analysis import acceptance, ratios
from slipstream.bench.cost_profile import measure_cost, probe_arm
from slipstream.bench.plan import BenchmarkPlan, Load
from slipstream.bench.rounds import Records, Watcher, request_form, run
from slipstream.bench.statistics import Interval, mean_over_cells
from slipstream.checkpoints import open_checkpoint
from slipstream.config import Deployment, SpeculationConfig, choose
from slipstream.engine.launch.arguments import speculative_config
from slipstream.engine.load_generator import Request, Traffic, send
from slipstream.fingerprint import fingerprint
from slipstream.methods import NGRAM
from slipstream.ops.host import look_at_host
from slipstream.planning.cost import CostCurve
from slipstream.planning.prediction import Acceptance, Situation, predicted_speedup
from slipstream.reporting.run_metadata import about_this_run
from slipstream.serving.arms import BARE, Arm
from slipstream.serving.servers import Server, running
from slipstream.serving.steps import StepTotals
from slipstream.serving.time_slicing import ActiveClock
from slipstream.workloads.loading import Workload

AUTO = "auto"
MOST_DRAFTS = 8
ACCEPTANCE_LOAD = 8
CONFIRMED = 2  # configurations that are run against bare vLLM
CONFIRM_ROUNDS = 4
WIDEST = 0.05


@dataclass(frozen=True)
class TuneCandidate:
    """A proposer whose K is to be found."""

    name: str
    options: Mapping[str, Any]
    """Of `SpeculationConfig`, without K."""

    def config(self, most: int, table: Sequence[Sequence[int]] | None = None) -> SpeculationConfig:
        more = {"vllm": {"num_speculative_tokens_per_batch_size": table}} if table else {}
        return SpeculationConfig.build({"mode": "fixed", "num_draft_tokens": most, **self.options, **more})

    def arm(self, name: str, most: int, table: Sequence[Sequence[int]] | None = None) -> Arm:
        return Arm(name, self.config(most, table).model_dump_json(exclude_defaults=True))


@dataclass(frozen=True)
class Option:
    """A configuration that could be chosen: a candidate with K for every load."""

    candidate: TuneCandidate
    tokens: tuple[int, ...]
    predicted: float
    """Geometric mean of the speedup over workloads and loads."""

    @property
    def name(self) -> str:
        if len(set(self.tokens)) == 1:
            return f"{self.candidate.name}-{self.tokens[0]}"
        return f"{self.candidate.name}-" + ".".join(str(k) for k in self.tokens)

    def table(self, loads: Sequence[int]) -> list[list[int]] | None:
        return batch_size_table(loads, self.tokens) if len(set(self.tokens)) > 1 else None

    def arm(self, loads: Sequence[int]) -> Arm:
        return self.candidate.arm(self.name, max(self.tokens), self.table(loads))


def candidates(drafter: str | None, v2: bool) -> list[TuneCandidate]:
    lookup = {"ngram": {"min": 2, "max": 5}}
    found = [TuneCandidate(NGRAM.name, lookup if v2 else {"native": True, **lookup})]
    if drafter is not None:
        found.append(TuneCandidate("drafter", {"drafter": {"model": drafter}}))
    return found


def _untimed_drafting(steps: StepTotals, curve: CostCurve, candidate: TuneCandidate) -> float:
    """Return the seconds that a drafter took where it could not be timed by itself: what the steps took
    longer than with drafts that cost nothing. A lookup is not in their way."""
    if candidate.name == NGRAM.name or not steps.request_steps:
        return 0.0
    requests = steps.request_steps / steps.steps
    drafts = sum(steps.offered) / steps.request_steps
    return max(steps.wall - steps.decode_steps * curve.step(requests, drafts), 0.0)


def batch_size_table(loads: Sequence[int], tokens: Sequence[int]) -> list[list[int]]:
    """Return [first, last batch size, K] for vLLM's `num_speculative_tokens_per_batch_size`. Between two
    loads that were measured the border is halfway on a logarithmic scale; neighbours with the same K are
    one."""
    table: list[list[int]] = []
    first = 1
    for i, (load, k) in enumerate(zip(loads, tokens, strict=True)):
        last = max(int(math.sqrt(load * loads[i + 1])), first) if i + 1 < len(loads) else max(load, first)
        if table and table[-1][2] == k:
            table[-1][1] = last
        else:
            table.append([first, last, k])
        first = last + 1
    return table


@dataclass(frozen=True)
class Measured:
    """What step 1 found."""

    curve: CostCurve
    kept: Mapping[str, Mapping[str, Acceptance]]
    """By candidate and workload, at MOST_DRAFTS."""
    drafting: Mapping[str, float]
    """Seconds of drafting per step, by candidate, at MOST_DRAFTS."""
    situations: Mapping[str, tuple[float, float]]
    """Mean prompt and answer tokens, by workload."""

    def predict(self, candidate: str, workload: str, load: int, k: int) -> float:
        accepted = self.kept[candidate][workload].limited_to(k)
        situation = Situation(load, *self.situations[workload])
        # A lookup takes as long for one token as for many; a model has a pass for each.
        share = 1.0 if candidate == NGRAM.name else k / MOST_DRAFTS
        return predicted_speedup(self.curve, accepted, situation, self.drafting[candidate] * share)

    def predict_all(self, candidate: str, load: int, k: int) -> float:
        """Return the geometric mean over workloads."""
        return math.exp(
            sum(math.log(self.predict(candidate, w, load, k)) for w in self.situations) / len(self.situations)
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "cost_curve": self.curve.as_dict(),
            "acceptance": {
                name: {w: {"offered": a.offered, "survival": a.survival} for w, a in by.items()}
                for name, by in self.kept.items()
            },
            "drafting_seconds": dict(self.drafting),
            "tokens": {w: {"prompt": p, "answer": n} for w, (p, n) in self.situations.items()},
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Measured":
        return cls(
            CostCurve.from_dict(content["cost_curve"]),
            {
                name: {w: Acceptance.from_dict(a) for w, a in by.items()}
                for name, by in content["acceptance"].items()
            },
            content["drafting_seconds"],
            {w: (t["prompt"], t["answer"]) for w, t in content["tokens"].items()},
        )


class Tuning:
    """One tuning in its folder; what is done is kept, and found again by the next call."""

    def __init__(
        self,
        model: str,
        workloads: Sequence[Workload],
        loads: Sequence[int],
        drafter: str | None,
        max_tokens: int,
        flags: Sequence[str],
        folder: Path,
    ) -> None:
        self.model, self.workloads, self.loads = model, workloads, sorted(loads)
        self.max_tokens, self.flags, self.folder = max_tokens, flags, folder
        self._v2 = look_at_host().prefers_v2
        self.candidates = candidates(drafter, self._v2)
        self.auto = SpeculationConfig.build({"drafter": {"model": drafter}} if drafter else {})
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "tune.json"
        settings = [
            model, [w.fingerprint for w in workloads], self.loads, drafter, max_tokens, list(flags)
        ]  # fmt: skip
        self.fingerprint = fingerprint(settings)
        known = json.loads(self._file.read_text()) if self._file.exists() else {}
        self.content: dict[str, Any] = known if known.get("fingerprint") == self.fingerprint else {}
        self.content |= {"fingerprint": self.fingerprint, "about": about_this_run()}
        self.measured = Measured.from_dict(self.content) if "acceptance" in self.content else None

    def tune(self, budget: float, watcher: Watcher) -> None:
        """All three steps, the third until `budget` seconds are over."""
        deadline = time.monotonic() + budget
        if self.measured is None:
            self.measured = self._measure(watcher)
            self.content |= self.measured.as_dict()
            self._save()
        options = self.options()
        self.content["predictions"] = self._predictions()
        self._choose_option(options[0], "predicted, not yet confirmed")
        self._confirm(options, deadline, watcher)

    def _measure(self, watcher: Watcher) -> Measured:
        drafting_arms = [candidate.arm(candidate.name, MOST_DRAFTS) for candidate in self.candidates]
        arms = [Arm(BARE), probe_arm(MOST_DRAFTS, self._v2), *drafting_arms]
        with running(self.model, arms, self.flags, self.folder / "servers", watcher.doing) as servers:
            form = request_form(servers["probe"], self.model)
            requests = {w.name: [form(request) for request in w.requests] for w in self.workloads}
            every = [request for some in requests.values() for request in some]
            curve = measure_cost(
                servers[BARE], servers["probe"], self.model, every, self.loads, MOST_DRAFTS, watcher.doing
            )
            kept: dict[str, dict[str, Acceptance]] = {}
            drafting: dict[str, float] = {}
            situations: dict[str, tuple[float, float]] = {}
            for candidate in self.candidates:
                kept[candidate.name] = {}
                seconds, count = 0.0, 0
                for workload in self.workloads:
                    watcher.doing(f"acceptance of {candidate.name} on {workload.name}")
                    steps, situation = self._accept(servers[candidate.name], requests[workload.name])
                    situations[workload.name] = situation
                    seconds += steps.drafting or _untimed_drafting(steps, curve, candidate)
                    count += steps.decode_steps
                    shares = acceptance(steps) if sum(steps.offered) else {"offered": [], "survival": []}
                    kept[candidate.name][workload.name] = Acceptance.from_dict(shares)
                drafting[candidate.name] = seconds / max(count, 1)
        return Measured(curve, kept, drafting, situations)

    def _accept(self, server: Server, requests: Sequence[Request]) -> tuple[StepTotals, tuple[float, float]]:
        server.steps.new()
        result = send(
            Traffic(
                server.url,
                self.model,
                requests,
                concurrency=ACCEPTANCE_LOAD,
                body={"temperature": 0},
            )
        )
        server.require_answers(result["errors"])
        done = result["completed"]
        tokens = result["total_input_tokens"] / done, result["total_output_tokens"] / done
        return StepTotals.of(server.steps.new(), ActiveClock()), tokens

    def options(self) -> list[Option]:
        """Return the best configurations by prediction, best first: per candidate the best K for every load,
        and the best single K."""
        assert self.measured is not None
        ks = range(MOST_DRAFTS + 1)
        found = []
        for candidate in self.candidates:
            gains = {
                (load, k): self.measured.predict_all(candidate.name, load, k)
                for load in self.loads for k in ks
            }  # fmt: skip
            by_load = tuple(max(ks, key=lambda k: gains[load, k]) for load in self.loads)
            single = [(k,) * len(self.loads) for k in ks]
            # On V2 vLLM's table of K by load says for which steps with lookup drafts there are CUDA graphs.
            composed = self._v2 and candidate.name == NGRAM.name
            for tokens in set(single) if composed else {by_load, *single}:
                logs = [math.log(gains[load, k]) for load, k in zip(self.loads, tokens, strict=True)]
                predicted = math.exp(sum(logs) / len(logs)) if any(tokens) else 1.0  # that is bare vLLM
                found.append(Option(candidate, tokens, predicted))
        # Of equals the simpler: one K for all loads, and fewer draft tokens.
        return sorted(found, key=lambda o: (-round(o.predicted, 3), len(set(o.tokens)), sum(o.tokens)))

    def _predictions(self) -> list[dict[str, Any]]:
        assert self.measured is not None
        return [
            {
                "candidate": candidate.name,
                "workload": workload.name,
                "load": load,
                "speedup": [
                    round(self.measured.predict(candidate.name, workload.name, load, k), 4)
                    for k in range(MOST_DRAFTS + 1)
                ],
            }
            for candidate in self.candidates
            for workload in self.workloads
            for load in self.loads
        ]

    def _confirm(self, options: Sequence[Option], deadline: float, watcher: Watcher) -> None:
        tried = [option for option in options if option.predicted > 1][:CONFIRMED]
        auto = Arm(AUTO, self.auto.model_dump_json(exclude_defaults=True))
        arms = [*(option.arm(self.loads) for option in tried), auto]
        plan = BenchmarkPlan(
            model=self.model,
            arms=[Arm(BARE), *arms],
            workloads=self.workloads,
            loads=[Load(concurrency=load) for load in self.loads],
            rounds=CONFIRM_ROUNDS,
            requests_per_round=None,
            waves=1,
            max_tokens=self.max_tokens,
            temperature=0.0,
            ignore_eos=False,
            flags=self.flags,
        )
        records = Records(self.folder / f"confirm-{self.fingerprint}", plan)
        run(plan, records, watcher, WIDEST, deadline - time.monotonic())
        cells = [records.rounds[cell.key] for cell in plan.cells]
        measured = {
            arm.name: mean_over_cells([ratios(rounds, BARE, arm.name) for rounds in cells]) for arm in arms
        }
        self.content["confirmation"] = {name: interval.as_dict() for name, interval in measured.items()}
        fixed = next((option for option in tried if measured[option.name].value >= 1), None)
        if prefers_auto(measured[AUTO], measured[fixed.name] if fixed else None):
            said = _measured(measured[AUTO], records.num_rounds)
            self._choose(AUTO, self.auto, (), said)
        elif fixed:
            said = _measured(measured[fixed.name], records.num_rounds)
            self._choose_option(fixed, f"predicted {fixed.predicted:.2f}x, {said}")
        else:
            self._choose("off", None, (), "no configuration was measured to be faster than bare vLLM")

    def _choose_option(self, option: Option, reason: str) -> None:
        most = max(option.tokens)
        config = option.candidate.config(most, option.table(self.loads)) if most else None
        self._choose(option.name if config else "off", config, option.tokens, reason, option.predicted)

    def _choose(
        self,
        name: str,
        config: SpeculationConfig | None,
        tokens: Sequence[int],
        reason: str,
        predicted: float | None = None,
    ) -> None:
        self.content["choice"] = {
            "name": name,
            "num_draft_tokens": dict(zip(map(str, self.loads), tokens, strict=False)),
            "reason": reason,
            "predicted": predicted,
        }
        ours = (
            {"mode": config.mode, **config.model_dump(exclude_defaults=True)} if config else {"mode": "off"}
        )
        (self.folder / "speculate.yaml").write_text(
            f"# slipstream tune: {reason}.\n" + yaml.safe_dump(ours, sort_keys=False)
        )
        theirs = None  # plain vLLM has no planner
        if config and config.mode == "fixed":
            target = open_checkpoint(self.model)
            deployment = Deployment.from_flags([self.model, *self.flags])
            assert deployment is not None
            theirs = speculative_config(choose(config, deployment, target))
        (self.folder / "speculative_config.json").write_text(json.dumps(theirs, indent=2) + "\n")
        self._save()

    def _save(self) -> None:
        self._file.write_text(json.dumps(self.content, indent=1) + "\n")


def prefers_auto(auto: Interval, fixed: Interval | None) -> bool:
    """Return whether `auto` is chosen, by its speedup and that of the best fixed K that is as fast as bare
    vLLM."""
    return auto.value >= 1 if fixed is None else auto.low > fixed.value


def _measured(gain: Interval, rounds: int) -> str:
    return f"measured {gain.value:.2f}x ({gain.low:.2f} to {gain.high:.2f}) in {rounds} rounds"
