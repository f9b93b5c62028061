"""The README's picture, from the committed results of the grid on SmolLM2-135M.

python benchmarks/readme_figure.py        # writes docs/speedup.svg
"""

import json
from pathlib import Path

from figure import points_of, write_figure

from slipstream.reporting.charts import WIDTH, Series, line_chart

ROOT = Path(__file__).parents[1]
WORKLOADS = ("edit", "summarise", "code", "math", "chat")
LOADS = ("1 at once", "4 at once", "16 at once", "32 at once")


def main() -> None:
    cells = json.loads((ROOT / "benchmarks/results/grids.json").read_text())["cells"]
    auto = {(cell["workload"], cell["load"]): cell["auto"] for cell in cells if cell["grid"] == "grid-1"}
    series = [
        Series(workload, colour, points_of(auto[workload, load] for load in LOADS))
        for colour, workload in enumerate(WORKLOADS, start=1)
    ]
    labels = [load.partition(" ")[0] for load in LOADS]
    title = "Tokens per second of Slipstream relative to bare vLLM, by requests at once"
    chart = line_chart(title, labels, series, x_title="requests at once", unit="x", reference=1.0)
    heading = "tokens/s of auto, bare vLLM = 1; 95% intervals"
    write_figure(ROOT / "docs" / "speedup.svg", chart, heading, series, legend_x=WIDTH - 92)


if __name__ == "__main__":
    main()
