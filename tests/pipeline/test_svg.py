"""Pictures: what is where. No JVM here."""

from __future__ import annotations

import base64
import struct
import zlib
from xml.etree import ElementTree

import pytest

from shoal_lab.report.svg import (  # fmt: skip
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Series,
    heat_map,
    line_chart,
    nice_ticks,
)

SVG = "{http://www.w3.org/2000/svg}"


def series(*points: tuple[float, float], **more: object) -> Series:
    return Series(name="a <b>", points=points, colour="#123456", **more)  # type: ignore[arg-type]


def places(svg: str) -> list[tuple[float, float]]:
    line = ElementTree.fromstring(svg).find(f".//{SVG}polyline")
    assert line is not None
    pairs = (pair.split(",") for pair in line.attrib["points"].split())
    return [(float(x), float(y)) for x, y in pairs]


def texts(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_points_lie_where_the_axes_say() -> None:
    svg = line_chart([series((0, 0), (50, 5), (100, 10))], x_title="x & y", y_title="z")
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    assert places(svg) == [
        (LEFT, bottom), ((LEFT + right) / 2, (TOP + bottom) / 2), (right, TOP),
    ]  # fmt: skip
    assert {"x & y", "z", "a <b>", "100", "10"} <= set(texts(svg))


def test_doubling_axes_have_a_tick_per_size_at_equal_steps() -> None:
    svg = line_chart(
        [series((32, 1), (64, 1), (128, 1))], x_title="nodes", y_title="y", doubling=True
    )
    (a, _), (b, _), (c, _) = places(svg)
    assert b - a == pytest.approx(c - b, abs=0.11)
    assert [text for text in texts(svg) if text in ("32", "64", "96", "128")] == ["32", "64", "128"]


def test_spreads_are_bars_and_widen_the_axis() -> None:
    svg = line_chart([series((1, 5), (2, 6), spread=((4, 5), (6, 20)))], x_title="", y_title="")
    assert "20" in texts(svg)
    assert svg.count("stroke='#123456'/>") == 6, "a bar and two ends each"


def test_one_point_alone_can_be_drawn() -> None:
    svg = line_chart([series((32, 7))], x_title="", y_title="", doubling=True)
    assert len(places(svg)) == 1


@pytest.mark.parametrize(
    ("high", "expected"),
    [
        (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (300, [0, 50, 100, 150, 200, 250, 300]),
        (301, [0, 100, 200, 300, 400]),
        (0, [0, 0.2]),
        (13, [0, 2.5, 5, 7.5, 10, 12.5, 15]),
    ],
)
def test_ticks_are_round_and_reach_the_top(high: float, expected: list[float]) -> None:
    assert nice_ticks(0, high) == expected


def test_a_matrix_is_a_picture_of_its_cells() -> None:
    svg = heat_map([[0.0, 0.5], [0.5, 1.0]], title="pairs", nodes=1000)
    image = ElementTree.fromstring(svg).find(f".//{SVG}image")
    assert image is not None
    head, data = image.attrib["href"].split(",")
    assert head == "data:image/png;base64"
    png = base64.b64decode(data)
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    (length,) = struct.unpack(">I", png[33:37])
    assert zlib.decompress(png[41 : 41 + length]) == b"\0\xff\x80\0\x80\x00"
    assert {"0.00000", "1.00000", "1,000"} <= set(texts(svg))


def test_a_flat_matrix_can_be_drawn() -> None:
    assert "data:image/png" in heat_map([[0.5]], title="", nodes=1)
