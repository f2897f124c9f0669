"""Messages and stores for the tests here. A store checks no signature: none is real."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.base.units import S_NS
from shoal.identity import SeededEntropy
from shoal.identity.message_body import Body, encode_body
from shoal.protocols.streams.history.log_follower import body_digest
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.storage.config import DEFAULTS, StoreConfig
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_types import Claim, LogId, ReplicaRow, Row
from tests.support.machines import peer_id

STREAM = StreamId("0xowner/city/vehicles")
OTHER = StreamId("0xowner/city/trams")
START_MS = 1_767_225_600_000
START_NS = START_MS * 1_000_000
HOUR_NS = 3_600 * S_NS
ALICE, BOB = peer_id(1), peer_id(2)


def open_store(folder: Path, config: StoreConfig = DEFAULTS, seed: str = "store") -> Store:
    return Store(folder, SeededEntropy(seed), config)


def message(
    timestamp_ms: int,
    sequence: int = 0,
    *,
    stream: StreamId = STREAM,
    partition: int = 0,
    publisher: NodeId = ALICE,
    chain: str = "c1",
    content: bytes = b"content",
    signature: bytes = b"s",
) -> VerifiedMessage:
    """A message at START_MS + timestamp_ms."""
    id = MessageId(stream, partition, START_MS + timestamp_ms, sequence, publisher, chain)
    signed = signature * 65 + encode_body(Body(id, None, 0, content))
    return VerifiedMessage(id, None, 0, content, signed)


def messages(count: int, begin: int = 0) -> list[VerifiedMessage]:
    """A chain, one message a millisecond."""
    return [message(number) for number in range(begin, begin + count)]


def rows_of(pages: Iterable[list[Row]]) -> list[Row]:
    return [row for page in pages for row in page]


def ids_of(pages: Iterable[list[Row]]) -> list[MessageId]:
    return [row.id for row in rows_of(pages)]


def log_rows(store: Store, log: LogId, after_seq: int = 0, limit: int = 1000) -> Iterator[Row]:
    """All rows of a log at the first partition of STREAM, page by page."""
    while True:
        page = store.log_read(log, STREAM, 0, after_seq, limit)
        yield from page.rows
        if page.through >= page.head.last:
            return
        after_seq = page.through


def horizon_ms(store: Store, stream: StreamId, partition: int) -> int:
    """Message time below which retention has removed messages."""
    heads = store.stream_heads(stream).get(partition)
    return 0 if heads is None else heads.horizon_ms


def claim(sent: VerifiedMessage | Row) -> Claim:
    """What another store says that holds this message."""
    return Claim(sent.id, body_digest(sent.signed))


def kept_rows(store: Store) -> int:
    """Rows of all logs that are in the file, available or not."""
    database = store._database
    return database.read(lambda txn: txn.stat(database.tables.entries)["entries"])


def replica_rows(rows: Iterable[Row], *, with_messages: bool = True) -> list[ReplicaRow]:
    """Rows of one store's log as another one is told of them."""
    return [
        ReplicaRow(row.seq, row.ingest_ns, row.id, verified(row) if with_messages else None)
        for row in rows
    ]


def verified(row: Row) -> VerifiedMessage:
    return VerifiedMessage(row.id, None, 0, b"", row.signed)
