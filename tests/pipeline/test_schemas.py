"""The schemas of a run's tables: the same in Arrow, in Spark, and in what is on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from shoal.kernel.records import RECORD_TYPES, RUN_FORMAT
from shoal_lab.runs.run_frames import spark_schema
from shoal_lab.runs.run_tables import (
    GATHERED_RECORDS,
    KEPT_RECORDS,
    RUN_TABLES,
    arrow_schema,
    run_table_schema,
)

GOLDEN = Path(__file__).parents[1] / "golden" / f"run-tables-v{RUN_FORMAT}.json"

each_table = pytest.mark.parametrize("table", RUN_TABLES)


@each_table
def test_arrow_and_spark_agree(table: str) -> None:
    assert spark_schema(table) == from_arrow_schema(run_table_schema(table))


@each_table
def test_a_table_begins_with_its_run_and_is_flat(table: str) -> None:
    schema = run_table_schema(table)
    assert schema.names[0] == "run"
    assert len(set(schema.names)) == len(schema.names), "two columns of one name"
    assert not any(pa.types.is_nested(field.type) or field.nullable for field in schema)
    assert schema.metadata[b"shoal.run_format"] == str(RUN_FORMAT).encode()


def test_every_record_is_gathered_or_kept() -> None:
    assert {*GATHERED_RECORDS, *KEPT_RECORDS.values()} == set(RECORD_TYPES)
    for name, record in KEPT_RECORDS.items():
        assert run_table_schema(name).names[1:] == arrow_schema(record).names


def test_no_column_has_changed_since_the_format_was_published() -> None:
    """A table may be added: write it into the golden file. A change needs a new RUN_FORMAT."""
    golden = json.loads(GOLDEN.read_text())
    current = {
        table: [[field.name, str(field.type)] for field in run_table_schema(table)]
        for table in RUN_TABLES
    }
    assert golden == current
