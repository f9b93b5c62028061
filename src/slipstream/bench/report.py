"""The report: one HTML file that needs nothing else, and a Markdown summary."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from slipstream.bench.plan import Load
from slipstream.bench.results import Entry, Results, View, judge, verdicts
from slipstream.reporting.charts import Point, Series, line_chart, stacked_bars
from slipstream.reporting.page import STYLE, page, series_colour, series_style, verdict_box

PARTS = ("target", "drafting", "rest")


def write_report(results: Results, folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = {"report.html": html_report(results), "report.md": markdown_report(results)}
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return [folder / name for name in files]


def html_report(results: Results) -> str:
    view = View(results)
    first, *rest = verdicts(results) or ["Nothing to compare."]
    latest = results["sessions"][-1]
    arms = _legend([(arm, f"var(--c{series_colour(i)})") for i, arm in enumerate([view.bare, *view.others])])
    others = _legend([(arm, f"var(--c{series_colour(i)})") for i, arm in enumerate(view.others, start=1)])
    body = [
        f"<h1>Speculation against {escape(view.bare)}: {escape(Path(results['plan']['model']).name)}</h1>",
        f'<p class="soft">vLLM {latest["vllm"]} on {escape(_machine(latest))}, {latest["date"][:10]}</p>',
        verdict_box(first, rest),
        *_section(
            "Speedup against load",
            f"Generated tokens a second, relative to {view.bare} in the same round; whiskers are 95% "
            "intervals over rounds. Above the dotted line speculation pays.",
            others,
            [(w, _speedups(view, w)) for w in view.workloads],
        ),
        *_section(
            "Acceptance by position",
            "Of the draft tokens verified at a position, the share that the target kept. Every position has "
            "its own denominator: short drafts do not count against later positions.",
            others,
            [(w, _acceptance(view, w)) for w in view.workloads],
        ),
        *_section(
            "Where a step's time goes",
            "Milliseconds per step without prefill: the target's pass with sampling, drafting, and the rest "
            "(scheduling, processes talking, HTTP).",
            _legend([(part, f"var(--p{i})") for i, part in enumerate(PARTS)]),
            [(w, _steps(view, w)) for w in view.workloads],
        ),
    ]
    latencies = (
        ("tpot_seconds", "Time per output token", "After the first; milliseconds. Solid p50, dashed p95."),
        ("ttft_seconds", "Time to the first token", "Milliseconds. Solid p50, dashed p95."),
        ("latency_seconds", "End to end", "Whole request, milliseconds. Solid p50, dashed p95."),
    )
    for key, title, text in latencies:
        body += _section(title, text, arms, [(w, _latency(view, w, key)) for w in view.workloads])
    body += ["<h2>All figures</h2>", _notes(results), f'<div class="scroll">{_html_table(view)}</div>']
    body += ["<h2>How it was measured</h2>", _method(results)]
    title = f"slipstream bench: {Path(results['plan']['model']).name}"
    return page(title, STYLE + series_style(), body)


def markdown_report(results: Results) -> str:
    view = View(results)
    latest = results["sessions"][-1]
    first, *rest = verdicts(results) or ["Nothing to compare."]
    lines = [
        f"# Speculation against {view.bare}: {Path(results['plan']['model']).name}",
        "",
        f"**{first}**",
        "",
        *(f"- {line}" for line in rest),
        "",
        f"vLLM {latest['vllm']} on {_machine(latest)}, {latest['date'][:10]}.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * 3 + "---:|" * (len(COLUMNS) - 3),
        *("| " + " | ".join(_row(cell)) + " |" for cell in results["cells"]),
        "",
        *_note_lines(results),
        "",
        "```",
        *(session["command"] for session in results["sessions"]),
        "```",
        "",
    ]
    return "\n".join(lines)


def _section(title: str, text: str, legend: str, charts: Sequence[tuple[str, str]]) -> list[str]:
    cards = [f'<div class="card"><h3>{escape(name)}</h3>{chart}</div>' for name, chart in charts if chart]
    if not cards:
        return []
    return [
        f"<h2>{escape(title)}</h2>",
        f'<p class="soft">{escape(text)}</p>',
        legend,
        f'<div class="charts">{"".join(cards)}</div>',
    ]


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    items = (f'<li><i style="background:{colour}"></i>{escape(name)}</li>' for name, colour in entries)
    return f'<ul class="legend">{"".join(items)}</ul>'


def _labels(loads: Sequence[Load]) -> tuple[list[str], str]:
    """Return short labels for the axis and what they mean together."""
    if all(load.concurrency for load in loads):
        return [str(load.concurrency) for load in loads], "requests at once"
    if all(load.rate for load in loads):
        return [f"{load.rate:g}" for load in loads], "requests a second"
    return [load.name.replace(" at once", "") for load in loads], "requests at once, or a second"


def _lines(
    view: View,
    workload: str,
    arms: Sequence[str],
    colours: Sequence[int],
    point: Callable[[int, Entry, str], Any],
) -> list[Series]:
    series = []
    for arm, colour in zip(arms, colours, strict=True):
        cells = [(i, view.cell(workload, load, arm)) for i, load in enumerate(view.loads)]
        series.append(Series(arm, colour, [point(i, cell, arm) for i, cell in cells if cell]))
    return series


def _speedups(view: View, workload: str) -> str:
    def point(index: int, cell: Entry, arm: str) -> Point:
        ratio = cell["speedup"]
        hint = f"{arm}, {cell['load']}: {ratio['value']:.2f}x ({ratio['low']:.2f} to {ratio['high']:.2f})"
        return Point(index, ratio["value"], ratio["low"], ratio["high"], hint)

    colours = [series_colour(i + 1) for i in range(len(view.others))]
    labels, x_title = _labels(view.loads)
    series = _lines(view, workload, view.others, colours, point)
    return line_chart(workload, labels, series, x_title=x_title, unit="x", reference=1.0)


def _latency(view: View, workload: str, key: str) -> str:
    arms = [view.bare, *view.others]
    colours = [series_colour(i) for i in range(len(arms))]
    labels, x_title = _labels(view.loads)
    series = []
    for percentile, dashed in (("p50", False), ("p95", True)):

        def point(index: int, cell: Entry, arm: str, percentile: str = percentile) -> Point:
            value = cell[key].get(percentile, 0.0) * 1000
            return Point(index, value, hint=f"{arm}, {cell['load']}, {percentile}: {value:.1f} ms")

        lines = _lines(view, workload, arms, colours, point)
        series += [Series(s.name, s.colour, s.points, dashed) for s in lines]
    return line_chart(workload, labels, series, x_title=x_title, from_zero=True)


def _acceptance(view: View, workload: str) -> str:
    """Draw acceptance at the lowest load; it is a matter of text, not of load."""
    series = []
    positions = 0
    for i, arm in enumerate(view.others):
        cell = view.cell(workload, view.loads[0], arm)
        shares = (cell or {}).get("acceptance", {}).get("by_position", [])
        positions = max(positions, len(shares))
        points = [
            Point(j, share, hint=f"{arm}, position {j + 1}: {share:.0%}") for j, share in enumerate(shares)
        ]
        if points:
            series.append(Series(arm, series_colour(i + 1), points))
    labels = [str(j + 1) for j in range(positions)]
    return line_chart(workload, labels, series, x_title="position of the draft token", from_zero=True)


def _steps(view: View, workload: str) -> str:
    rows = []
    for load in view.loads:
        for arm in (view.bare, *view.others):
            cell = view.cell(workload, load, arm)
            if cell and "steps" in cell:
                parts = [(part, cell["steps"][part] * 1000) for part in PARTS]
                rows.append((f"{arm}, {load.name.replace(' at once', '')}", parts))
    return stacked_bars(workload, rows, " ms")


COLUMNS = (
    "workload", "load", "arm", "tokens/s", "speedup", "95% interval", "acceptance length", "acceptance rate",
    "TTFT p50/p95/p99 ms", "TTFT of joining requests", "TPOT p50/p95/p99 ms", "end to end p50/p95/p99 ms",
    "steps", "ms per step", "texts equal", "rounds",
)  # fmt: skip


LATENCIES = ("ttft_seconds", "joining_ttft_seconds", "tpot_seconds", "latency_seconds")


def _row(cell: Entry) -> list[str]:
    ratio, kept, texts = cell.get("speedup"), cell.get("acceptance"), cell.get("texts")
    steps = cell.get("steps")
    return [
        cell["workload"],
        cell["load"],
        cell["arm"],
        f"{cell['tokens_per_second']['value']:.1f}",
        f"{ratio['value']:.2f}x" if ratio else "",
        f"{ratio['low']:.2f} to {ratio['high']:.2f}{' (wide)' if cell['uncertain'] else ''}" if ratio else "",
        f"{kept['length']:.2f}" if kept else "",
        f"{kept['rate']:.0%}" if kept else "",
        *(_three(cell.get(key, {})) for key in LATENCIES),
        str(steps["count"]) if steps else "",
        f"{steps['seconds'] * 1000:.1f}" if steps else "",
        f"{texts['equal']}/{texts['compared']}" if texts else "",
        str(cell["rounds"]),
    ]


def _three(values: dict[str, float]) -> str:
    return " / ".join(f"{values[p] * 1000:.0f}" for p in ("p50", "p95", "p99")) if values else ""


def _html_table(view: View) -> str:
    rows = []
    for cell in view.results["cells"]:
        texts = _row(cell)
        columns = [f"<td>{escape(text)}</td>" for text in texts]
        columns[4] = f'<td class="{judge(cell)}">{escape(texts[4])}</td>'
        rows.append(f"<tr>{''.join(columns)}</tr>")
    head = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _note_lines(results: Results) -> list[str]:
    cells = results["cells"]
    lines = []
    if wide := sum(bool(cell.get("uncertain")) for cell in cells):
        lines.append(
            f"{wide} intervals are wider than +-{results['precision']:.0%} and marked (wide): "
            "more rounds or a quieter machine would narrow them."
        )
    if any(cell.get("joining_ttft_seconds") for cell in cells):
        lines.append("A request joins if others are being written when it comes: it waits for their steps.")
    if failed := sum(cell["failed"] for cell in cells):
        lines.append(f"{failed} requests failed and are left out.")
    compared = [cell["texts"] for cell in cells if "texts" in cell]
    if compared:
        total, equal = sum(t["compared"] for t in compared), sum(t["equal"] for t in compared)
        line = f"Greedy texts equal to {results['plan']['arms'][0]['name']}: {equal} of {total}."
        gaps = [gap for t in compared for gap in t["gaps"]]
        if gaps:
            line += (
                f" Where they part, the target's two best tokens were {min(gaps):.3f} to {max(gaps):.3f} "
                f"apart in log-probability (median {sorted(gaps)[len(gaps) // 2]:.3f}; {len(gaps)} looked "
                "at): a gap near 0 is a tie that rounding decides."
            )
        lines.append(line)
    return lines


def _notes(results: Results) -> str:
    return "".join(f'<p class="soft">{escape(line)}</p>' for line in _note_lines(results))


def _machine(session: dict[str, Any]) -> str:
    gpus = session.get("gpus") or []
    return f"{len(gpus)} x {gpus[0]}" if gpus else f"{session['cores']} cores of {session['processor']}"


def _method(results: Results) -> str:
    plan, sessions = results["plan"], results["sessions"]
    latest = sessions[-1]
    facts = {
        "machine": f"{_machine(latest)}, {latest['memory_gib']} GiB",
        "versions": f"vLLM {latest['vllm']}, torch {latest['torch']}, Python {latest['python']}, "
        f"Slipstream {latest['slipstream']} ({latest['git'] or 'not from a clone'})",
        "arms": "; ".join(f"{arm['name']}: --speculate {arm['speculate']}" for arm in plan["arms"]),
        "workloads": ", ".join(f"{w['name']} ({w['requests']} requests)" for w in plan["workloads"]),
        "requests": f"at most {plan['max_tokens']} tokens, temperature {plan['temperature']:g}"
        + (", going on past the end of the text" if plan["ignore_eos"] else ""),
        "flags of all arms": " ".join(plan["flags"]) or "none",
        "environment": ", ".join(f"{k}={v}" for k, v in latest["environment"].items()) or "nothing set",
    }
    entries = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())
    commands = "\n".join(f"{session['date']}  {session['command']}" for session in sessions)
    return (
        "<p>Every arm is a server of its own on loopback; all stay up. In a round they serve the same "
        "requests, taking turns of a fraction of a second while the others are stopped (closed loop on CPU), "
        "and every figure is in the arm's own time. The first requests of every cell are not counted. "
        "Speedups are ratios within a round.</p>"
        f"<dl>{entries}</dl><pre>{escape(commands)}</pre>"
    )
