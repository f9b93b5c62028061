"""Draw the acceptance of argmax and sampled drafts by temperature.

python benchmarks/temperature_figure.py results/temperature.json ../docs/figures/temperature.svg
"""

import json
import sys
from pathlib import Path

from figure import write_figure

from slipstream.reporting.charts import Point, Series, line_chart


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    found = json.loads(source.read_text())["temperatures"]
    series = []
    for number, method in enumerate(("argmax", "sampled")):
        points = []
        for place, of in enumerate(found.values()):
            share = of[method]["acceptance"]
            points.append(Point(place, share["value"], share["low"], share["high"]))
        series.append(Series(method, number + 1, points))
    title = "Share of draft tokens that is accepted"
    chart = line_chart(title, list(found), series, x_title="temperature", from_zero=True)
    write_figure(target, chart, title, series, 60)


if __name__ == "__main__":
    main()
