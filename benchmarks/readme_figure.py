"""The README's picture, from the committed results of the grid on SmolLM2-135M.

python benchmarks/readme_figure.py        # writes docs/speedup.svg
"""

import json
import re
from pathlib import Path

from slipstream.reporting.charts import LEFT, WIDTH, Point, Series, line_chart
from slipstream.reporting.page import STYLE, series_style

ROOT = Path(__file__).parents[1]
WORKLOADS = ("edit", "summarise", "code", "math", "chat")
LOADS = ("1 at once", "4 at once", "16 at once", "32 at once")


def main() -> None:
    cells = json.loads((ROOT / "benchmarks/results/grids.json").read_text())["cells"]
    auto = {(cell["workload"], cell["load"]): cell["auto"] for cell in cells if cell["grid"] == "grid-1"}
    series = [
        Series(
            workload,
            colour,
            [
                Point(at, found["value"], found["low"], found["high"])
                for at, load in enumerate(LOADS)
                for found in [auto[workload, load]]
            ],
        )
        for colour, workload in enumerate(WORKLOADS, start=1)
    ]
    labels = [load.partition(" ")[0] for load in LOADS]
    title = "Tokens per second of Slipstream relative to bare vLLM, by requests at once"
    chart = line_chart(title, labels, series, x_title="requests at once", unit="x", reference=1.0)
    legend = "".join(
        f'<rect class="c{s.colour}" x="{WIDTH - 92}" y="{14 + 15 * row}" width="9" height="9"/>'
        f'<text class="tick" x="{WIDTH - 78}" y="{22.5 + 15 * row}">{s.name}</text>'
        for row, s in enumerate(series)
    )
    heading = f'<text class="tick" x="{LEFT}" y="-6">tokens/s of auto, bare vLLM = 1; 95% intervals</text>'
    chart = chart.replace('viewBox="0 0', 'xmlns="http://www.w3.org/2000/svg" width="640" viewBox="0 -20')
    chart = chart.replace(' 230"', ' 250"', 1)
    background = f'<rect x="0" y="-20" width="{WIDTH}" height="250" fill="var(--paper)"/>'
    light = dict(re.findall(r"--(\w+):(#\w+)", STYLE.partition("@media")[0]))
    rules = STYLE[STYLE.index("svg{") :] + series_style()
    first, _, rest = chart.partition(">")
    svg = f"{first}><style>{rules}</style>{background}{heading}{rest.removesuffix('</svg>')}{legend}</svg>\n"
    # Viewers of single SVG files do not all know CSS variables.
    svg = re.sub(r"var\(--(\w+)\)", lambda match: light[match[1]], svg)
    (ROOT / "docs" / "speedup.svg").write_text(svg)


if __name__ == "__main__":
    main()
