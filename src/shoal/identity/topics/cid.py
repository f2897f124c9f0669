"""Content ids: the name of a block is the hash of its bytes.

    01      CID version 1
    71      the block is DAG-CBOR
    12 20   sha2-256 multihash of 32 bytes
    ...     the hash

No other form is read: one block has one name. As text it is base58btc, and always begins zdpu.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import NewType

from shoal.base.errors import MalformedMessage, UsageError
from shoal.base.units import KIB
from shoal.identity import peer_id

Cid = NewType("Cid", bytes)

_PREFIX = bytes.fromhex("01711220")
_BASE58BTC = "z"  # multibase: the digits that follow are base58btc
CID_BYTES = len(_PREFIX) + 32
CID_TEXT = "zdpu"  # what the text of every one of them begins with

# Base58 costs more than the hash itself, and logs, traces and users name the same events again.
TEXTS_MAX = 8192


def cid_of(block: bytes) -> Cid:
    """The name of a block."""
    return Cid(_PREFIX + sha256(block).digest())


def cid_of_bytes(raw: bytes) -> Cid:
    """Check that bytes from a peer are the CID of some DAG-CBOR block."""
    if len(raw) != CID_BYTES or not raw.startswith(_PREFIX):
        raise MalformedMessage(
            f"a CID of a descriptor has {CID_BYTES} bytes from {_PREFIX.hex()} on,"
            f" this has {len(raw)}: {raw[:CID_BYTES].hex()}"
        )
    return Cid(raw)


def parse_cid(text: str) -> Cid:
    """Read zdpu and what follows."""
    try:
        if not text.startswith(_BASE58BTC):
            raise UsageError("it begins with z")
        return cid_of_bytes(peer_id.decode(text[1:]))
    except (UsageError, MalformedMessage) as error:
        raise UsageError(
            f"{text[: peer_id.DIGITS_MAX]!r} is not the CID of a topic or event (zdpu...): {error}"
        ) from None


@lru_cache(maxsize=TEXTS_MAX)
def show_cid(cid: Cid) -> str:
    """The CID as people write it."""
    return _BASE58BTC + peer_id.encode(cid)


# How large topics and events may be, with reasons.


PAYLOAD_BYTES_MAX = 512 * KIB  # as for streams: one event must not stall a link for long
NAME_BYTES_MAX = 1 * KIB  # of a topic, and of a sub-topic under `#`: a title, not a text
VERSION_BYTES_MAX = 64  # of a protocol: /pulsarcast/1.0.0 has 17
SUB_TOPICS_MAX = 256  # the thesis knows no limit: more than that need a level of their own
PEERS_MAX = 1024  # a list in a topic descriptor: whoever needs more lets anyone publish, or request

# The largest event. The largest topic (256 names of 1 KiB, 2,048 peers) has 405 KiB: it fits into
# an event of its meta topic.
BLOCK_BYTES_MAX = PAYLOAD_BYTES_MAX + 4 * KIB
DEPTH_MAX = 8  # a descriptor nests four levels deep
