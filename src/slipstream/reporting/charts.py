"""Small charts as SVG text. Colours are CSS classes, so that one file serves light and dark."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 360, 230
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 12, 40


@dataclass(frozen=True)
class Point:
    x: int
    """Index of the label on the x axis."""
    y: float
    low: float | None = None
    high: float | None = None
    hint: str = ""


@dataclass(frozen=True)
class Series:
    name: str
    colour: int
    """0 is the neutral one."""
    points: Sequence[Point]
    dashed: bool = False


def line_chart(
    title: str,
    x_labels: Sequence[str],
    series: Sequence[Series],
    *,
    x_title: str,
    unit: str = "",
    reference: float | None = None,
    from_zero: bool = False,
) -> str:
    """Draw lines over evenly spaced labels, with intervals as whiskers."""
    values = [v for s in series for p in s.points for v in (p.y, p.low, p.high) if v is not None]
    if not values:
        return ""
    values += [reference] if reference is not None else []
    low, high = (0.0 if from_zero else min(values)), max(values)
    ticks = _ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def across(index: float) -> float:
        inner = WIDTH - LEFT - RIGHT
        return LEFT + inner * (index + 0.5) / len(x_labels)

    def up(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / ((high - low) or 1))

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for tick in ticks:
        y = up(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}{unit}</text>'
        )
    if reference is not None:
        y = up(reference)
        parts.append(f'<line class="reference" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    for i, label in enumerate(x_labels):
        parts.append(
            f'<text class="tick" x="{across(i):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
            f"{escape(label)}</text>"
        )
    parts.append(
        f'<text class="tick" x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{escape(x_title)}</text>"
    )
    whiskers = any(p.low is not None for s in series for p in s.points)
    for number, s in enumerate(series):
        shift = (number - (len(series) - 1) / 2) * 0.06 if whiskers else 0.0  # or they would hide each other
        spots = [(across(p.x + shift), up(p.y), p) for p in s.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in spots)
        dash = ' stroke-dasharray="4 3"' if s.dashed else ""
        parts.append(f'<g class="c{s.colour}"><polyline points="{path}"{dash}/>')
        for x, y, p in spots:
            if p.low is not None and p.high is not None:
                top, bottom = up(p.high), up(p.low)
                parts.append(
                    f'<line class="whisker" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'
                )
            hint = f"<title>{escape(p.hint or f'{s.name}: {p.y:.3g}{unit}')}</title>"
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5">{hint}</circle>')
        parts.append("</g>")
    parts.append("</svg>")
    return "".join(parts)


def stacked_bars(title: str, rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], unit: str) -> str:
    """Draw horizontal bars; every row is (label, parts from left to right)."""
    if not rows:
        return ""
    left, line = 112, 22
    most = max(sum(value for _, value in parts) for _, parts in rows) or 1
    inner = WIDTH - left - 56
    height = line * len(rows) + 8
    result = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">']
    for row, (label, parts) in enumerate(rows):
        y = 4 + row * line
        result.append(
            f'<text class="tick" x="{left - 6}" y="{y + 14}" text-anchor="end">{escape(label)}</text>'
        )
        x = float(left)
        for number, (name, value) in enumerate(parts):
            width = inner * max(value, 0.0) / most
            result.append(
                f'<rect class="part{number}" x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{line - 6}">'
                f"<title>{escape(label)}, {escape(name)}: {value:.2f}{unit}</title></rect>"
            )
            x += width
        total = sum(value for _, value in parts)
        result.append(f'<text class="tick" x="{x + 5:.1f}" y="{y + 14}">{total:.1f}{unit}</text>')
    result.append("</svg>")
    return "".join(result)


def _ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Return round numbers that cover low..high."""
    raw = ((high - low) or abs(high) or 1.0) / about
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw)
    return [round(i * step, 10) for i in range(math.floor(low / step), math.ceil(high / step) + 1)]
