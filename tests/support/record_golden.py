"""Golden files of the record format: python -m tests.support.record_golden writes them.

A table may be added at any time. A column that changes or goes needs a new RECORD_FORMAT, and
the files of the old one stay: every later version opens them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.base.ids import MessageId, StreamId
from shoal.kernel.records import RECORD_FORMAT, RECORD_TYPES, ReceivedFirst, Record
from shoal_lab.runs.run_tables import arrow_rows, arrow_schema, table_name
from tests.support.machines import peer_id

GOLDEN = Path(__file__).parents[1] / "golden"
SCHEMAS = GOLDEN / f"record-schemas-v{RECORD_FORMAT}.json"
ROWS = GOLDEN / f"record-v{RECORD_FORMAT}.parquet"

Schemas = dict[str, list[list[str]]]


def schemas() -> Schemas:
    """Table -> [column, type] of all records there are now."""
    return {table_name(record): columns(arrow_schema(record)) for record in RECORD_TYPES}


def columns(schema: pa.Schema) -> list[list[str]]:
    """Name and type of each column, in order."""
    return [[field.name, str(field.type)] for field in schema]


def changed(golden: Schemas, current: Schemas) -> list[str]:
    """Tables of the golden file that are not the same any more."""
    return [table for table, columns in golden.items() if current.get(table) != columns]


def example_rows() -> list[tuple[int, bytes, Record]]:
    """A few rows with every kind of value, at both ends of their range."""
    first = MessageId(StreamId("0xabc/ä"), 0, 0, 0, peer_id(1), "1")
    last = MessageId(StreamId("s" * 256), 99, 2**63 - 1, 2**63 - 1, peer_id(2**160 - 1), "c" * 32)
    return [
        (1_767_225_600_000_000_000, peer_id(3), ReceivedFirst(first, peer_id(4), 1, 0)),
        (2**63 - 1, peer_id(5), ReceivedFirst(last, peer_id(6), 32, 2**63 - 1)),
    ]


def write() -> None:
    """Write what is missing; refuse to change what is there."""
    if SCHEMAS.exists():
        broken = changed(json.loads(SCHEMAS.read_text()), schemas())
        if broken:
            raise SystemExit(f"{', '.join(broken)} changed: raise RECORD_FORMAT first")
    tables = ",\n".join(f"  {json.dumps(t)}: {json.dumps(c)}" for t, c in schemas().items())
    SCHEMAS.write_text(f"{{\n{tables}\n}}\n")
    if not ROWS.exists():
        pq.write_table(arrow_rows(ReceivedFirst, example_rows()), ROWS, compression="zstd")


if __name__ == "__main__":
    write()
