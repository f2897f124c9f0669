"""What `.option(...)` says to the sink, and whether the columns fit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from pyspark.sql.types import BinaryType, IntegerType, LongType, ShortType, StringType, StructType

from shoal.base.errors import UsageError
from shoal.base.ids import StreamId
from shoal.identity.secrets import read_secret, split_secret_source
from shoal.pipeline.option_values import gateway_address, patience, stream_option

KNOWN = {
    "outbox": "the HTTP address of the publishing node's gateway, as in http://127.0.0.1:7780",
    "stream": "the id of a stream",
    "token": "where the outbox's token is, env:NAME or file:PATH, on driver and executors",
    "patienceSeconds": "how long an outbox may be full, 600 unless told otherwise",
}
PATIENCE_S = 600.0
CHECKPOINT = "checkpointlocation"
IGNORED = ("path", "queryname")
"""Spark's own, which it hands on to the sink, as it does the checkpoint's place."""

_BY_LOWER = {name.lower(): name for name in KNOWN}
_WHOLE = (IntegerType, LongType, ShortType)
COLUMNS = {
    "value": ((StringType, BinaryType), "a string or binary"),
    "key": ((StringType,), "a string"),
    "partition": (_WHOLE, "an int"),
}


class SinkOptions(msgspec.Struct, frozen=True):
    """The options of one write."""

    outbox: str
    stream: StreamId
    token: str
    """Where it is: what it is must not travel with a plan."""
    patience_s: float = PATIENCE_S
    checkpoint: str | None = None
    """Where Spark keeps how far the query is, if the options of the write say so."""

    def read_token(self) -> str:
        """The token itself, read where it is needed."""
        return read_secret("token", self.token, Path(), os.environ)


def parse_options(given: Mapping[str, str]) -> SinkOptions:
    """The options of a write; UsageError names what is wrong. Names are read in any case."""
    options: dict[str, str] = {}
    checkpoint: str | None = None
    for name, value in given.items():
        if name.lower() in IGNORED:
            continue
        if name.lower() == CHECKPOINT:
            checkpoint = value
            continue
        known = _BY_LOWER.get(name.lower())
        if known is None:
            raise UsageError(f"option {name!r}: there is none; known are {', '.join(KNOWN)}")
        options[known] = value.strip()
    for name in ("outbox", "stream", "token"):
        if not options.get(name):
            raise UsageError(f"option {name!r} is missing: give {KNOWN[name]}")
    split_secret_source("token", options["token"])
    return SinkOptions(
        gateway_address("outbox", options["outbox"]),
        stream_option(options["stream"]),
        options["token"],
        patience(options.get("patienceSeconds"), PATIENCE_S),
        checkpoint,
    )


def check_columns(schema: StructType) -> None:
    """UsageError if a DataFrame cannot be published as it is."""
    for field in schema.fields:
        if field.name not in COLUMNS:
            known = ", ".join(COLUMNS)
            raise UsageError(f"column {field.name!r}: a sink has {known}: select those")
        types, wanted = COLUMNS[field.name]
        if not isinstance(field.dataType, types):
            raise UsageError(
                f"column {field.name!r} is {field.dataType.simpleString()}, and has to be"
                f" {wanted}: cast it"
            )
    if "value" not in schema.fieldNames():
        raise UsageError("there is no column 'value': select what is to be published as value")
