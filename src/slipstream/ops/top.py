"""What a running server does with drafts, live: `slipstream top`."""

import math
import time
import urllib.request
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Group
from rich.table import Table
from rich.text import Text

from slipstream.errors import ConfigError
from slipstream.ops.explain import fetch, plans_table, sparkline

REMEMBERED = 60  # samples of tokens/s
HEAD = 16  # lines above the plans

Labels = frozenset[tuple[str, str]]


class Sample:
    """The metrics of a server at one moment."""

    def __init__(self, text: str, at: float) -> None:
        self.at = at
        self._values: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._values.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of all that have these labels; NaN if there is none."""
        wanted = labels.items()
        found = [value for key, value in self._values.get(name, {}).items() if wanted <= set(key)]
        return sum(found) if found else math.nan

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the sums by a label."""
        sums: defaultdict[str, float] = defaultdict(float)
        for key, value in self._values.get(name, {}).items():
            sums[dict(key).get(label, "")] += value
        return dict(sums)

    def label(self, name: str, label: str) -> str:
        """Return the value of a label of a metric, of the first that has it."""
        return next((dict(key)[label] for key in self._values.get(name, {}) if label in dict(key)), "")


def read_metrics(url: str) -> Sample:
    address = url.rstrip("/").removesuffix("/v1") + "/metrics"
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return Sample(answer.read().decode(), time.monotonic())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{address}: {error}; is the server running? Write its address: --url") from None


class Top:
    """Compares the last two samples of a server, and remembers its speed."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self._url, self._api_key = url, api_key
        self._before = self._now = read_metrics(url)
        self._speeds: deque[float] = deque(maxlen=REMEMBERED)
        self._report: Mapping[str, Any] = {}

    def look(self) -> None:
        """Ask the server."""
        self._before, self._now = self._now, read_metrics(self._url)
        self._report = fetch(self._url, self._api_key)
        speed = self._rate("vllm:generation_tokens_total")
        self._speeds.append(0.0 if math.isnan(speed) else speed)

    def summary(self) -> dict[str, Any]:
        """Return what is shown, for machines."""
        now = self._now
        drafted, accepted = self._new_by_proposer("draft_tokens"), self._new_by_proposer("accepted_tokens")
        return {
            "model": now.label("vllm:generation_tokens_total", "model_name"),
            "running": _known(now.total("vllm:num_requests_running")),
            "waiting": _known(now.total("vllm:num_requests_waiting")),
            "tokens_per_second": self._speeds[-1] if self._speeds else None,
            "estimated_speedup": [
                _known(now.total(f"slipstream_estimated_speedup{limit}")) for limit in ("", "_low", "_high")
            ],
            "paused": now.total("slipstream_paused") > 0,
            "pauses": _known(now.total("slipstream_pauses_total")),
            "drafting_share": self._drafting_share(),
            "faults": sum(now.by("slipstream_faults_total", "kind").values()),
            "draft_tokens_per_second": drafted,
            "accepted_tokens_per_second": accepted,
            "steps_by_draft_tokens": self._budgets(),
        }

    def render(self, height: int) -> Group:
        """Return the view, of at most so many lines."""
        summary = self.summary()
        planner = self._report.get("planner") or {}
        lines = max(height - HEAD - len(summary["draft_tokens_per_second"]), 2)
        plans = plans_table(planner.get("plans", ()), lines)
        parts = (self._header(summary), self._proposers(summary), _budget_table(summary), plans)
        return Group(*(line for part in parts for line in (part, Text())))

    def _header(self, summary: Mapping[str, Any]) -> Text:
        text = Text()
        text.append(f"{summary['model']} at {self._url}\n", "bold")
        text.append(
            f"{_number(summary['running'])} running, {_number(summary['waiting'])} waiting; "
            f"{_number(summary['tokens_per_second'])} tokens/s {sparkline(_shares(self._speeds))}"
        )
        idle = not (summary["running"] or summary["waiting"] or summary["tokens_per_second"])
        text.append("; totals: slipstream explain\n" if idle else "\n")
        speedup, low, high = summary["estimated_speedup"]
        if speedup is None:
            text.append(
                "speedup not known yet: no step without drafts was measured, or nothing is planned\n", "dim"
            )
        else:
            style = "bold green" if low > 1 else "bold yellow" if high < 1 else "bold"
            text.append(f"{speedup:.2f}x", style)
            text.append(f" bare vLLM, estimated ({low:.2f} to {high:.2f}); ")
            text.append(f"drafting takes {summary['drafting_share']:.1%} of the time\n")
        if summary["paused"]:
            text.append("paused: drafts made it slower at this load; they will be tried again", "bold yellow")
        else:
            text.append(
                f"speculating; {_number(summary['pauses'])} pauses, {_number(summary['faults'])} faults"
            )
        return text

    def _proposers(self, summary: Mapping[str, Any]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("proposer")
        for column in ("drafted/s", "accepted/s", "accepted"):
            table.add_column(column, justify="right")
        table.add_column("by position", no_wrap=True)
        drafted, accepted = summary["draft_tokens_per_second"], summary["accepted_tokens_per_second"]
        for proposer, tokens in drafted.items():
            kept = accepted.get(proposer, 0.0)
            table.add_row(
                proposer, f"{tokens:.0f}", f"{kept:.0f}", f"{kept / tokens:.0%}" if tokens else "-",
                sparkline(self._by_position(proposer)),
            )  # fmt: skip
        if not drafted:
            table.add_row("nothing drafted yet", "", "", "", "")
        return table

    def _by_position(self, proposer: str) -> list[float]:
        """Return the share accepted at each position, since the server's start."""
        shares = []
        for position in range(1, 33):
            at = {"proposer": proposer, "position": str(position)}
            drafted = self._now.total("slipstream_draft_tokens_total", **at)
            if math.isnan(drafted):
                break
            shares.append(self._now.total("slipstream_accepted_tokens_total", **at) / max(drafted, 1))
        return shares

    def _rate(self, name: str, **labels: str) -> float:
        seconds = self._now.at - self._before.at
        new = self._now.total(name, **labels) - self._before.total(name, **labels)
        return new / seconds if seconds else math.nan

    def _new_by_proposer(self, what: str) -> dict[str, float]:
        proposers = self._now.by("slipstream_draft_tokens_total", "proposer")
        rates = {p: self._rate(f"slipstream_{what}_total", proposer=p) for p in sorted(proposers)}
        return {proposer: 0.0 if math.isnan(rate) else rate for proposer, rate in rates.items()}

    def _drafting_share(self) -> float:
        steps = self._now.total("slipstream_step_seconds_total")
        seconds = sum(self._now.by("slipstream_drafting_seconds_total", "activity").values())
        return seconds / steps if steps else 0.0

    def _budgets(self) -> dict[str, float]:
        """Return how many steps since the last look had so many draft tokens at most, by bucket."""
        now, before = (
            sample.by("slipstream_step_draft_tokens_bucket", "le") for sample in (self._now, self._before)
        )
        new = {bucket: now[bucket] - before.get(bucket, 0.0) for bucket in sorted(now, key=float)}
        below = [0.0, *new.values()]
        return {bucket: count - less for (bucket, count), less in zip(new.items(), below, strict=False)}


def looks(top: Top, seconds: float) -> Iterator[None]:
    """Look at the server every so many seconds, for ever."""
    while True:
        time.sleep(seconds)
        top.look()
        yield


def _budget_table(summary: Mapping[str, Any]) -> Table:
    budgets: Mapping[str, float] = summary["steps_by_draft_tokens"]
    steps = sum(budgets.values())
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("draft tokens")
    for bucket in budgets:
        table.add_column(
            "more" if bucket == "+Inf" else f"≤{float(bucket):.0f}", justify="right", no_wrap=True
        )
    shares = [count / steps if steps else 0.0 for count in budgets.values()]
    table.add_row("of steps", *(f"{share:.0%}" if share else "" for share in shares))
    table.add_row("", *sparkline(shares))
    return table


def _shares(values: Sequence[float] | deque[float]) -> list[float]:
    most = max(values, default=0.0)
    return [value / most if most else 0.0 for value in values]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"
