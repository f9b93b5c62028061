"""From rounds to figures, verdicts and the report."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from slipstream.bench.report import html_report, markdown_report, write_report
from slipstream.bench.results import collect, load, verdicts
from slipstream.bench.rounds import joined
from slipstream.errors import ConfigError
from unit.bench.runs import description, rounds

STEADY = [100.0, 101, 99, 100, 102, 98]
FASTER = [150.0, 152, 149, 151, 150, 148]
SLOWER = [80.0, 81, 79, 80, 82, 78]
UNCLEAR = [100.0, 160, 60, 100, 130, 75]


def results(**by_load: list[float]) -> dict[str, Any]:
    """One workload, `edit`; `c1=...` are the speeds of arm k3 with 1 request at once."""
    loads = [int(name[1:]) for name in by_load]
    cells = {
        ("edit", f"{load} at once"): rounds("edit", f"{load} at once", {"bare": STEADY, "k3": speeds})
        for load, speeds in zip(loads, by_load.values(), strict=True)
    }
    return collect(description(["bare", "k3"], ["edit"], loads), cells, precision=0.05)


def test_a_cell() -> None:
    bare, k3 = results(c1=FASTER)["cells"]
    assert "speedup" not in bare
    assert k3["speedup"]["value"] == pytest.approx(1.5, abs=0.01)
    assert not k3["uncertain"]
    assert k3["tokens_per_second"]["value"] == pytest.approx(150, rel=0.01)
    assert k3["requests"] == 6
    assert k3["tpot_seconds"]["p50"] == pytest.approx(0.1)
    assert k3["acceptance"]["by_position"] == [1.0, 0.0, 0.0]
    assert k3["steps"]["count"] == 24
    assert k3["texts"] == {"compared": 6, "equal": 6, "gaps": []}


def test_requests_that_join_others() -> None:
    """The second comes with the first and the third when that is done: only the fourth joins others."""
    starts, ttfts, latencies = [0.0, 0.01, 2.0, 2.5], [0.5, 0.6, 0.2, 0.3], [1.0, 1.5, 1.0, 1.0]
    assert joined(starts, ttfts, latencies) == [False, False, False, True]
    cells = {("edit", "8 at once"): rounds("edit", "8 at once", {"bare": STEADY, "k3": FASTER})}
    for round_ in cells["edit", "8 at once"]:
        round_["arms"]["k3"] |= {
            "ttft": ttfts, "latency": latencies, "output_tokens": [9] * 4,
            "joined": [False, False, False, True],
        }  # fmt: skip
    found = collect(description(["bare", "k3"], ["edit"], [8]), cells, precision=0.05)
    bare, k3 = found["cells"]
    assert bare["joining_ttft_seconds"] == {}, "a file of an older version"
    assert k3["joining_ttft_seconds"]["p95"] == pytest.approx(0.3)
    assert "300 / 300 / 300" in markdown_report(found)


def test_a_wide_interval_is_marked() -> None:
    assert results(c1=UNCLEAR)["cells"][1]["uncertain"]


@pytest.mark.parametrize(
    ("speeds", "overall", "edit"),
    [
        (
            (FASTER, FASTER),
            "use k3: 1.50x bare",
            "use k3, 1.50x at 1 at once; it pays at every load measured.",
        ),
        (
            (FASTER, SLOWER),
            "use k3: 1.10x bare",
            "it loses at 16 at once (it stops paying at about 12 at once).",
        ),
        ((FASTER, UNCLEAR), "use k3: 1.22x bare", "at 16 at once it can no longer be told from bare"),
        (
            (SLOWER, SLOWER),
            "use bare: no arm is faster",
            "use bare; no arm is faster beyond doubt at any load.",
        ),
    ],
)
def test_verdicts(speeds: tuple[list[float], list[float]], overall: str, edit: str) -> None:
    alone, busy = speeds
    first, second = verdicts(results(c1=alone, c16=busy))
    assert overall in first
    assert edit in second


class _Balanced(HTMLParser):
    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_report_needs_nothing_else_and_is_well_formed() -> None:
    html = html_report(results(c1=FASTER, c16=SLOWER))
    assert not re.search(r"https?://|<script|<link|@import|url\(", html)
    parser = _Balanced()
    parser.feed(html)
    assert parser.open == []
    assert "prefers-color-scheme:dark" in html
    assert "&lt;CPU&gt;" in html
    assert html.count("<svg") == 6  # speedup, acceptance, steps, and three latencies, of one workload
    assert "1.50x" in html


def test_markdown_says_what_matters() -> None:
    text = markdown_report(results(c1=FASTER, c16=SLOWER))
    assert "it loses at 16 at once" in text
    assert "| edit | 16 at once | k3 | 80.0 | 0.80x |" in text
    assert "Greedy texts equal to bare: 12 of 12." in text
    assert "slipstream bench ./model" in text


def test_a_run_that_was_stopped_early_can_be_reported() -> None:
    content = results(c1=FASTER)
    content["plan"]["loads"].append({"concurrency": 16, "rate": None})
    content["plan"]["workloads"].append({"name": "chat", "requests": 24, "fingerprint": "f"})
    assert "edit" in html_report(content)


def test_a_single_round_is_not_reported() -> None:
    """Its interval would reach to infinity, which no chart and no JSON can hold."""
    cells = {("edit", "1 at once"): rounds("edit", "1 at once", {"bare": STEADY[:1], "k3": FASTER[:1]})}
    assert collect(description(["bare", "k3"], ["edit"], [1]), cells, precision=0.05)["cells"] == []


def test_files(tmp_path: Path) -> None:
    assert [file.name for file in write_report(results(c1=FASTER), tmp_path)] == ["report.html", "report.md"]
    with pytest.raises(ConfigError, match="no results of slipstream bench"):
        load(tmp_path)
