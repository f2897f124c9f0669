"""What a report consists of, before it is a page: sections of text, tables and pictures."""

from __future__ import annotations

from typing import Literal

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


Against = Literal["source", "derived", "theory", "simulator", "own"]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of ours, and what it is held against."""

    figure: str
    point: str
    against: Against = "source"
    published: float | None = None
    """By a source. None if it says between what alone, or if no source has it."""
    expected: float | None = None
    """Where no source has it: derived from what one has, by theory or the simulator, or our own
    limit."""
    spread: tuple[float, float] | None = None
    """What the source measured at least and at most, or what theory allows."""
    ours: float
    tolerance: float = 0.0
    """How far from the published or expected value counts as reproduced, outside the spread."""
    at_most: bool = False
    """An error: anything up to the value is as good."""

    @property
    def reference(self) -> float | None:
        """The value that ours is held against; None if there is a spread alone."""
        return self.expected if self.published is None else self.published

    @property
    def difference(self) -> float | None:
        """Ours against that value, as a part of it."""
        return self.ours / self.reference - 1 if self.reference else None

    @property
    def inside(self) -> bool | None:
        """Whether ours lies inside the spread; None if there is none."""
        return None if self.spread is None else self.spread[0] <= self.ours <= self.spread[1]

    @property
    def reproduced(self) -> bool:
        """Inside the spread, or within the tolerance."""
        if self.inside or self.reference is None:
            return bool(self.inside)
        apart = self.ours - self.reference
        return (apart if self.at_most else abs(apart)) <= self.tolerance * abs(self.reference)

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


class Failure(msgspec.Struct, frozen=True):
    """A section that could not be made of what was collected."""

    section: str
    text: str

    def __str__(self) -> str:
        return f"section {self.section}: {self.text}"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A page."""

    title: str
    summary: tuple[str, ...]
    sections: tuple[Section, ...]
    comparisons: tuple[Comparison, ...]
    failures: tuple[Failure, ...] = ()
