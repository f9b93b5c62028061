"""The report: one HTML file that needs nothing else, and a Markdown summary."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from slipstream.bench.charts import Point, Series, line_chart, stacked_bars
from slipstream.bench.plan import Load
from slipstream.bench.results import Entry, Results, View, judge, verdicts

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1a1d21;--soft:#5b6570;--line:#dfe3e8;--card:#f6f8fa;
--good:#1a7f37;--bad:#c2261c;--c0:#7a838d;--c1:#0969da;--c2:#bc4c00;--c3:#1a7f37;--c4:#8250df;--c5:#b4257b;
--c6:#9a6700;--p0:#0969da;--p1:#e3742f;--p2:#b8c0c8}
@media(prefers-color-scheme:dark){:root{--paper:#0f1216;--ink:#e8ebee;--soft:#9aa4ae;--line:#2b323a;
--card:#171b21;--good:#4fc26b;--bad:#ff7b72;--c0:#98a2ac;--c1:#58a6ff;--c2:#f0883e;--c3:#4fc26b;--c4:#bc8cff;
--c5:#f778ba;--c6:#d4a72c;--p0:#58a6ff;--p1:#f0883e;--p2:#4a535d}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1180px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:24px;margin:0 0 4px;line-height:1.25}
h2{font-size:18px;margin:40px 0 4px}h3{font-size:14px;margin:0 0 6px}
p{margin:4px 0 12px}.soft{color:var(--soft)}
.verdict{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:14px 18px;
margin:16px 0}
.verdict p:first-child{font-size:18px;font-weight:600;margin:0 0 8px}.verdict ul{margin:0;padding-left:20px}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(320px,100%),1fr));gap:16px}
.card{border:1px solid var(--line);border-radius:8px;padding:12px;min-width:0}
svg{width:100%;height:auto;display:block}
.tick{fill:var(--soft);font:11px system-ui,sans-serif}.grid{stroke:var(--line)}
.reference{stroke:var(--ink);stroke-width:1.2;stroke-dasharray:2 3}
polyline{fill:none;stroke-width:2}.whisker{stroke-width:1.6;opacity:.75}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;margin:4px 0 12px;padding:0;list-style:none;font-size:13px}
.legend i{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;vertical-align:-1px}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13px;width:100%}
th,td{text-align:right;padding:4px 10px;border-bottom:1px solid var(--line);white-space:nowrap}
th:nth-child(-n+3),td:nth-child(-n+3){text-align:left}
th{color:var(--soft);font-weight:600}.good{color:var(--good)}.bad{color:var(--bad)}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px;
overflow-x:auto;font-size:12px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;font-size:13px}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
"""
COLOURS = 6
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
    arms = _legend([(arm, f"var(--c{_colour(i)})") for i, arm in enumerate([view.bare, *view.others])])
    others = _legend([(arm, f"var(--c{_colour(i)})") for i, arm in enumerate(view.others, start=1)])
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


def page(title: str, style: str, body: Sequence[str]) -> str:
    """A whole HTML file that needs nothing else."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title>"
        f"<style>{style}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def verdict_box(first: str, rest: Sequence[str]) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in rest)
    return f'<div class="verdict"><p>{escape(first)}</p><ul>{lines}</ul></div>'


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


def series_style() -> str:
    return "".join(f".c{i}{{stroke:var(--c{i});fill:var(--c{i})}}" for i in range(COLOURS + 1)) + "".join(
        f".part{i}{{fill:var(--p{i})}}" for i in range(len(PARTS))
    )


def _colour(index: int) -> int:
    """0 for the arm that is compared with, then through the others."""
    return 0 if index == 0 else (index - 1) % COLOURS + 1


def _labels(loads: Sequence[Load]) -> tuple[list[str], str]:
    """Short labels for the axis and what they mean together."""
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

    colours = [_colour(i + 1) for i in range(len(view.others))]
    labels, x_title = _labels(view.loads)
    series = _lines(view, workload, view.others, colours, point)
    return line_chart(workload, labels, series, x_title=x_title, unit="x", reference=1.0)


def _latency(view: View, workload: str, key: str) -> str:
    arms = [view.bare, *view.others]
    colours = [_colour(i) for i in range(len(arms))]
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
    """At the lowest load; acceptance is a matter of text, not of load."""
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
            series.append(Series(arm, _colour(i + 1), points))
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
    "TTFT p50/p95/p99 ms", "TPOT p50/p95/p99 ms", "end to end p50/p95/p99 ms", "steps", "ms per step",
    "texts equal", "rounds",
)  # fmt: skip


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
        *(_three(cell[key]) for key in ("ttft_seconds", "tpot_seconds", "latency_seconds")),
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
