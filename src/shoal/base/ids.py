"""Ids that every layer shares.

A node is known by the Ethereum address of its key: 20 bytes. People see it as 0x and hex.
"""

from __future__ import annotations

from typing import Annotated, NewType

import msgspec
from msgspec import Meta

from shoal.base.errors import UsageError

NodeId = NewType("NodeId", bytes)
StreamId = NewType("StreamId", str)

NODE_ID_BYTES = 20


def node_id(raw: bytes) -> NodeId:
    """Check that raw bytes can be a node id."""
    if len(raw) != NODE_ID_BYTES:
        raise UsageError(
            f"a node id has {NODE_ID_BYTES} bytes, this one has {len(raw)}: {raw.hex()}"
        )
    return NodeId(raw)


def parse_node_id(text: str) -> NodeId:
    """Read 0x followed by 40 hex digits, whatever their case."""
    digits = text.removeprefix("0x")
    try:
        return node_id(bytes.fromhex(digits))
    except ValueError as error:
        raise UsageError(f"{text!r} is not a node id: write 0x and 40 hex digits") from error


def show_node_id(node: NodeId) -> str:
    """The id as people write it."""
    return "0x" + node.hex()


def short_node_id(node: NodeId) -> str:
    """The first digits of the id, for tables and logs."""
    return "0x" + node.hex()[:8]


# The same ids as they come off a wire: msgspec checks the limits while it decodes.

STREAM_ID_CHARS_MAX = 256
CHAIN_CHARS_MAX = 32
PARTITIONS_MAX = 100
KEYS_PARTITION = PARTITIONS_MAX  # beside those of applications: a publisher's keys for its readers
INT63_MAX = 2**63 - 1  # Arrow, Spark and Java have no unsigned 64-bit integers

WireNodeId = Annotated[NodeId, Meta(min_length=NODE_ID_BYTES, max_length=NODE_ID_BYTES)]
WireStreamId = Annotated[StreamId, Meta(min_length=1, max_length=STREAM_ID_CHARS_MAX)]
Count = Annotated[int, Meta(ge=0, le=INT63_MAX)]


def parse_stream_id(text: str) -> StreamId:
    """Read an owner's address, a slash and a path. Addresses may be written in upper and lower
    case; the stream is the same."""
    owner, slash, path = text.partition("/")
    if not (slash and path) or len(text) > STREAM_ID_CHARS_MAX:
        raise UsageError(
            f"stream id {text!r}: write the owner's address, a slash and a path, "
            f"{STREAM_ID_CHARS_MAX} characters at most"
        )
    try:
        return StreamId(f"{show_node_id(parse_node_id(owner))}/{path}")
    except UsageError as error:
        raise UsageError(f"stream id {text!r}: {error}") from None


Partition = Annotated[int, Meta(ge=0, le=KEYS_PARTITION)]
ChainName = Annotated[str, Meta(min_length=1, max_length=CHAIN_CHARS_MAX)]


class MessageId(
    msgspec.Struct,
    frozen=True,
    array_like=True,
    cache_hash=True,
    forbid_unknown_fields=True,
    gc=False,
):
    """Names one stream message. (timestamp_ms, sequence) orders the messages of a chain."""

    stream: WireStreamId
    partition: Partition
    timestamp_ms: Count
    sequence: Count
    publisher: WireNodeId
    chain: ChainName


# How a node is reached.


ADDRESSES_MAX = 4  # a node listens on a few addresses; more is an attempt to make us dial for it
ADDRESS_CHARS_MAX = 256

Address = Annotated[str, msgspec.Meta(max_length=ADDRESS_CHARS_MAX)]


class Contact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A node and the addresses at which it can be dialled (none: it can only dial out)."""

    node: WireNodeId
    addresses: Annotated[tuple[Address, ...], msgspec.Meta(max_length=ADDRESSES_MAX)] = ()
