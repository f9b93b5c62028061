"""A chart of `slipstream.reporting` as an SVG file of its own, with a heading and a legend."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from slipstream.reporting.charts import LEFT, WIDTH, Point, Series
from slipstream.reporting.page import STYLE, series_style


def points_of(intervals: Iterable[Mapping[str, float]]) -> list[Point]:
    """Return a point for each committed value and its interval, side by side."""
    return [Point(place, of["value"], of["low"], of["high"]) for place, of in enumerate(intervals)]


def write_figure(path: Path, chart: str, heading: str, series: Sequence[Series], legend_x: int) -> None:
    legend = "".join(
        f'<rect class="c{s.colour}" x="{legend_x}" y="{14 + 15 * row}" width="9" height="9"/>'
        f'<text class="tick" x="{legend_x + 14}" y="{22.5 + 15 * row}">{s.name}</text>'
        for row, s in enumerate(series)
    )
    said = f'<text class="tick" x="{LEFT}" y="-6">{heading}</text>'
    chart = chart.replace('viewBox="0 0', 'xmlns="http://www.w3.org/2000/svg" width="640" viewBox="0 -20')
    chart = chart.replace(' 230"', ' 250"', 1)
    background = f'<rect x="0" y="-20" width="{WIDTH}" height="250" fill="var(--paper)"/>'
    light = dict(re.findall(r"--(\w+):(#\w+)", STYLE.partition("@media")[0]))
    rules = STYLE[STYLE.index("svg{") :] + series_style()
    first, _, rest = chart.partition(">")
    svg = f"{first}><style>{rules}</style>{background}{said}{rest.removesuffix('</svg>')}{legend}</svg>\n"
    # Viewers of single SVG files do not all know CSS variables.
    path.write_text(re.sub(r"var\(--(\w+)\)", lambda match: light[match[1]], svg))
