"""Metrics of drafting on the server's /metrics, beside vLLM's and with its labels.

The engines count (`Scheduler.counts`); one of the API servers asks them every second and adds what is new.
The table in docs/metrics.md is made from the list here (`python -m slipstream.engine.server.metrics`).
"""

import asyncio
import logging
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import prometheus_client
from prometheus_client.registry import Collector

SECONDS = 1.0  # between two questions
MOST_SECONDS = 60.0  # after failures
LABELS = ("model_name", "engine")
BUDGET_BUCKETS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

logger = logging.getLogger("vllm.slipstream")

Counts = Mapping[str, Any]
Samples = Iterable[tuple[tuple[str, ...], float]]
"""Values by the values of labels."""


class Metric(NamedTuple):
    name: str
    kind: str
    """Counter, Gauge or Histogram."""
    help: str
    labels: tuple[str, ...]
    read: Callable[[Counts], Samples]

    @property
    def exported(self) -> str:
        return f"{self.name}_total" if self.kind == "Counter" else self.name


def _one(name: str) -> Callable[[Counts], Samples]:
    def read(counts: Counts) -> Samples:
        value = counts.get(name)
        return [] if value is None else [((), float(value))]

    return read


def _each(name: str) -> Callable[[Counts], Samples]:
    return lambda counts: [((str(label),), value) for label, value in (counts.get(name) or {}).items()]


def _position(column: int) -> Callable[[Counts], Samples]:
    return lambda counts: [((row[0], str(row[1])), row[column]) for row in counts.get("positions", ())]


def _shared(name: str) -> Callable[[Counts], Samples]:
    return lambda counts: [((), float(shared[name]))] if (shared := counts.get("shared_text")) else []


def _drafter(counts: Counts) -> Samples:
    return [(tuple(counts["drafter"]), 1.0)] if counts.get("drafter") else []


def _speedup(place: int) -> Callable[[Counts], Samples]:
    return lambda counts: [((), speedup[place])] if (speedup := counts.get("speedup")) else []


BY_PROPOSER = ("proposer",)
METRICS = (
    Metric(
        "slipstream_drafter_info", "Gauge",
        "1: the drafter that was loaded. The fingerprint is of its config and of samples of its weights.",
        ("method", "drafter", "fingerprint"), _drafter,
    ),
    Metric("slipstream_drafts", "Counter", "Drafts verified.", BY_PROPOSER, _each("drafts")),
    Metric(
        "slipstream_draft_tokens", "Counter", "Draft tokens verified, by their position in the draft.",
        ("proposer", "position"), _position(2),
    ),
    Metric(
        "slipstream_accepted_tokens", "Counter", "Of these, accepted.", ("proposer", "position"), _position(3)
    ),
    Metric(
        "slipstream_promised_tokens", "Counter", "Draft tokens that plans expected to be accepted.", (),
        _one("promised"),
    ),
    Metric(
        "slipstream_step_draft_tokens", "Histogram", "Draft tokens verified in a step, of all requests.", (),
        _each("budgets"),
    ),
    Metric("slipstream_plans", "Counter", "Plans, by why they are as they are.", ("reason",), _each("plans")),
    Metric(
        "slipstream_drafting_seconds", "Counter",
        "Seconds in the engine's process: lookup, drafter (waiting for workers), planning.", ("activity",),
        _each("seconds"),
    ),
    Metric(
        "slipstream_step_seconds", "Counter", "Seconds of steps, drafting included.", (), _one("step_seconds")
    ),
    Metric(
        "slipstream_bare_step_seconds", "Counter",
        "Seconds that vLLM without drafts would have taken for the same tokens, estimated.", (),
        _one("bare_seconds"),
    ),
    Metric(
        "slipstream_estimated_speedup", "Gauge", "Bare seconds over seconds, lately (about 1,000 steps).", (),
        _speedup(0),
    ),
    Metric(
        "slipstream_estimated_speedup_low", "Gauge",
        "Its lower limit (95%), by how well steps without drafts are predicted.", (), _speedup(1),
    ),
    Metric("slipstream_estimated_speedup_high", "Gauge", "Its upper limit.", (), _speedup(2)),
    Metric(
        "slipstream_paused", "Gauge", "1 while the guard pauses speculation at this load.", (), _one("paused")
    ),
    Metric("slipstream_pauses", "Counter", "Pauses by the guard.", (), _one("pauses")),
    Metric(
        "slipstream_drafter_rests", "Counter",
        "Times that a drafter which did not pay was left out for a while (V2 model runner).", (),
        _one("drafter_rests"),
    ),
    Metric(
        "slipstream_faults", "Counter", "Faults of proposers: each cost a request its drafts, nothing else.",
        ("proposer", "kind"),
        lambda counts: [((proposer, kind), count) for proposer, kind, count in counts.get("faults", ())],
    ),
    Metric(
        "slipstream_failures", "Counter", "Failures of drafting or planning: steps without drafts.", (),
        _one("failures"),
    ),
    Metric(
        "slipstream_shared_text_tokens", "Gauge", "Tokens of finished requests that others may draft from.",
        (), _shared("tokens"),
    ),
    Metric(
        "slipstream_shared_text_searches", "Counter", "Searches in the text of finished requests.", (),
        _shared("searched"),
    ),
    Metric("slipstream_shared_text_hits", "Counter", "Searches that gave the draft.", (), _shared("found")),
)  # fmt: skip


class AcceptanceWatch:
    """Compares how much of a proposer's last draft tokens was accepted with how much it was before."""

    WINDOW = 5_000  # draft tokens
    FALLEN = 0.5
    """Of what it was. Not by chance: of 5,000 tokens at 2% half as many are five standard deviations less."""
    WEIGHT = 0.25  # of a window in what it was

    def __init__(self) -> None:
        self._drafted = self._accepted = 0
        self._usual: float | None = None
        self._fallen = False

    def look(self, drafted: int, accepted: int) -> tuple[float, float] | None:
        """Take the totals; return (what it is, what it was) once when it has fallen away."""
        if drafted - self._drafted < self.WINDOW:
            return None
        rate = (accepted - self._accepted) / (drafted - self._drafted)
        self._drafted, self._accepted = drafted, accepted
        usual = rate if self._usual is None else self._usual
        was_fallen, self._fallen = self._fallen, rate < self.FALLEN * usual
        if not self._fallen:
            self._usual = usual + self.WEIGHT * (rate - usual)
        return (rate, usual) if self._fallen and not was_fallen else None


class Exporter:
    """Adds what is new in the counts of each engine to the process's metrics."""

    def __init__(self, model_name: str, registry: Any = prometheus_client.REGISTRY) -> None:
        self._model_name = model_name
        self._collectors = {metric.name: _collector(metric, registry) for metric in METRICS}
        self._exported: dict[tuple[Any, ...], float] = {}
        self._paused: set[str] = set()
        self._watches: defaultdict[tuple[str, str], AcceptanceWatch] = defaultdict(AcceptanceWatch)
        """By engine and proposer."""

    def export(self, engine: str, counts: Counts) -> None:
        for metric in METRICS:
            collector: Any = self._collectors[metric.name]
            for labels, value in metric.read(counts):
                if metric.kind == "Histogram":
                    child = collector.labels(self._model_name, engine)
                    for _ in range(int(self._new((metric.name, engine, *labels), value))):
                        child.observe(float(labels[0]))
                    continue
                child = collector.labels(self._model_name, engine, *labels)
                if metric.kind == "Gauge":
                    child.set(value)
                else:
                    child.inc(self._new((metric.name, engine, *labels), value))
        self._tell_of_pauses(engine, counts)
        self._tell_of_acceptance(engine, counts)

    def _new(self, which: tuple[Any, ...], value: float) -> float:
        """Return how much more it is than was exported. A draft may be uncounted after it was."""
        before = self._exported.get(which, 0.0)
        self._exported[which] = max(value, before)
        return max(value - before, 0.0)

    def _tell_of_pauses(self, engine: str, counts: Counts) -> None:
        if counts.get("paused") and engine not in self._paused:
            self._paused.add(engine)
            logger.warning("engine %s: drafts made it slower; speculation pauses at this load", engine)
        elif not counts.get("paused") and engine in self._paused:
            self._paused.discard(engine)
            logger.info("engine %s: speculation goes on", engine)

    def _tell_of_acceptance(self, engine: str, counts: Counts) -> None:
        totals: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        for proposer, _, drafted, accepted in counts.get("positions", ()):
            totals[proposer][0] += drafted
            totals[proposer][1] += accepted
        for proposer, (drafted, accepted) in totals.items():
            if fell := self._watches[engine, proposer].look(drafted, accepted):
                rate, usual = fell
                logger.warning(
                    "engine %s: of the last draft tokens of %s %.0f%% were accepted, and %.0f%% before",
                    engine, proposer, 100 * rate, 100 * usual,
                )  # fmt: skip


def _collector(metric: Metric, registry: Any) -> Collector:
    options: dict[str, Any] = {"registry": registry}
    if metric.kind == "Gauge":
        options["multiprocess_mode"] = "mostrecent"
    labels: Sequence[str] = (*LABELS, *metric.labels)
    if metric.kind == "Histogram":
        options["buckets"] = BUDGET_BUCKETS
    made: Collector = getattr(prometheus_client, metric.kind)(metric.name, metric.help, labels, **options)
    return made


async def export_for_ever(engine_client: Any, exporter: Exporter) -> None:
    """Ask all engines every second. After a failure, of which the first is logged, ever less often."""
    seconds = SECONDS
    while True:
        await asyncio.sleep(seconds)
        engine_core = engine_client.engine_core
        try:
            answers = await engine_core.call_utility_all_async("drafting_counts")
            for rank, counts in zip(engine_core.engine_ranks_managed, answers, strict=True):
                exporter.export(str(rank), counts)
            seconds = SECONDS
        except Exception:
            if seconds == SECONDS:
                logger.exception("the engines could not be asked for what they count")
            seconds = min(2 * seconds, MOST_SECONDS)


def reference() -> str:
    """Return the table in docs/metrics.md."""
    rows = [
        f"| `{metric.exported}` | {metric.kind.lower()} | {', '.join(metric.labels)} | {metric.help} |"
        for metric in METRICS
    ]
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows, ""])


if __name__ == "__main__":
    sys.stdout.write(reference())
