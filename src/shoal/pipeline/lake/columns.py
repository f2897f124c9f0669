"""The columns of a lake's two tables: where a record is from, its content, and the day it is of.

Both are partitioned by day only. A stream's id has up to 256 characters of any kind, which no
folder's name may have; files hold one stream each until they are compacted, and say which, so that
readers skip those of others.
"""

from __future__ import annotations

import pyarrow as pa

from shoal.pipeline.lake.shapes import TIMESTAMP

DATA = "data"
"""The parsed content, a struct: its fields may have the names of the columns beside it."""
DATE = "date"
"""The day, in UTC, of the publisher's timestamp; of the ingest where there is none."""
REASON = "reason"

ORIGIN = pa.schema(
    [
        ("stream", pa.string()),
        ("partition", pa.int32()),
        ("log", pa.string()),
        ("seq", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("ingest_timestamp", TIMESTAMP),
        ("sequence", pa.int64()),
        ("publisher", pa.string()),
        ("chain", pa.string()),
        ("key", pa.string()),
    ]
)
"""As the source of Spark has them."""

CONTENT, ERROR = "content", "error"
NEEDED = (*ORIGIN.names, CONTENT, ERROR)
"""What a frame must have to be landed."""

LANDED = ORIGIN.append(pa.field(DATE, pa.date32()))
"""Without content: that is added with its first fields."""
QUARANTINED = (
    ORIGIN.append(pa.field(CONTENT, pa.binary()))
    .append(pa.field(REASON, pa.string()))
    .append(pa.field(DATE, pa.date32()))
)
