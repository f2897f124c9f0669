"""What a store takes and gives per CPU-second, beside plain lmdb in the same run.

    .venv/bin/python benchmarks/storage.py [--json] [--messages 65536] [--rounds 3]

Stored: messages of 300 bytes of content, in batches of 1, 64 and 1,024; each batch is one durable
transaction. Plain lmdb puts the same bytes under the same keys into one table, as often synced;
the store keeps its log, its heads and its digests beside that, and answers for duplicates.

Read: the same messages again, as a resend by range, as a resend of the last ones, and as log rows;
plain lmdb walks keys and values of one table.

Batches of 1 cost two syncs each, so fewer of them are measured. CPU time counts, of all threads
and of the kernel for us; the best of several rounds, as others share the machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lmdb
import msgspec

from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.identity import SystemEntropy
from shoal.protocols.streams.messages import Body, VerifiedMessage
from shoal.protocols.streams.wire import encode_body
from shoal.storage.store import Store

STREAM = StreamId("0x1111111111111111111111111111111111111111/city/vehicles")
CONTENT_BYTES = 300
BATCHES = (1, 64, 1024)
MESSAGES = 65_536
SINGLE_SHARE = 32  # of the messages, one in so many is stored by itself
ROUNDS = 3
PAGE_ROWS = 1_000


class Row(msgspec.Struct, frozen=True):
    """One measurement."""

    what: str
    messages: int
    per_cpu_second: float
    plain_per_cpu_second: float
    ratio: float
    """The store against plain lmdb: 1 would be a store that costs nothing."""


def messages(count: int) -> list[VerifiedMessage]:
    """One chain, signed by nobody: signatures are checked before a store sees them."""
    publisher = NodeId(bytes(range(20)))
    content = bytes(CONTENT_BYTES)
    made = []
    for number in range(count):
        id = MessageId(STREAM, 0, 1_767_225_600_000 + number, 0, publisher, "1a2b3c4d")
        body = encode_body(Body(id, None, 0, content))
        made.append(VerifiedMessage(id, None, 0, content, bytes(65) + body))
    return made


def rate(count: int, work: Callable[[], object]) -> float:
    """Messages per CPU-second."""
    begin_s = time.process_time()
    work()
    return count / (time.process_time() - begin_s)


def measure_storing(sent: list[VerifiedMessage], batch: int, rounds: int) -> Row:
    """Both in turn, each time in a new file."""
    stored = plain = 0.0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            with Store(Path(folder, "store"), SystemEntropy()) as store:
                stored = max(stored, rate(len(sent), lambda: store_all(store, sent, batch)))
            with lmdb.open(str(Path(folder, "plain")), map_size=1 << 30) as environment:
                plain = max(plain, rate(len(sent), lambda: put_all(environment, sent, batch)))
    return Row(f"stored, batches of {batch}", len(sent), stored, plain, stored / plain)


def store_all(store: Store, sent: list[VerifiedMessage], batch: int) -> None:
    for begin in range(0, len(sent), batch):
        store.append(sent[begin : begin + batch], time.time_ns())


def put_all(environment: lmdb.Environment, sent: list[VerifiedMessage], batch: int) -> None:
    for begin in range(0, len(sent), batch):
        with environment.begin(write=True) as txn:
            for message in sent[begin : begin + batch]:
                id = message.id
                position = id.timestamp_ms.to_bytes(8) + id.sequence.to_bytes(8)
                txn.put(position + id.publisher + id.chain.encode(), message.signed)


def measure_reading(sent: list[VerifiedMessage], rounds: int) -> list[Row]:
    """Everything that was stored, in each of the ways that it can be read."""
    count = len(sent)
    with (
        tempfile.TemporaryDirectory() as folder,
        Store(Path(folder, "a"), SystemEntropy()) as store,
    ):
        store_all(store, sent, BATCHES[-1])
        ways: dict[str, Callable[[], int]] = {
            "resent by range": lambda: sum(map(len, store.range(STREAM, 0))),
            "resent as last n": lambda: sum(map(len, store.last(STREAM, 0, count))),
            "read as log rows": lambda: read_log(store),
        }
        with lmdb.open(str(Path(folder, "plain")), map_size=1 << 30) as environment:
            put_all(environment, sent, BATCHES[-1])
            plain = max(rate(count, lambda: walk(environment)) for _ in range(rounds))
        rows = []
        for what, read in ways.items():
            if read() != count:
                raise AssertionError(f"{what}: not all of them")
            best = max(rate(count, read) for _ in range(rounds))
            rows.append(Row(what, count, best, plain, best / plain))
        return rows


def read_log(store: Store) -> int:
    after = count = 0
    while True:
        page = store.log_read(store.log, STREAM, 0, after, PAGE_ROWS)
        if not page.rows:
            return count
        count += len(page.rows)
        after = page.through


def walk(environment: lmdb.Environment) -> int:
    with environment.begin() as txn, txn.cursor() as cursor:
        return sum(1 for _ in cursor.iternext())


def measure(count: int, rounds: int) -> list[Row]:
    """All of it."""
    sent = messages(count)
    rows = []
    for batch in BATCHES:
        print(f"batches of {batch} ...", file=sys.stderr, flush=True)
        rows.append(measure_storing(sent if batch > 1 else sent[::SINGLE_SHARE], batch, rounds))
    print("reading ...", file=sys.stderr, flush=True)
    return rows + measure_reading(sent, rounds)


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description="Stored and read messages per CPU-second.")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    rows = measure(options.messages, options.rounds)
    if options.json:
        result = {"benchmark": "storage", "content_bytes": CONTENT_BYTES, "rows": rows}
        print(msgspec.json.encode(result).decode())
        return
    print(f"{'':<26}{'messages':>10}{'per CPU-s':>12}{'plain lmdb':>12}{'ratio':>8}")
    for row in rows:
        print(
            f"{row.what:<26}{row.messages:>10,}{row.per_cpu_second:>12,.0f}"
            f"{row.plain_per_cpu_second:>12,.0f}{row.ratio:>8.3f}"
        )


if __name__ == "__main__":
    main()
