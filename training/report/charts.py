"""Curves as inline SVG, drawn in colors and line styles that the page's style sheet knows, in light and in dark.

The drawing is 360 units wide, about the width of a narrow window, so that its text stays readable there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final, TypeAlias

WIDTH: Final = 360
HEIGHT: Final = 230
LEFT, RIGHT, TOP, BOTTOM = 40, 14, 18, 36
COLORS: Final = 6
DASHES: Final = ("", "7 3", "2 3", "9 3 2 3")
# A dot with its own tooltip for each step, up to this many; beyond it they would only hide the line.
MOST_DOTS: Final = 120

_Scale: TypeAlias = Callable[[float], float]


@dataclass(frozen=True)
class Point:
    """One value at a step; `low` and `high` bound its interval if it has one."""

    step: int
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Curve:
    """One run in one chart. `attempts`: (first step, number) of each attempt after the first."""

    label: str
    points: Sequence[Point]
    attempts: Sequence[tuple[int, int]] = ()
    bound: float | None = None
    baseline: float | None = None


@dataclass(frozen=True)
class Chart:
    """A chart: what it shows, in which unit, over which range (None: what the values need; a tuple is kept)."""

    name: str
    title: str
    unit: str
    curves: Sequence[Curve] = field(default_factory=tuple)
    limits: tuple[float, float] | None = None
    from_zero: bool = False


def color(index: int) -> str:
    """Class of the curve's color."""
    return f"c{index % COLORS}"


def dash(index: int) -> str:
    """Dash pattern that tells a curve from the others without its color."""
    return DASHES[index % len(DASHES)]


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers from at most `low` to at least `high`, 2 to about `wanted` + 2 of them."""
    span = high - low
    # What does not differ to twelve digits would need more digits than an axis has.
    if not math.isfinite(span) or span <= 1e-12 * max(abs(low), abs(high), 1e-6):
        span = abs(low) if abs(low) > 1e-12 else 1.0
        low, high = low - span / 2, low + span / 2
    raw = span / wanted
    size = 10.0 ** math.floor(math.log10(raw))
    unit = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * 0.999)
    first, last = math.floor(low / unit + 1e-9), math.ceil(high / unit - 1e-9)
    return [index * unit for index in range(first, last + 1)]


def shown(value: float) -> str:
    """A number on an axis, short."""
    text = f"{value:.6g}"
    return "0" if text in ("-0", "0") else text


def draw(chart: Chart) -> str:
    """The chart as an `<svg>` element; a sentence in its place if there is nothing to draw."""
    points = [point for curve in chart.curves for point in curve.points]
    if not points:
        return f'<p class="none">No step has told a {escape(chart.title.lower())} yet.</p>'
    x_low, x_high = min(p.step for p in points), max(p.step for p in points)
    x_high = max(x_high, x_low + 1)
    x_ticks = [tick for tick in ticks(x_low, x_high) if tick == int(tick) and x_low <= tick <= x_high]
    y_ticks = ticks(*(chart.limits or _range(chart)))
    y_low, y_high = y_ticks[0], y_ticks[-1]

    def x(step: float) -> float:
        return LEFT + (step - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{chart.name}-t {chart.name}-d">',
        f'<title id="{chart.name}-t">{escape(chart.title)}</title>',
        f'<desc id="{chart.name}-d">{escape(describe(chart))}</desc>',
    ]
    for tick in y_ticks:
        parts.append(_line("grid", LEFT, y(tick), WIDTH - RIGHT, y(tick)))
        parts.append(_text(LEFT - 6, y(tick) + 4, shown(tick), anchor="end"))
    for tick in x_ticks:
        parts.append(_line("tick", x(tick), HEIGHT - BOTTOM, x(tick), HEIGHT - BOTTOM + 4))
        parts.append(_text(x(tick), HEIGHT - BOTTOM + 16, shown(tick)))
    parts.append(_line("axis", LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, "step"))
    alone = len(chart.curves) == 1
    for kind, pattern in (("bound", "6 4"), ("baseline", "1.5 3")):
        for index, value in _levels(chart, kind):
            group = color(index) if index is not None else "all"
            parts.append(f'<g class="{group}">{_line(kind, LEFT, y(value), WIDTH - RIGHT, y(value), dashes=pattern)}</g>')
    for index, curve in enumerate(chart.curves):
        parts += [f'<g class="{color(index)}">', *_curve(curve, index, alone, x, y), "</g>"]
    return "".join((*parts, "</svg>"))


def describe(chart: Chart) -> str:
    """The chart in words, for who does not see it."""
    said = []
    for curve in chart.curves:
        if not curve.points:
            continue
        first, last = curve.points[0], curve.points[-1]
        high = max(curve.points, key=lambda point: point.value)
        text = f"{curve.label}: {shown(first.value)} at step {first.step}, {shown(last.value)} at step {last.step}"
        said.append(f"{text}, highest {shown(high.value)} at step {high.step}")
        if curve.bound is not None:
            said.append(f"oracle bound {shown(curve.bound)}")
        if curve.attempts:
            said.append(", ".join(f"attempt {number} from step {step}" for step, number in curve.attempts))
    return "; ".join(said)


def key(index: int, *, kind: str = "line") -> str:
    """A short piece of a line, for the legend."""
    pattern = {"bound": "6 4", "baseline": "1.5 3", "line": dash(index)}[kind]
    return (
        f'<svg class="key {color(index)}" viewBox="0 0 26 10" width="26" height="10" aria-hidden="true">'
        f'<line class="{kind}" x1="0" y1="5" x2="26" y2="5" stroke-dasharray="{pattern}"/></svg>'
    )


def _range(chart: Chart) -> tuple[float, float]:
    values = [v for curve in chart.curves for p in curve.points for v in (p.value, p.low, p.high) if v is not None]
    values += [v for curve in chart.curves for v in (curve.bound, curve.baseline) if v is not None]
    low = min(values)
    return (min(0.0, low) if chart.from_zero else low), max(values)


def _levels(chart: Chart, kind: str) -> list[tuple[int | None, float]]:
    """Level lines of a kind: one that belongs to none of the curves (None) if it is the same for all, else one a curve."""
    found: list[tuple[int | None, float]] = []
    for index, curve in enumerate(chart.curves):
        value = curve.bound if kind == "bound" else curve.baseline
        if value is not None:
            found.append((index, value))
    same = len({value for _, value in found}) == 1 and len(found) == len(chart.curves) > 1
    return [(None, found[0][1])] if same else found


def _curve(curve: Curve, index: int, alone: bool, x: _Scale, y: _Scale) -> Iterable[str]:
    for step, number in curve.attempts:
        title = f"<title>{escape(curve.label)}: attempt {number} from step {step}</title>"
        if alone:
            yield f'<g class="attempt">{title}{_line("cut", x(step), TOP, x(step), HEIGHT - BOTTOM, dashes="3 3")}'
            yield _text(x(step), TOP - 5, f"a{number}") + "</g>"
        else:
            foot = HEIGHT - BOTTOM
            yield f'<path class="mark" d="M{x(step):.1f} {foot - 8} l4 8 h-8 z">{title}</path>'
    points = curve.points
    band = [p for p in points if p.low is not None and p.high is not None]
    if len(band) > 1:
        edge = [(p.step, p.high or 0.0) for p in band] + [(p.step, p.low or 0.0) for p in reversed(band)]
        yield f'<polygon class="band" points="{_path(edge, x, y)}"/>'
    if len(points) > 1:
        line = _path([(p.step, p.value) for p in points], x, y)
        yield f'<polyline class="line" points="{line}" stroke-dasharray="{dash(index) if not alone else ""}"/>'
    if len(points) > MOST_DOTS:
        return
    for p in points:
        interval = ""
        if p.low is not None and p.high is not None:
            yield _line("whisker", x(p.step), y(p.low), x(p.step), y(p.high))
            interval = f" [{p.low:.3f}, {p.high:.3f}]"
        radius = 3 if interval else 1.6
        yield (
            f'<circle class="dot" cx="{x(p.step):.1f}" cy="{y(p.value):.1f}" r="{radius}">'
            f"<title>{escape(curve.label)}, step {p.step}: {p.value:.4g}{interval}</title></circle>"
        )


def _path(points: Iterable[tuple[float, float]], x: _Scale, y: _Scale) -> str:
    return " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float, *, dashes: str = "") -> str:
    pattern = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"{pattern}/>'


def _text(x: float, y: float, text: str, *, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
