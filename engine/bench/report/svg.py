"""Charts as SVG text. Colours come from the page's style sheet, so that they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 420, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 14, 40
_BAR, _BAR_GAP = 20, 12
_ROW = 15 + _BAR + _BAR_GAP
_CHARACTER = 6.3
"""Units of the picture that a character of a label takes."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a chart: its name, its points, and whether it is dotted. ``colour`` is the number of a colour class."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    dotted: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: its label, its value with its text, its colour, and the lowest and highest value of its repetitions."""

    label: str
    value: float
    text: str
    colour: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Stack:
    """A bar of several parts: its label, the text at its end, and the name, the value and the colour of each part."""

    label: str
    text: str
    parts: Sequence[tuple[str, float, int]]


def nice_ticks(highest: float) -> list[float]:
    """About five ticks from 0 to at least ``highest``: multiples of 1, 2 or 5 times a power of ten."""
    if highest <= 0 or not math.isfinite(highest):
        return [0.0, 1.0]
    rough = highest / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [step * index for index in range(math.ceil(highest / step - 1e-9) + 1)]


def short(value: float) -> str:
    """A number of about three digits: ``0.25``, ``12``, ``3.4k``, ``1.2M``."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def line_chart(curves: Sequence[Curve], x_label: str, y_label: str) -> str:
    """A chart of curves over a logarithmic axis where its values span a factor of eight, else a linear one.

    Every tick of x is one of the values.
    """
    xs = sorted({x for curve in curves for x, _ in curve.points})
    ticks = nice_ticks(max(y for curve in curves for _, y in curve.points))
    logarithmic = xs[0] > 0 and xs[-1] >= 8 * xs[0]

    def across(x: float) -> float:
        if len(xs) == 1:
            return (_LEFT + WIDTH - _RIGHT) / 2
        low, high, at = (math.log(xs[0]), math.log(xs[-1]), math.log(x)) if logarithmic else (xs[0], xs[-1], x)
        return _LEFT + (at - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)

    def up(y: float) -> float:
        return HEIGHT - _BOTTOM - y / ticks[-1] * (HEIGHT - _TOP - _BOTTOM)

    parts = [_horizontal(up(tick), short(tick)) for tick in ticks]
    last = -math.inf
    for x in xs:
        text = short(x)
        if across(x) - last > _CHARACTER * (len(text) + 1.5):  # no label runs into the one before
            parts.append(_text(across(x), HEIGHT - _BOTTOM + 16, text, "middle"))
            last = across(x)
    for curve in curves:
        points = [(across(x), up(y)) for x, y in sorted(curve.points)]
        style = f"c{curve.colour}" + (" dotted" if curve.dotted else "")
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="curve {style}" points="{path}"/>')
        for (x, y), (raw_x, raw_y) in zip(points, sorted(curve.points), strict=True):
            title = f"{curve.name}: {short(raw_y)} at {short(raw_x)}"
            parts.append(
                f'<circle class="dot {style}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{escape(title)}</title></circle>'
            )
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 6, x_label, "middle"))
    return _picture(WIDTH, HEIGHT, f"{y_label} by {x_label}", parts)


def bar_chart(bars: Sequence[Bar], label: str) -> str:
    """Horizontal bars with their labels above them and their numbers at their ends. A thin line shows the spread."""
    highest = max([bar.high for bar in bars] + [1e-12])
    room = _room([bar.text for bar in bars])
    parts = []
    for index, bar in enumerate(bars):
        length = max(bar.value / highest * room, 1)
        parts += [_name(index, bar.label), _bar(index, 0, length, bar.colour, f"{bar.label}: {bar.text}")]
        if bar.high > bar.low:
            y = index * _ROW + 17 + _BAR / 2
            x1, x2 = bar.low / highest * room, bar.high / highest * room
            parts.append(f'<line class="spread" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y}" y2="{y}"/>')
        parts.append(_end(index, max(length, bar.high / highest * room), bar.text))
    return _picture(WIDTH, len(bars) * _ROW + 4, label, parts)


def stack_chart(stacks: Sequence[Stack], label: str) -> str:
    """Horizontal bars of several parts, with their labels above them and their sums at their ends."""
    highest = max([sum(value for _, value, _ in stack.parts) for stack in stacks] + [1e-12])
    room = _room([stack.text for stack in stacks])
    parts = []
    for index, stack in enumerate(stacks):
        parts.append(_name(index, stack.label))
        x = 0.0
        for name, value, colour in stack.parts:
            length = value / highest * room
            parts.append(_bar(index, x, length, colour, f"{stack.label}, {name}: {short(value)}"))
            x += length
        parts.append(_end(index, x, stack.text))
    return _picture(WIDTH, len(stacks) * _ROW + 4, label, parts)


def _room(texts: Sequence[str]) -> float:
    """The width that bars may have beside the texts at their ends."""
    return WIDTH - 12 - _CHARACTER * (max(map(len, texts)) + 1)


def _name(index: int, label: str) -> str:
    fits = int((WIDTH - 8) / _CHARACTER)
    return _text(0, index * _ROW + 12, label if len(label) <= fits else label[: fits - 1] + "…", "start")


def _bar(index: int, x: float, length: float, colour: int, title: str) -> str:
    y = index * _ROW + 17
    return (
        f'<rect class="bar c{colour}" x="{x:.1f}" y="{y}" width="{length:.1f}" height="{_BAR}" rx="2">'
        f"<title>{escape(title)}</title></rect>"
    )


def _end(index: int, x: float, text: str) -> str:
    return _text(x + 5, index * _ROW + 17 + _BAR * 0.72, text, "start")


def _horizontal(y: float, text: str) -> str:
    line = f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return line + _text(_LEFT - 6, y + 4, text, "end")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _picture(width: int, height: int, label: str, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
