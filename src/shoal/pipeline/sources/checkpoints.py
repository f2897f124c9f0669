"""Offsets as Spark keeps them in a checkpoint: those of base/offsets.py, and whose they are.

    {"v":1,"stream":"0x…/city","p":{"0":{"log":"6f0c…","seq":123}}}

The stream is named, since a storage node's log has the same id in all its streams: an old
checkpoint under another stream would pass for the place in this one.

The end of a query's first batch also says where that batch began, as `begin`. Spark keeps only the
end, and asks for the beginning again if that batch has to run a second time; "latest" would be
somewhere else by then.

Spark compares offsets as text, so keys always come in one order.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from shoal.base.errors import UsageError
from shoal.base.ids import StreamId
from shoal.base.offsets import Offset, format_offset, parse_offset

STREAM, BEGIN = "stream", "begin"


class Checkpoint(msgspec.Struct, frozen=True):
    """How far a query has come."""

    offset: Offset
    begin: Offset | None = None
    """Where its first batch began, at the end of that."""


def to_spark(stream: StreamId, checkpoint: Checkpoint) -> dict[str, Any]:
    """What Spark keeps."""
    plain = json.loads(format_offset(checkpoint.offset))
    kept = {"v": plain["v"], STREAM: stream, "p": plain["p"]}
    if checkpoint.begin is not None:
        kept[BEGIN] = json.loads(format_offset(checkpoint.begin))["p"]
    return kept


def from_spark(stream: StreamId, kept: dict[str, Any]) -> Checkpoint:
    """What Spark gives back; UsageError if it is of another stream, or of a newer Shoal."""
    of = kept.get(STREAM)
    if of != stream:
        raise UsageError(
            f"the checkpoint is of stream {of!r}, and the query reads {stream!r}: give the query"
            " a checkpointLocation of its own"
        )
    version, begin = kept.get("v"), kept.get(BEGIN)
    rest = {name: value for name, value in kept.items() if name not in (STREAM, BEGIN)}
    return Checkpoint(
        parse_offset(json.dumps(rest)),
        None if begin is None else parse_offset(json.dumps({"v": version, "p": begin})),
    )


def parse_given_offset(name: str, text: str, stream: StreamId) -> Offset:
    """An offset that a user gives: as Shoal writes it, or as he finds it in a checkpoint."""
    try:
        kept = json.loads(text)
    except ValueError:
        kept = None
    if isinstance(kept, dict) and STREAM in kept:
        return from_spark(stream, kept).offset
    try:
        return parse_offset(text)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
