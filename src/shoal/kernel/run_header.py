"""The folder of a run: the file that says what is in it. Columns of its tables are tables.py, which
loads Arrow."""

from __future__ import annotations

import msgspec

RUN_FORMAT = 1  # grows when a column changes its meaning; readers refuse what they do not know

RUN_FILE = "run.json"
"""In the folder of a run, beside one NAME.parquet per table; whatever else ends in .parquet and
begins with a table's name and a hyphen is a further part of that table."""


class RunHeader(msgspec.Struct, frozen=True):
    """What a reader must find in a run's file; whatever else is there is for people."""

    format: int
    run: str
    tables: dict[str, int]
    """Rows of each table."""
