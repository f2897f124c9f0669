"""Records as tables: one flat schema each, that no later version may change unnoticed."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.ids import INT63_MAX, MessageId, NodeId, StreamId
from shoal.kernel import records
from shoal.kernel.records import RECORD_FORMAT, RECORD_TYPES, ReceivedFirst, Record
from shoal_lab.runs.run_tables import arrow_rows, arrow_schema, table_name
from tests.support import record_golden

INT64 = st.integers(-(2**63), 2**63 - 1)
NODE_IDS = st.binary(min_size=20, max_size=20).map(NodeId)

STREAM_IDS = st.text().map(StreamId)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: INT64,
    str: st.text(),
    bytes: st.binary(max_size=64),
    NodeId: NODE_IDS,
    StreamId: STREAM_IDS,
    MessageId: st.builds(MessageId, STREAM_IDS, INT64, INT64, INT64, NODE_IDS, st.text()),
}

each_record = pytest.mark.parametrize("record", RECORD_TYPES, ids=table_name)


def values_of(record: type[Record]) -> st.SearchStrategy[Record]:
    """Any record of a class."""
    hints = get_type_hints(record)
    return st.builds(record, **{name: VALUES[hints[name]] for name in record.__struct_fields__})


def flat(value: Any) -> list[Any]:
    """The plain values of a record, those of structs inside it in their place."""
    if not isinstance(value, msgspec.Struct):
        return [value]
    return [part for name in value.__struct_fields__ for part in flat(getattr(value, name))]


def test_every_record_class_is_in_the_list() -> None:
    classes = [
        value
        for _, value in inspect.getmembers(records, inspect.isclass)
        if issubclass(value, Record) and value is not Record
    ]
    assert set(RECORD_TYPES) == set(classes)
    assert len(RECORD_TYPES) == len(classes)


def test_table_names_are_unique_and_plain() -> None:
    names = [table_name(record) for record in RECORD_TYPES]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in names)
    assert table_name(ReceivedFirst) == "received_first"


@each_record
def test_a_schema_is_time_and_node_and_then_flat_columns(record: type[Record]) -> None:
    schema = arrow_schema(record)
    assert schema.names[:2] == ["time_ns", "node"]
    assert len(set(schema.names)) == len(schema.names), "two columns of one name"
    assert not any(pa.types.is_nested(field.type) or field.nullable for field in schema)
    assert schema.metadata == {b"shoal.record_format": str(RECORD_FORMAT).encode()}


@each_record
@given(data=st.data())
def test_rows_round_trip(record: type[Record], data: st.DataObject) -> None:
    row = st.tuples(st.integers(0, INT63_MAX), NODE_IDS, values_of(record))
    rows = data.draw(st.lists(row, max_size=3))
    table = arrow_rows(record, rows)
    table.validate(full=True)
    assert table.schema == arrow_schema(record)
    assert [list(row.values()) for row in table.to_pylist()] == [
        [time_ns, node, *flat(value)] for time_ns, node, value in rows
    ]


@each_record
def test_no_rows_make_an_empty_table(record: type[Record]) -> None:
    assert arrow_rows(record, []).num_rows == 0


def test_no_column_has_changed_since_its_format_was_published() -> None:
    golden = json.loads(record_golden.SCHEMAS.read_text())
    broken = record_golden.changed(golden, record_golden.schemas())
    assert not broken, "raise RECORD_FORMAT, then write the golden files of the new format"


def test_the_golden_file_knows_every_table() -> None:
    golden = json.loads(record_golden.SCHEMAS.read_text())
    assert golden == record_golden.schemas(), "run python -m tests.support.record_golden"


@pytest.mark.parametrize(
    "file", sorted(record_golden.GOLDEN.glob("record-v*.parquet")), ids=lambda file: file.name
)
def test_files_of_every_version_open(file: Path) -> None:
    table = pq.read_table(file)
    number = int(table.schema.metadata[b"shoal.record_format"])
    assert file.name == f"record-v{number}.parquet"
    assert number <= RECORD_FORMAT
    schemas = json.loads((record_golden.GOLDEN / f"record-schemas-v{number}.json").read_text())
    assert record_golden.columns(table.schema) == schemas["received_first"]
    assert table.num_rows == len(record_golden.example_rows())


def test_the_golden_rows_are_what_this_version_writes() -> None:
    written = arrow_rows(ReceivedFirst, record_golden.example_rows())
    assert pq.read_table(record_golden.ROWS).equals(written, check_metadata=True)


def test_a_changed_column_is_noticed_and_a_new_table_is_not() -> None:
    golden = {"a": [["time_ns", "int64"]], "b": [["time_ns", "int64"]]}
    assert record_golden.changed(golden, golden | {"c": []}) == []
    assert record_golden.changed(golden, golden | {"b": [["time_us", "int64"]]}) == ["b"]
    assert record_golden.changed(golden, {"a": golden["a"]}) == ["b"]
