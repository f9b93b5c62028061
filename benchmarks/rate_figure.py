"""Draw what arms take for whole answers relative to bare vLLM, by the rate at which requests come.

python benchmarks/rate_figure.py results/rates.json ../docs/rates.svg
"""

import json
import sys
from pathlib import Path

from figure import points_of, write_figure

from slipstream.reporting.charts import Series, line_chart

NAMES = {"throughput": "auto", "fixed:3": "fixed K=3", "fixed:5": "fixed K=5"}


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    cells = json.loads(source.read_text())["cells"]
    arms = [name for name in cells[0]["arms"] if name != "bare"]
    series = [
        Series(NAMES[arm], colour, points_of(cell["arms"][arm]["end_to_end_over_bare"] for cell in cells))
        for colour, arm in enumerate(arms, start=1)
    ]
    title = "Time of whole answers, bare vLLM = 1"
    labels = [f"{cell['rate']:g}" for cell in cells]
    chart = line_chart(title, labels, series, x_title="requests a second", reference=1.0)
    write_figure(target, chart, f"{title} ({cells[0]['workload']})", series, 108)


if __name__ == "__main__":
    main()
