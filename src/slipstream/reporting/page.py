"""A report as one HTML page that needs nothing else."""

from collections.abc import Sequence
from html import escape

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
COLOURS = 6  # of series, beside that of the baseline
STACK_COLOURS = 3  # of the parts of a bar


def page(title: str, style: str, body: Sequence[str]) -> str:
    """Return a whole HTML file that needs nothing else."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title>"
        f"<style>{style}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def verdict_box(first: str, rest: Sequence[str]) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in rest)
    return f'<div class="verdict"><p>{escape(first)}</p><ul>{lines}</ul></div>'


def series_style() -> str:
    return "".join(f".c{i}{{stroke:var(--c{i});fill:var(--c{i})}}" for i in range(COLOURS + 1)) + "".join(
        f".part{i}{{fill:var(--p{i})}}" for i in range(STACK_COLOURS)
    )


def series_colour(index: int) -> int:
    """Return 0 for the baseline's colour, then the others in turn."""
    return 0 if index == 0 else (index - 1) % COLOURS + 1
