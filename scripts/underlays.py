"""The delay tables of underlays that ship with Shoal, made anew.

    python -m scripts.underlays            writes them where they belong
    python -m scripts.underlays FOLDER     or elsewhere, to compare

A thousand places each, one way in milliseconds, in steps of 0.1. The seed is in the file's name. A
test makes them too, and compares: run this after a change of
src/shoal_lab/scenarios/delay_tables.py.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Callable
from pathlib import Path

from shoal.base.units import MS_NS
from shoal.sim.delays import BUILT_IN, RegionTable
from shoal_lab.scenarios.delay_tables import sphere, transit_stub

PLACES = 1000
SEED = 1
MAKERS: dict[str, Callable[[int, int], RegionTable]] = {
    "sphere": sphere,
    "transit-stub": transit_stub,
}
DATA = Path(__file__).parents[1] / "src" / "shoal" / "sim" / "data"


def table_text(table: RegionTable) -> str:
    """As TSV, which load_table reads."""
    shown = {delay_ns: f"{delay_ns / MS_NS:g}" for row in table.delays_ns for delay_ns in row}
    lines = ["\t".join(["from", *table.names])]
    for name, row in zip(table.names, table.delays_ns, strict=True):
        lines.append("\t".join([name, *(shown[delay_ns] for delay_ns in row)]))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=DATA, help="where they go")
    folder: Path = parser.parse_args().folder
    for name, make in MAKERS.items():
        file = folder / BUILT_IN[name]
        # Without the time of day: the same table is the same file.
        file.write_bytes(gzip.compress(table_text(make(PLACES, SEED)).encode(), 9, mtime=0))
        print(f"{file}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
