"""What an outbox forgets: leftovers of attempts that do not count, and batch writes long done."""

from __future__ import annotations

from collections.abc import Mapping, Set

import msgspec

from shoal.storage.layout import Txn
from shoal.storage.outbox_file import (
    Head,
    OutboxFile,
    Query,
    Staged,
    StagedAt,
    query_key,
    staged_of,
)
from shoal.storage.outbox_types import OutboxConfig


class Swept(msgspec.Struct, frozen=True):
    """One step."""

    next: bytes
    """Where to go on; empty at the end."""
    dropped: list[tuple[StagedAt, int]]
    """Chunks that are gone, and their bytes."""


def sweep_staged(
    file: OutboxFile,
    txn: Txn,
    start: bytes,
    last_ns: Mapping[tuple[int, int, int], int],
    config: OutboxConfig,
    now_ns: int,
) -> Swept:
    """Look at some of what is staged, and drop what can never be sealed, or of whose batch nothing
    has come for too long: the first task of a job waits for the last one."""
    queries = {q.number: q for _, q in file.after(txn, file.queries, b"", b"", Query)}
    next, garbage = b"", []
    for looked_at, (key, staged) in enumerate(file.after(txn, file.staged, b"", start, Staged)):
        if looked_at == config.sweep_max:
            next = key
            break
        number, epoch, batch, *_ = staged_of(key)
        query = queries.get(number)
        is_old = now_ns - last_ns.get((number, epoch, batch), staged.staged_ns) > config.staged_ns
        if query is None or epoch < query.epoch or batch <= query.batch or is_old:
            garbage.append((key, staged))
    for key, staged in garbage:
        file.drop_staged(txn, key, staged)
    return Swept(next, [(staged_of(key), staged.size_bytes) for key, staged in garbage])


def forget_batch_writes(
    file: OutboxFile, txn: Txn, busy: Set[int], config: OutboxConfig, now_ns: int
) -> list[int]:
    """Forget batch writes that nobody asks about any more; their numbers."""
    old = [
        (name, query)
        for name, query in file.after(txn, file.queries, b"", b"", Query)
        if query.once and query.number not in busy and now_ns - query.touched_ns > config.once_ns
    ][: config.sweep_max]
    for name, query in old:
        prefix = query_key(query.number)
        for key, _ in list(file.after(txn, file.chains, prefix, prefix, Head)):
            txn.delete(key, db=file.chains)
        txn.delete(name, db=file.queries)
    return [query.number for _, query in old]
