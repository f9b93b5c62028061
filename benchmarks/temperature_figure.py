"""Draw the acceptance of argmax and sampled drafts by temperature.

python benchmarks/temperature_figure.py results/temperature.json ../docs/temperature.svg
"""

import json
import sys
from pathlib import Path

from figure import points_of, write_figure

from slipstream.reporting.charts import Series, line_chart


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    found = json.loads(source.read_text())["temperatures"]
    series = [
        Series(method, colour, points_of(of[method]["acceptance"] for of in found.values()))
        for colour, method in enumerate(("argmax", "sampled"), start=1)
    ]
    title = "Share of draft tokens that is accepted"
    chart = line_chart(title, list(found), series, x_title="temperature", from_zero=True)
    write_figure(target, chart, title, series, 60)


if __name__ == "__main__":
    main()
