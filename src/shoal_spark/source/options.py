"""What `.option(...)` says to the source, checked before anything is asked of a server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import quote

import msgspec

from shoal.base.errors import UsageError
from shoal.base.ids import StreamId
from shoal.base.offsets import Offset
from shoal.base.units import parse_time
from shoal.identity.secret_sources import read_secret, split_secret_source
from shoal.identity.topics.cid import parse_cid, show_cid
from shoal_spark.gateway_connection import gateway_address, patience, stream_option, token_source
from shoal_spark.source.offsets import parse_given_offset

ROWS_PER_TASK = 100_000
"""What one task reads of a larger range: some seconds of signatures on one core."""

PATIENCE_S = 30.0

Point: TypeAlias = Literal["earliest", "latest"] | datetime | Offset
"""Where to begin or to end; a time is that of ingest."""

KNOWN = {
    "servers": "HTTP addresses of storage nodes, with commas between",
    "stream": "the id of a stream",
    "topic": "the CID of a durable topic, in place of a stream",
    "startingOffsets": "earliest, latest, an offset as JSON, or a time of ingest",
    "endingOffsets": "the same, of a batch read; what came in later is left out",
    "maxRowsPerTrigger": "rows of one micro-batch at most",
    "maxRecordsPerPartition": f"rows of one task at most, {ROWS_PER_TASK} unless told otherwise",
    "failOnDataLoss": "true, or false to go on where rows are gone",
    "allowMissing": "true to read a stream that no server knows yet, as an empty one",
    "mode": "PERMISSIVE: a bad record is a row with `error`; FAILFAST: it ends the query",
    "minReplicas": "servers that must have a row before it is read, 1 unless told otherwise",
    "patienceSeconds": f"how long servers may be away, {PATIENCE_S:.0f} unless told otherwise",
    "keystore": "where a reader's keystore is, file:PATH or env:NAME, if the stream is encrypted",
    "passphrase": "where the keystore's passphrase is, env:NAME or file:PATH",
    "token": "where the gateways' key is, env:NAME or file:PATH, if they ask for one",
}
_BY_LOWER = {name.lower(): name for name in KNOWN}


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one read."""

    servers: tuple[str, ...]
    stream: StreamId
    """Or the CID of a topic."""
    is_topic: bool = False
    starting: Point
    ending: Point
    rows_per_trigger: int | None
    rows_per_task: int
    fail_on_data_loss: bool
    allow_missing: bool = False
    fail_fast: bool
    min_replicas: int
    patience_s: float
    keystore: KeystoreOption | None = None
    token: str | None = None
    """Where it is: what it is must not travel with a plan."""

    @property
    def path(self) -> str:
        """Where its logs are, at every gateway."""
        return f"/{'topics' if self.is_topic else 'streams'}/{quote(self.stream, safe='/')}/log"


def parse_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a read; UsageError names what is wrong. Names are read in any case."""
    options: dict[str, str] = {}
    for name, value in given.items():
        known = _BY_LOWER.get(name.lower())
        if known is None:
            raise UsageError(f"option {name!r}: there is none; known are {', '.join(KNOWN)}")
        options[known] = value.strip()
    if not options.get("servers"):
        raise UsageError(f"option 'servers' is missing: give {KNOWN['servers']}")
    stream, is_topic = _stream_or_topic(options)
    if streaming and "endingOffsets" in options:
        raise UsageError("endingOffsets is for batch reads: a stream has no end; leave it out")
    if not streaming and "maxRowsPerTrigger" in options:
        raise UsageError("maxRowsPerTrigger is for streams: bound a batch by endingOffsets")
    starting = options.get("startingOffsets", "latest" if streaming else "earliest")
    servers = tuple(
        gateway_address("servers", text.strip()) for text in options["servers"].split(",")
    )
    parsed = SourceOptions(
        servers=tuple(dict.fromkeys(servers)),
        stream=stream,
        is_topic=is_topic,
        starting=_point("startingOffsets", starting, stream),
        ending=_point("endingOffsets", options.get("endingOffsets", "latest"), stream),
        rows_per_trigger=_count(options, "maxRowsPerTrigger", None),
        rows_per_task=_count(options, "maxRecordsPerPartition", ROWS_PER_TASK) or ROWS_PER_TASK,
        fail_on_data_loss=_flag(options, "failOnDataLoss", otherwise=True),
        allow_missing=_flag(options, "allowMissing", otherwise=False),
        fail_fast=_mode(options.get("mode", "PERMISSIVE")),
        min_replicas=_count(options, "minReplicas", 1) or 1,
        patience_s=patience(options.get("patienceSeconds"), PATIENCE_S),
        keystore=keystore_option(options.get("keystore"), options.get("passphrase")),
        token=token_source(options.get("token")),
    )
    if not streaming and parsed.starting == "latest":
        raise UsageError("startingOffsets = latest: a batch would be empty; begin earlier")
    if parsed.ending == "earliest":
        raise UsageError("endingOffsets = earliest: a batch would be empty; end later")
    if parsed.min_replicas > len(parsed.servers):
        raise UsageError(
            f"minReplicas = {parsed.min_replicas}, but {len(parsed.servers)} servers are named:"
            " name more of them, for each is asked what it has"
        )
    return parsed


def _stream_or_topic(options: Mapping[str, str]) -> tuple[StreamId, bool]:
    stream, topic = options.get("stream"), options.get("topic")
    if stream and topic:
        raise UsageError("both 'stream' and 'topic' are given: a read is of one of them")
    if topic:
        return StreamId(show_cid(parse_cid(topic))), True
    if not stream:
        raise UsageError(f"option 'stream' is missing: give {KNOWN['stream']}; or 'topic', a CID")
    return stream_option(stream), False


def _point(name: str, text: str, stream: StreamId) -> Point:
    if text.lower() == "earliest":
        return "earliest"
    if text.lower() == "latest":
        return "latest"
    if text.startswith("{"):
        return parse_given_offset(name, text, stream)
    try:
        return parse_time(name, text)
    except UsageError as error:
        raise UsageError(f"{error}; or earliest, latest, or an offset as JSON") from None


def _count(options: Mapping[str, str], name: str, otherwise: int | None) -> int | None:
    text = options.get(name)
    if text is None:
        return otherwise
    if not (text.isascii() and text.isdecimal() and 1 <= len(text) <= 18 and int(text) > 0):
        raise UsageError(f"{name} = {text!r}: give a whole number, 1 or more")
    return int(text)


def _flag(options: Mapping[str, str], name: str, *, otherwise: bool) -> bool:
    text = options.get(name, str(otherwise)).lower()
    if text not in ("true", "false"):
        raise UsageError(f"{name} = {text!r}: give true or false")
    return text == "true"


def _mode(text: str) -> bool:
    if text.upper() not in ("PERMISSIVE", "FAILFAST"):
        raise UsageError(f"mode = {text!r}: give PERMISSIVE or FAILFAST")
    return text.upper() == "FAILFAST"


class KeystoreOption(msgspec.Struct, frozen=True):
    """Where the keystore is, and its passphrase: on the driver."""

    keystore: str
    passphrase: str | None

    def path(self) -> Path:
        """Of the file: env:NAME has it in a variable."""
        kind, name = split_secret_source("keystore", self.keystore)
        if kind == "file":
            return Path(name)
        return Path(read_secret("keystore", self.keystore, Path(), os.environ))


def keystore_option(keystore: str | None, passphrase: str | None) -> KeystoreOption | None:
    """UsageError for a passphrase without a keystore, or for the key itself."""
    if keystore is None:
        if passphrase is not None:
            raise UsageError("passphrase: it is that of a keystore: give option 'keystore' too")
        return None
    split_secret_source("keystore", keystore)
    if passphrase is not None:
        split_secret_source("passphrase", passphrase)
    return KeystoreOption(keystore, passphrase)
