"""Messages of vehicles as the rows that format("shoal") gives, without a network."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shoal_city.fleet.fleet import Message
from shoal_city.tables.keyed_rules import Seen

SOURCE = pa.schema(
    [
        ("stream", pa.string()), ("partition", pa.int32()), ("log", pa.string()),
        ("seq", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")),
        ("ingest_timestamp", pa.timestamp("us", "UTC")), ("sequence", pa.int64()),
        ("publisher", pa.string()), ("chain", pa.string()), ("key", pa.string()),
        ("content", pa.binary()), ("value", pa.string()), ("error", pa.string()),
    ]
)  # fmt: skip
SPARK_SOURCE = (
    "stream string, partition int, log string, seq long, timestamp timestamp, "
    "ingest_timestamp timestamp, sequence long, publisher string, chain string, key string, "
    "content binary, value string, error string"
)
START_MS = 1_772_348_400_000
STORED_AFTER_MS = 20
PARTITIONS = 2


def source_rows(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Rows in the order of the messages, as storage would append them."""
    seqs = Counter[int]()
    rows = []
    for message in messages:
        partition = sum(message.vehicle.encode()) % PARTITIONS
        seqs[partition] += 1
        rows.append(
            source_row(message.content, message.sent_ms, seq=seqs[partition], partition=partition)
        )
    return rows


def source_row(
    content: bytes,
    sent_ms: int,
    *,
    seq: int = 1,
    partition: int = 0,
    stored_after_ms: int = STORED_AFTER_MS,
    as_text: bool = False,
    error: str | None = None,
) -> dict[str, Any]:
    """As if it was published as bytes; the value is there if it was published as text."""
    return {
        "stream": "0x0/city/vehicles", "partition": partition, "log": f"log-{partition}",
        "seq": seq, "timestamp": sent_ms * 1000,
        "ingest_timestamp": (sent_ms + stored_after_ms) * 1000, "sequence": 0,
        "publisher": "0x0", "chain": "1", "key": None, "content": content,
        "value": content.decode() if as_text else None,
        "error": error,
    }  # fmt: skip


def write_source(folder: Path, batches: Sequence[Sequence[dict[str, Any]]]) -> str:
    """One file for each batch; a stream that takes a file at a time takes them in order."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(batches):
        table = pa.Table.from_pylist(list(rows), schema=SOURCE)
        pq.write_table(table, folder / f"{number:03d}.parquet")
    return str(folder)


def said(second: float = 0.0, *, sent: float | None = None, **other: Any) -> dict[str, Any]:
    """What a vehicle says, so many seconds after the start; None takes a field out."""
    fields = {
        "vehicle": "v1", "route": "r1", "direction": 0, "time": moment(second),
        "sent": moment(second if sent is None else sent), "lat": 60.2, "lon": 24.9,
        "accuracy": 4.0, "speed": 8.0, "odometer": 100, "delay": 0, "stop": None,
        "terminus": False,
    } | other  # fmt: skip
    return {name: value for name, value in fields.items() if value is not None}


def said_row(second: float = 0.0, *, seq: int = 1, sent: float | None = None, **other: Any) -> Any:
    sent_ms = START_MS + int((second if sent is None else sent) * 1000)
    return source_row(json.dumps(said(second, sent=sent, **other)).encode(), sent_ms, seq=seq)


def moment(second: float) -> str:
    """In the hour after seven."""
    ms = int(second * 1000)
    return (
        f"2026-03-01T{7 + ms // 3_600_000:02d}:{ms // 60_000 % 60:02d}:{ms % 60_000 / 1000:06.3f}Z"
    )


def seen_in(content: bytes, time_ms: int) -> Seen:
    """A reading as rules take it, parsed without Spark."""
    o = json.loads(content)
    return Seen(time_ms, o["vehicle"], o["route"], o["direction"], o["lat"], o["lon"],
                o["accuracy"], o["odometer"], o["delay"], o["terminus"])  # fmt: skip
