"""The lmdb file of an outbox: its tables, and its records as they are written.

    table    key                                                   value
    meta     "format" | "owner" | "id" | "next"                    numbers, ids
    queries  a query's name                                        Query
    staged   query, epoch, batch, Spark partition, attempt, chunk  Staged
    sealed   query, place                                          Sealed
    chains   query, partition of the stream                        Head
    rows     a part's number                                       its rows

Queries have numbers here, which are never given twice, and so have parts: what was staged is sealed
by moving its names, and its rows stay where they are. Every value begins with its CRC-32, for lmdb
does not check its pages. All numbers in keys are big-endian, so that keys sort as they do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from shoal.base.gateway_messages import Fingerprint
from shoal.base.ids import NodeId, StreamId
from shoal.identity import Entropy
from shoal.identity.message_body import Position
from shoal.storage.config import StoreConfig
from shoal.storage.errors import StoreDamaged
from shoal.storage.lmdb_file import OwnedFile, Table, Txn, with_checksum, without_checksum

OUTBOX_FORMAT = 2
ID_BYTES = 16

_ID, _NEXT = b"id", b"next"
_NUMBER = struct.Struct(">I")
_LONG = struct.Struct(">Q")
_STAGED = struct.Struct(">IIQIQI")
_BATCH = struct.Struct(">IIQ")
_SEALED = struct.Struct(">IQ")
_CHAIN = struct.Struct(">IH")

R = TypeVar("R", bound=msgspec.Struct)


class Query(msgspec.Struct, array_like=True):
    """A streaming query, or one batch write."""

    number: int
    stream: str
    once: bool
    """A batch write: nobody comes back to it."""
    epoch: int
    run: str
    """The run that has the epoch."""
    past: tuple[str, ...]
    """Runs before it, which are fenced; the last of them."""
    touched_ns: int
    batch: int = -1
    """The last one that was sealed."""
    place: int = 0
    """Where the next part goes that is sealed."""
    fingerprint: Fingerprint = Fingerprint()
    """Of the last batch that was sealed."""


class Part(msgspec.Struct, array_like=True, frozen=True):
    """Rows of one task for one partition of the stream, in order."""

    number: int
    partition: int
    count: int
    size_bytes: int


class Staged(msgspec.Struct, array_like=True, frozen=True):
    """A chunk that a task has handed in: not more than a promise until its batch is sealed."""

    parts: tuple[Part, ...]
    staged_ns: int

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


class Sealed(msgspec.Struct, array_like=True, frozen=True):
    """A part that counts."""

    part: Part
    batch: int
    first: Position
    """Of its first row; the others follow it by sequence."""
    begun: bool = False
    """Some of it may have been sent: from here on its place in the chain never changes."""
    previous: Position | None = None
    """The row before the first one, once it has begun."""
    chain: int = 1
    """The number of its chain, of those that the query had in this partition one after the other.
    """


class Head(msgspec.Struct, array_like=True):
    """How far a chain is."""

    given: Position | None = None
    """The last position that was given to a row."""
    sent: Position | None = None
    """The last one that may have been sent."""
    chain: int = 1
    """Its number. A chain that has come far ahead of the clock, by a wrong reading, ends; the next
    one goes on from here."""
    ended: Position | None = None
    """Where the chain before it ended."""


Rows = list[tuple[int, bytes]]
"""Content type and content of each."""

_encode = msgspec.msgpack.Encoder().encode
_decode_rows = msgspec.msgpack.Decoder(Rows).decode


class OutboxFile(OwnedFile):
    """Records in tables; what they mean is the outbox's."""

    FORMAT = OUTBOX_FORMAT
    KIND = "an outbox"
    NAMES = (b"outbox-meta", b"queries", b"staged", b"sealed", b"chains", b"rows")

    def __init__(self, folder: Path, owner: NodeId, entropy: Entropy, config: StoreConfig) -> None:
        """Open the outbox of this node, or make one; StoreError if that cannot be."""
        self._entropy = entropy
        super().__init__(folder, owner, config)
        self.meta, self.queries, self.staged, self.sealed, self.chains, self.rows = self._tables
        self.id = self.read(self._read_id)
        """Born with the file: chains of two outboxes of one node never share a name."""

    def _born(self, txn: Txn) -> None:
        txn.put(_ID, self._entropy.token(ID_BYTES), db=self._tables[0])

    def _read_id(self, txn: Txn) -> bytes:
        id = txn.get(_ID, db=self.meta)
        if id is None:
            raise StoreDamaged(f"{self.file} has lost its id: restore a copy")
        return bytes(id)

    # Numbers

    def next_number(self, txn: Txn) -> int:
        """A number that nothing else in this file has."""
        raw = txn.get(_NEXT, db=self.meta)
        number: int = 1 if raw is None else _LONG.unpack(raw)[0]
        txn.put(_NEXT, _LONG.pack(number + 1), db=self.meta)
        return number

    # Records

    def get(self, txn: Txn, table: Table, key: bytes, kind: type[R]) -> R | None:
        """The record under a key, if there is one."""
        raw = txn.get(key, db=table)
        return None if raw is None else self.record(key, raw, kind)

    def put(self, txn: Txn, table: Table, key: bytes, record: msgspec.Struct) -> None:
        """Write a record."""
        txn.put(key, with_checksum(_encode(record)), db=table)

    def after(
        self, txn: Txn, table: Table, prefix: bytes, key: bytes, kind: type[R]
    ) -> Iterator[tuple[bytes, R]]:
        """The records of a table whose keys have a prefix, from a key on."""
        with txn.cursor(db=table) as cursor:
            found = cursor.set_range(key) if key else cursor.first()
            while found and cursor.key().startswith(prefix):
                yield cursor.key(), self.record(cursor.key(), cursor.value(), kind)
                found = cursor.next()

    def put_rows(self, txn: Txn, part: Part, rows: bytes) -> None:
        """Write the rows of a part, encoded."""
        txn.put(_LONG.pack(part.number), with_checksum(rows), db=self.rows)

    def get_rows(self, txn: Txn, part: Part) -> Rows:
        """The rows of a part."""
        key = _LONG.pack(part.number)
        raw = txn.get(key, db=self.rows)
        return _decode_rows(self._unchecked(key, raw or b""))

    def drop_rows(self, txn: Txn, part: Part) -> None:
        """Forget the rows of a part."""
        txn.delete(_LONG.pack(part.number), db=self.rows)

    def drop_all_staged(self, txn: Txn, prefix: bytes) -> None:
        """Forget all chunks whose keys have a prefix."""
        for key, staged in list(self.after(txn, self.staged, prefix, prefix, Staged)):
            self.drop_staged(txn, key, staged)

    def drop_staged(self, txn: Txn, key: bytes, staged: Staged) -> None:
        """Forget a chunk that does not count."""
        for part in staged.parts:
            self.drop_rows(txn, part)
        txn.delete(key, db=self.staged)

    def record(self, key: bytes, raw: bytes, kind: type[R]) -> R:
        """What was written; StoreDamaged if it is something else."""
        return msgspec.msgpack.decode(self._unchecked(key, raw), type=kind)

    def _unchecked(self, key: bytes, raw: bytes) -> bytes:
        value = without_checksum(raw)
        if value is None:
            raise StoreDamaged(
                f"{self.file} holds something under {key!r} that is not as it was written: restore"
                " a copy, or move it away (rows that were not published yet are lost with it)"
            )
        return value


def encode_rows(rows: Rows) -> bytes:
    """Rows as they are kept."""
    return _encode(rows)


def query_key(number: int) -> bytes:
    """What all keys of a query begin with."""
    return _NUMBER.pack(number)


def staged_key(
    query: int, epoch: int, batch: int, partition: int, attempt: int, chunk: int
) -> bytes:
    """Where a chunk is staged."""
    return _STAGED.pack(query, epoch, batch, partition, attempt, chunk)


def staged_prefix(query: int, epoch: int, batch: int) -> bytes:
    """What the keys of all chunks of a batch begin with."""
    return _BATCH.pack(query, epoch, batch)


def attempt_prefix(query: int, epoch: int, batch: int, partition: int, attempt: int) -> bytes:
    """What the keys of all chunks of an attempt begin with."""
    return staged_key(query, epoch, batch, partition, attempt, 0)[: -_NUMBER.size]


class StagedAt(NamedTuple):
    """Where a chunk is staged."""

    query: int
    epoch: int
    batch: int
    partition: int
    attempt: int
    chunk: int


def staged_of(key: bytes) -> StagedAt:
    """Where the chunk of a key is staged."""
    return StagedAt(*_STAGED.unpack(key))


def sealed_key(query: int, place: int) -> bytes:
    """Where a sealed part is."""
    return _SEALED.pack(query, place)


def sealed_of(key: bytes) -> tuple[int, int]:
    """Query and place of a sealed part."""
    query, place = _SEALED.unpack(key)
    return query, place


def chain_key(query: int, partition: int) -> bytes:
    """Where the head of a chain is."""
    return _CHAIN.pack(query, partition)


# What an outbox is asked and answers, and its bounds.


NAME_CHARS_MAX = 100  # of queries and runs: Spark's are UUIDs


class ChunkPlace(msgspec.Struct, frozen=True):
    """Where a task hands in some of its rows."""

    query: str
    epoch: int
    batch: int
    partition: int
    attempt: int
    chunk: int


class Attempt(msgspec.Struct, frozen=True):
    """The attempt of a task that counts, and how many chunks it staged."""

    partition: int
    attempt: int
    chunks: int


class SealAnswer(msgspec.Struct, frozen=True):
    """What came of a seal."""

    rows: int
    replayed: bool
    """It was sealed before: nothing changed."""
    changed: bool = False
    """The replay has other rows than were sealed: those that were sealed first stand."""


class Sending(msgspec.Struct, frozen=True):
    """Rows with their places, to be signed and sent."""

    query: int
    place: int
    stream: StreamId
    chain: str
    partition: int
    first: Position
    previous: Position | None
    rows: Rows


class QueryState(msgspec.Struct, frozen=True):
    """One query, for people and programs."""

    query: str
    stream: str
    epoch: int
    batch: int
    waiting_parts: int
    source: str | None = None
    """The source offsets where the last sealed batch ends, if the sink could read them. Only told
    of one query."""


class Holder(msgspec.Struct, frozen=True):
    """The batch that may use all room but the shared part."""

    query: str
    epoch: int
    batch: int
    size_bytes: int
    staged_ns: int
    """When it last handed something in."""
