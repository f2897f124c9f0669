"""The golden store: python -m tests.storage.golden writes it, once for each format.

Later versions open it, and go on with it. From the first release on the files of an old format stay
when a new one comes.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import lmdb

from shoal.base.ids import INT63_MAX, StreamId
from shoal.storage.config import Retention, StoreConfig
from shoal.storage.message_store.layout import STORE_FORMAT
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_types import Lease
from tests.storage.stage import (
    BOB,
    OTHER,
    START_MS,
    START_NS,
    STREAM,
    horizon_ms,
    log_rows,
    message,
    messages,
    open_store,
    replica_rows,
    rows_of,
)

GOLDEN = Path(__file__).parents[1] / "golden" / f"store-v{STORE_FORMAT}"
LONG = StreamId("ä" * 256)
CONFIG = StoreConfig(retention=Retention(age_ns=100))


def fill(store: Store, owner: Store) -> None:
    """A little of everything that a store can hold."""
    store.append(messages(3), START_NS)
    store.append([message(0, stream=OTHER, partition=99), message(1, stream=LONG)], START_NS + 50)
    store.append([message(7, INT63_MAX, publisher=BOB, chain="\U0010ffff")], START_NS + 50)
    owner.append([message(1), message(7, content=b"new"), message(8)], START_NS + 60)
    owner.append([message(2, content=b"another body")], START_NS + 61)
    rows = replica_rows(log_rows(owner, owner.log))
    store.append_replica(owner.log, STREAM, 0, rows, START_NS + 70)
    store.lease(Lease("query", store.log, STREAM, 0, 2, START_NS + 500), START_NS)
    store.new_log(START_NS + 40)  # the clock has gone back
    store.append([message(9)], START_NS + 45)
    store.retain(START_NS + 100)


def contents(store: Store) -> dict[str, Any]:
    """What the golden store says, in words of no version."""
    return {
        "log": str(store.log),
        "places": [[stream, partition] for stream, partition in store.places()],
        "heads": {str(k): [v.first, v.last] for k, v in store.heads(STREAM, 0).items()},
        "messages": [
            [row.seq, row.ingest_ns - START_NS, row.signed.hex()]
            for stream, partition in store.places()
            for row in rows_of(store.range(stream, partition))
        ],
        "logs": {
            str(log): [
                [row.seq, row.ingest_ns - START_NS, row.signed.hex()]
                for row in log_rows(store, log, head.first - 1)
            ]
            for log, head in store.heads(STREAM, 0).items()
        },
        "leases": [[held.holder, str(held.log), held.after_seq] for held in store.leases()],
        "horizon_ms": horizon_ms(store, STREAM, 0) - START_MS,
    }


def write() -> None:
    """Write it, unless it is there."""
    if GOLDEN.exists():
        raise SystemExit(f"{GOLDEN} is there: raise STORE_FORMAT if the format changed")
    with tempfile.TemporaryDirectory() as folder:
        here, there = Path(folder, "store"), Path(folder, "owner")
        with open_store(here, CONFIG, "golden") as store, open_store(there, seed="owner") as owner:
            fill(store, owner)
            store.check_invariants()
            said = contents(store)
        compact = Path(folder, "compact")
        compact.mkdir()
        with lmdb.open(str(here), max_dbs=16) as environment:
            environment.copy(str(compact), compact=True)
        GOLDEN.mkdir()
        shutil.copy(compact / "data.mdb", GOLDEN / "data.mdb")
    (GOLDEN / "contents.json").write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    write()
