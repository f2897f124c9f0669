"""What a report consists of, before it is a page: sections of text, tables and pictures."""

from __future__ import annotations

import msgspec


class Text(msgspec.Struct, frozen=True, tag="text"):
    """A paragraph."""

    text: str


class Table(msgspec.Struct, frozen=True, kw_only=True, tag="table"):
    """Rows of cells, as they are shown."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    """So many columns hold words; the others numbers, which line up on the right."""
    folded: bool = False
    """Long, and not what most readers came for."""


class Figure(msgspec.Struct, frozen=True, kw_only=True, tag="figure"):
    """A picture, as SVG."""

    caption: str
    svg: str


Block = Text | Table | Figure


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment, or one thing to say about all of them."""

    title: str
    blocks: tuple[Block, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One published figure and ours."""

    figure: str
    point: str
    published: float
    spread: tuple[float, float] | None
    """What the source measured at least and at most, or says is to be expected."""
    ours: float
    tolerance: float = 0.0
    """How far from the published value counts as reproduced, outside the spread."""
    at_most: bool = False
    """An error: anything up to the published value is as good."""

    @property
    def difference(self) -> float:
        """Ours against the published value, as a part of it."""
        return self.ours / self.published - 1 if self.published else 0.0

    @property
    def inside(self) -> bool | None:
        """Whether ours lies inside the published spread; None if there is none."""
        return None if self.spread is None else self.spread[0] <= self.ours <= self.spread[1]

    @property
    def reproduced(self) -> bool:
        """Inside the spread, or within the tolerance."""
        near = self.difference if self.at_most else abs(self.difference)
        return bool(self.inside) or near <= self.tolerance

    @property
    def verdict(self) -> str:
        """In words."""
        if self.inside:
            return "inside"
        if self.at_most:
            return "no higher" if self.reproduced else "higher"
        if self.tolerance and self.reproduced:
            return f"within {100 * self.tolerance:g} %"
        return "outside"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A page."""

    title: str
    summary: tuple[str, ...]
    sections: tuple[Section, ...]
    comparisons: tuple[Comparison, ...]
