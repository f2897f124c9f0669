"""How long a message takes between two places."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Protocol

import msgspec

from shoal.base.errors import ConfigError
from shoal.base.units import MS_NS, ns_of_ms

BUILT_IN = {
    "aws": "aws-one-way-delay-ms.tsv",
    "sphere": "sphere-seed-1-ms.tsv.gz",
    "transit-stub": "transit-stub-seed-1-ms.tsv.gz",
}
"""Regions as they were measured, and places of single nodes as underlays.py draws them."""


class DelayModel(Protocol):
    """The one-way delay between nodes, by their number in the simulation."""

    def one_way_ns(self, sender: int, receiver: int) -> int:
        """From sender to receiver; need not be symmetric."""
        ...

    def region(self, node: int) -> str:
        """Where a node is, for reports."""
        ...


class ConstantDelay(msgspec.Struct, frozen=True):
    """The same delay between any two nodes."""

    delay_ns: int = 50 * MS_NS

    def one_way_ns(self, sender: int, receiver: int) -> int:
        return self.delay_ns

    def region(self, node: int) -> str:
        return "everywhere"


class RegionTable(msgspec.Struct, frozen=True):
    """One-way delays between named regions."""

    names: tuple[str, ...]
    delays_ns: tuple[tuple[int, ...], ...]

    def mean_ns(self) -> float:
        """Mean over all ordered pairs of regions, a region with itself included."""
        return sum(map(sum, self.delays_ns)) / len(self.names) ** 2


class RegionDelay:
    """Nodes spread evenly over the regions of a table, in turn, or placed by name."""

    def __init__(self, table: RegionTable, places: Sequence[str] | None = None) -> None:
        self.table = table
        self._rows = table.delays_ns
        self._count = len(table.names)
        self._places: list[int] | None = None
        if places is not None:
            unknown = [p for p in places if p not in table.names]
            if unknown:
                raise ConfigError(
                    f"unknown region {unknown[0]!r}: the table has {', '.join(table.names)}"
                )
            self._places = [table.names.index(p) for p in places]

    def one_way_ns(self, sender: int, receiver: int) -> int:
        return self._rows[self._row(sender)][self._row(receiver)]

    def region(self, node: int) -> str:
        return self.table.names[self._row(node)]

    def _row(self, node: int) -> int:
        if self._places is not None:
            return self._places[node % len(self._places)]
        return node % self._count


def table_of(model: DelayModel, nodes: Sequence[int]) -> RegionTable:
    """The regions that these nodes are in, by name. One node stands for all of its region: that
    is all that models know."""
    first = {model.region(node): node for node in reversed(nodes)}
    names = tuple(sorted(first))
    return RegionTable(
        names,
        tuple(tuple([model.one_way_ns(first[a], first[b]) for b in names]) for a in names),
    )


def load_table(name_or_path: str) -> RegionTable:
    """A table that ships with Shoal ("aws"), or any TSV file, also as .gz: a header of region
    names, then a row per region with its name and its one-way delay in ms to each."""
    if name_or_path in BUILT_IN:
        table = files("shoal.sim").joinpath("data", BUILT_IN[name_or_path])
        return parse_table(_unpacked(table.read_bytes(), table.name), name_or_path)
    content = _read_table(name_or_path)
    try:
        return parse_table(_unpacked(content, name_or_path), name_or_path)
    except (EOFError, OSError, UnicodeDecodeError, zlib.error) as error:
        raise ConfigError(f"{name_or_path}: no delay table can be read: {error}") from error


def digest_table(path: str) -> str:
    """Of a TSV file as it is now: it changes with the table."""
    return blake2b(_read_table(path), digest_size=16).hexdigest()


def _read_table(path: str) -> bytes:
    file = Path(path)
    if not file.is_file():
        raise ConfigError(
            f"no delay table {path!r}: give a TSV file or one of {', '.join(BUILT_IN)}"
        )
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: no delay table can be read: {error}") from error


def _unpacked(content: bytes, name: str) -> str:
    return (gzip.decompress(content) if name.endswith(".gz") else content).decode()


def parse_table(text: str, source: str) -> RegionTable:
    """Read a table, refusing one that is not square or not of delays."""
    numbered = enumerate(text.splitlines(), start=1)
    lines = [(number, line.split("\t")) for number, line in numbered if line.strip()]
    if len(lines) < 2:
        raise ConfigError(f"{source}: a delay table needs a header and a row per region")
    header, *body = lines
    names = tuple(cell.strip() for cell in header[1][1:])
    if not names or len(dict.fromkeys(names)) < len(names) or not all(names):
        raise ConfigError(f"{source}, row {header[0]}: a header names every region once")
    rows: list[tuple[int, ...]] = []
    # A large table has the same few thousand delays over and over: each is read once, and is one
    # object.
    known: dict[str, int] = {}
    for number, cells in body:
        if len(cells) != len(names) + 1:
            raise ConfigError(
                f"{source}, row {number}: {len(cells) - 1} delays, but {len(names)} regions"
            )
        if cells[0].strip() != names[min(len(rows), len(names) - 1)]:
            raise ConfigError(
                f"{source}, row {number}: {cells[0]!r} out of order: "
                "rows name the regions in the order of the header"
            )
        known |= {cell: _delay_ns(cell, source, number) for cell in cells[1:] if cell not in known}
        rows.append(tuple([known[cell] for cell in cells[1:]]))
    if len(rows) != len(names):
        raise ConfigError(f"{source}: {len(names)} regions in the header, {len(rows)} rows")
    return RegionTable(names, tuple(rows))


def _delay_ns(cell: str, source: str, row: int) -> int:
    try:
        delay_ms = float(cell)
    except ValueError:
        delay_ms = -1.0
    if not 0 <= delay_ms < 3_600_000:
        raise ConfigError(f"{source}, row {row}: {cell!r} is not a delay in milliseconds")
    return ns_of_ms(delay_ms)
