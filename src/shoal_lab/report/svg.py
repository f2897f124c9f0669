"""Pictures as SVG: lines over a linear or doubling axis, and matrices. No more than reports need.

Everything is inline: no script, no font, no file. Colours are those of Okabe and Ito, which people
who see fewer colours tell apart too; the first is for us, grey for what was published.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from html import escape
from itertools import pairwise

import msgspec

WIDTH, HEIGHT = 640, 380
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 14, 48
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#333333")
PUBLISHED = "#8a8f98"
INK, GRID = "#24292f", "#e3e6ea"
FONT = "font-family='system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif'"
TICKS = 6
LENGTHS = (0, 5, 20, 50, 100, math.inf)
"""Milliseconds at which the colour of a link changes."""
LENGTH_COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00")


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """A line, with what it lies between if that is known."""

    name: str
    points: tuple[tuple[float, float], ...]
    colour: str
    spread: tuple[tuple[float, float], ...] = ()
    """Least and most at each point."""
    dashed: bool = False
    dots: bool = True


class _Axis:
    """Numbers to places on the page."""

    def __init__(self, low: float, high: float, begin: float, end: float, doubling: bool) -> None:
        self._doubling = doubling
        self._low, self._high = self._scale(low), self._scale(high)
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        part = (self._scale(value) - self._low) / ((self._high - self._low) or 1)
        return round(self._begin + part * (self._end - self._begin), 1)

    def _scale(self, value: float) -> float:
        return math.log2(value) if self._doubling else value


def line_chart(
    series: Sequence[Series],
    *,
    x_title: str,
    y_title: str,
    doubling: bool = False,
    y_max: float | None = None,
    keep_x: bool = False,
) -> str:
    """Lines, with a legend. `doubling`: each step of x is twice the one before; `keep_x`: ticks
    are where points are."""
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points]
    ys += [value for line in series for pair in line.spread for value in pair]
    x_ticks = sorted(set(xs)) if keep_x or doubling else nice_ticks(min(0.0, *xs), max(xs))
    y_ticks = nice_ticks(0, max(ys) if y_max is None else y_max)
    x_axis = _Axis(x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT, doubling)
    y_axis = _Axis(0, y_ticks[-1], HEIGHT - BOTTOM, TOP, False)
    parts = [*_grid(x_axis, x_ticks, y_axis, y_ticks), *_titles(x_title, y_title)]
    for line in series:
        parts += _line(line, x_axis, y_axis)
    return _svg(WIDTH, HEIGHT, [*parts, *_legend(series)], f"{y_title} over {x_title}")


def heat_map(cells: Sequence[Sequence[float]], *, title: str, nodes: int) -> str:
    """A square matrix as shades between its least and its greatest value, with a scale."""
    size, top = 360, 10
    low = min(min(row) for row in cells)
    high = max(max(row) for row in cells)
    scale = (high - low) or 1.0
    image = _png([[(value - low) / scale for value in row] for row in cells])
    ramp = _png([[1 - i / 63] for i in range(64)])
    parts = [
        _image(image, LEFT, top, size, size),
        f"<rect x='{LEFT}' y='{top}' width='{size}' height='{size}' fill='none' stroke='{INK}'/>",
        _image(ramp, LEFT + size + 24, top, 14, size),
        _text(LEFT + size + 44, top + 10, f"{high:.5f}"),
        _text(LEFT + size + 44, top + size, f"{low:.5f}"),
        _text(LEFT, top + size + 18, "0", "middle"),
        _text(LEFT + size, top + size + 18, f"{nodes:,}", "middle"),
        _text(LEFT + size / 2, top + size + 34, title, "middle"),
        _text(LEFT - 8, top + 10, "0", "end"),
        _text(LEFT - 8, top + size, f"{nodes:,}", "end"),
    ]
    return _svg(LEFT + size + 110, top + size + 46, parts, title)


def link_map(
    places: Sequence[tuple[float, float]], links: Sequence[tuple[int, int, float]], *, title: str
) -> str:
    """Lines between places of the unit square, coloured by length, the shortest on top. With a
    legend that says how many there are of each colour."""
    size, top = 460, 10
    spots = [(LEFT + x * size, top + (1 - y) * size) for x, y in places]
    parts = []
    for number, (low, high) in reversed(list(enumerate(pairwise(LENGTHS)))):
        colour = LENGTH_COLOURS[number]
        here = [(a, b) for a, b, length in links if low <= length < high]
        # One path for all of a colour: a line each would be four times the text.
        path = "".join(
            f"M{spots[a][0]:.1f} {spots[a][1]:.1f}L{spots[b][0]:.1f} {spots[b][1]:.1f}"
            for a, b in here
        )
        parts.append(f"<path d='{path}' fill='none' stroke='{colour}' stroke-opacity='.55'/>")
        y = top + 14 + 20 * number
        said = f"{low:g} ms or more" if math.isinf(high) else f"{low:g} to {high:g} ms"
        parts.append(_rule(LEFT + size + 24, y, LEFT + size + 48, y, colour))
        parts.append(_text(LEFT + size + 56, y + 4, f"{said}: {len(here):,}"))
    parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='1.4'/>" for x, y in spots]
    parts.append(_text(LEFT + size / 2, top + size + 20, title, "middle"))
    return _svg(LEFT + size + 220, top + size + 30, parts, title)


def nice_ticks(low: float, high: float, count: int = TICKS) -> list[float]:
    """Round numbers from low, or just below it, to just above high."""
    span = (high - low) or 1.0
    rough = span / count
    unit = 10 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= rough)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, max(last, first + 1) + 1)]


def _grid(
    x_axis: _Axis, x_ticks: Sequence[float], y_axis: _Axis, y_ticks: Sequence[float]
) -> list[str]:
    bottom, parts = HEIGHT - BOTTOM, []
    for tick in y_ticks:
        y = y_axis.at(tick)
        parts.append(_rule(LEFT, y, WIDTH - RIGHT, y, GRID))
        parts.append(_text(LEFT - 8, y + 4, _number(tick), "end"))
    for tick in x_ticks:
        x = x_axis.at(tick)
        parts.append(_rule(x, bottom, x, bottom + 5, INK))
        parts.append(_text(x, bottom + 19, _number(tick), "middle"))
    parts.append(_rule(LEFT, bottom, WIDTH - RIGHT, bottom, INK))
    return parts


def _titles(x_title: str, y_title: str) -> list[str]:
    middle = TOP + (HEIGHT - BOTTOM - TOP) / 2
    return [
        _text(LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 8, x_title, "middle"),
        f"<g transform='rotate(-90 15 {middle})'>{_text(15, middle, y_title, 'middle')}</g>",
    ]


def _line(line: Series, x_axis: _Axis, y_axis: _Axis) -> list[str]:
    places = [(x_axis.at(x), y_axis.at(y)) for x, y in line.points]
    path = " ".join(f"{x:g},{y:g}" for x, y in places)
    dash = " stroke-dasharray='6 4'" if line.dashed else ""
    parts = [
        f"<polyline points='{path}' fill='none' stroke='{line.colour}' stroke-width='2'"
        f" stroke-linejoin='round'{dash}/>"
    ]
    for (x, _), (low, high) in zip(places, line.spread, strict=False):
        top, bottom = y_axis.at(high), y_axis.at(low)
        parts.append(_rule(x, top, x, bottom, line.colour))
        parts += [_rule(x - 4, y, x + 4, y, line.colour) for y in (top, bottom)]
    if line.dots:
        parts += [
            f"<circle cx='{x:g}' cy='{y:g}' r='3.2' fill='{line.colour}'/>" for x, y in places
        ]
    return parts


def _legend(series: Sequence[Series]) -> list[str]:
    """Where lines that grow to the right leave room: at the top, left."""
    parts = []
    for number, line in enumerate(series):
        y = TOP + 12 + 17 * number
        dash = " stroke-dasharray='6 4'" if line.dashed else ""
        parts.append(
            f"<line x1='{LEFT + 12}' y1='{y}' x2='{LEFT + 36}' y2='{y}' stroke='{line.colour}'"
            f" stroke-width='2.5'{dash}/>"
        )
        parts.append(_text(LEFT + 43, y + 4, line.name))
    return parts


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f"<line x1='{x1:g}' y1='{y1:g}' x2='{x2:g}' y2='{y2:g}' stroke='{colour}'/>"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f"<text x='{x:g}' y='{y:g}' text-anchor='{anchor}'>{escape(text)}</text>"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _svg(width: float, height: float, parts: Sequence[str], label: str) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:g} {height:g}'"
        f" width='{width:g}' height='{height:g}' role='img' aria-label='{escape(label)}'"
        f" {FONT} font-size='12' fill='{INK}'>{''.join(parts)}</svg>"
    )


def _image(png: bytes, x: float, y: float, width: float, height: float) -> str:
    data = base64.b64encode(png).decode()
    return (
        f"<image x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}'"
        f" preserveAspectRatio='none' style='image-rendering:pixelated'"
        f" href='data:image/png;base64,{data}'/>"
    )


def _png(shades: Sequence[Sequence[float]]) -> bytes:
    """A grey picture, 1 the darkest: ten thousand rectangles would be half a megabyte of text."""
    rows = b"".join(b"\0" + bytes(round(255 * (1 - shade)) for shade in row) for row in shades)
    header = struct.pack(">IIBBBBB", len(shades[0]), len(shades), 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
