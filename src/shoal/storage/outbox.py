"""The durable outbox of a publishing node: what a Spark query writes becomes messages exactly once.

Tasks stage rows, under their query, epoch, batch, Spark partition and attempt. Sealing a batch
decides which attempts count, in one transaction: the first seal of a batch wins, and a batch that
is not after the last sealed one is known to be a replay, whose rows are ignored. Each run of a
query takes an epoch, higher than all before it; whoever comes with an older one is fenced.

There is one chain per query and partition of the stream, and sealing gives every row its place in
it. The messages are not written down: what is signed follows from what is, byte for byte, as
signatures are deterministic. So whatever was sent before a crash is sent again as it was. Only a
part of which nothing can have been sent may still move, to a later time: nodes refuse messages
older than some minutes, and the network may have been out of reach for longer.

Not for several threads at once: its owner has one.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from shoal.base.errors import NotFound, UsageError
from shoal.base.ids import NodeId, StreamId
from shoal.identity import Entropy
from shoal.identity.stream_message import Position
from shoal.storage.config import StoreConfig
from shoal.storage.errors import Fenced, NotStaged, OutboxFull, OutboxTooSmall
from shoal.storage.layout import Txn
from shoal.storage.outbox_file import (
    Head,
    OutboxFile,
    Part,
    Query,
    Rows,
    Sealed,
    Staged,
    chain_key,
    encode_rows,
    sealed_key,
    sealed_of,
    staged_key,
    staged_of,
    staged_prefix,
)
from shoal.storage.outbox_sending import (
    begin_part,
    begin_restored,
    drop_part,
    next_part,
    position_after,
)
from shoal.storage.outbox_sweep import forget_batch_writes, sweep_staged
from shoal.storage.outbox_types import (
    NAME_CHARS_MAX,
    Attempt,
    ChunkPlace,
    OutboxConfig,
    QueryState,
    SealAnswer,
    Sending,
)

log = logging.getLogger("shoal.storage")


class Outbox:
    """Stage, seal, send, forget."""

    def __init__(
        self,
        folder: Path,
        owner: NodeId,
        entropy: Entropy,
        config: OutboxConfig | None = None,
        file_config: StoreConfig | None = None,
    ) -> None:
        """Open it, or make it; StoreError of some kind if that cannot be."""
        self.config = config or OutboxConfig()
        self._file = OutboxFile(folder, owner, entropy, file_config or StoreConfig())
        if self._file.restored:
            log.warning("%s is a copy: what was sealed keeps its places", self._file.file)
            self._file.write(lambda txn: begin_restored(self._file, txn))
        self._staged_bytes: dict[tuple[int, int, int], int] = {}  # by query, epoch, batch
        self._staged_ns: dict[tuple[int, int, int], int] = {}  # when last something was
        self._sealed_bytes = 0
        self._waiting: dict[int, int] = {}  # sealed parts, by query
        self._names: dict[int, str] = {}
        self._swept = b""
        self._file.read(self._count)

    def close(self) -> None:
        """Closing twice is fine."""
        self._file.close()

    @property
    def size_bytes(self) -> int:
        """Rows that are staged, or sealed and not yet done with."""
        return self._sealed_bytes + sum(self._staged_bytes.values())

    def state(self) -> list[QueryState]:
        """Every query that is known."""

        def work(txn: Txn) -> list[QueryState]:
            return [
                QueryState(
                    name.decode(), q.stream, q.epoch, q.batch, self._waiting.get(q.number, 0)
                )
                for name, q in self._file.after(txn, self._file.queries, b"", b"", Query)
            ]

        return self._file.read(work)

    def query_state(self, name: str) -> QueryState:
        """One query, or NotFound."""
        query = self._file.read(self._known, name)
        waiting = self._waiting.get(query.number, 0)
        return QueryState(name, query.stream, query.epoch, query.batch, waiting)

    # Writing

    def take_epoch(self, name: str, run: str, stream: StreamId, once: bool, now_ns: int) -> int:
        """The epoch of a run of a query: a new one if the run is new, which fences all before."""
        for what, text in (("query", name), ("run", run)):
            if not 0 < len(text) <= NAME_CHARS_MAX or not text.isascii():
                raise UsageError(f"{what} {text!r}: give 1 to {NAME_CHARS_MAX} ASCII characters")
        query = self._file.read(self._find, name)
        if query is not None and query.run == run and query.stream == stream:
            return query.epoch  # every task asks: it is not written each time
        query = self._file.write(self._take_epoch, name, run, stream, once, now_ns)
        self._names[query.number] = name
        return query.epoch

    def stage(self, at: ChunkPlace, groups: Mapping[int, Rows], now_ns: int) -> bool:
        """Keep rows of a task, by partition of the stream; False if the batch was sealed before.
        A chunk that comes twice counts once."""
        encoded = [(p, len(rows), encode_rows(rows)) for p, rows in groups.items() if rows]
        size_bytes = sum(len(raw) for _, _, raw in encoded)
        query = self._file.read(self._current, at.query, at.epoch)
        if at.batch <= query.batch:
            return False
        if self._file.read(self._is_staged, query, at):
            return True  # its answer was lost on the way: it takes no more room
        self._check_room((query.number, at.epoch, at.batch), size_bytes)
        self._file.write(self._stage, at, encoded, now_ns)
        self._add_staged((query.number, at.epoch, at.batch), size_bytes, now_ns)
        return True

    def seal(
        self, name: str, epoch: int, batch: int, attempts: Sequence[Attempt], now_ns: int
    ) -> SealAnswer:
        """Decide that these attempts are the batch. Atomic; the first seal of a batch wins."""
        partitions = [attempt.partition for attempt in attempts]
        if len(set(partitions)) < len(partitions):
            raise UsageError(f"batch {batch}: two attempts of one partition: name the one to count")
        query, parts = self._file.write(self._seal, name, epoch, batch, attempts, now_ns)
        if parts is None:
            return SealAnswer(0, replayed=True)
        size_bytes = sum(part.size_bytes for part in parts)
        self._sealed_bytes += size_bytes
        self._add_staged((query.number, epoch, batch), -size_bytes)
        if parts:
            self._waiting[query.number] = self._waiting.get(query.number, 0) + len(parts)
        return SealAnswer(sum(part.count for part in parts), replayed=False)

    def discard(self, name: str, epoch: int, batch: int) -> None:
        """A job was given up: what it staged of a batch that is not sealed is not needed."""
        query, dropped = self._file.write(self._discard, name, epoch, batch)
        self._add_staged((query.number, epoch, batch), -dropped)

    # Sending

    def waiting(self) -> list[int]:
        """Queries that have something to send, by number."""
        return list(self._waiting)

    def waiting_parts(self) -> int:
        """Sealed parts that are not done with."""
        return sum(self._waiting.values())

    def begin(self, query: int, after: int, now_ns: int) -> Sending | None:
        """The first part of a query behind a place: from now on it is what it is."""
        found = self._file.read(lambda txn: next_part(self._file, txn, query, after))
        if found is None:
            return None
        key, sealed = found
        if not sealed.begun:
            stale_ns = self.config.stale_ns
            sealed = self._file.write(
                lambda txn: begin_part(self._file, txn, key, sealed, now_ns, stale_ns)
            )
        name = self._names[query]
        stream = StreamId(self._file.read(self._known, name).stream)
        rows = self._file.read(lambda txn: self._file.get_rows(txn, sealed.part))
        place, partition = sealed_of(key)[1], sealed.part.partition
        chain = self._chain(name)
        return Sending(query, place, stream, chain, partition, sealed.first, sealed.previous, rows)

    def done(self, query: int, place: int) -> None:
        """A part was sent, and is stored where it has to be: nothing of it is needed any more."""
        part = self._file.write(lambda txn: drop_part(self._file, txn, sealed_key(query, place)))
        self._sealed_bytes -= part.size_bytes
        self._waiting[query] -= 1
        if not self._waiting[query]:
            del self._waiting[query]

    def sweep(self, now_ns: int) -> bool:
        """One step of forgetting what nobody can want; True while there is more to look at."""
        step = self._file.write(
            lambda txn: sweep_staged(
                self._file, txn, self._swept, self._staged_ns, self.config, now_ns
            )
        )
        self._swept = step.next
        for batch, size_bytes in step.dropped:
            self._add_staged(batch, -size_bytes)
        if step.next:
            return True
        forgotten = self._file.write(
            lambda txn: forget_batch_writes(self._file, txn, self._busy(), self.config, now_ns)
        )
        for number in forgotten:
            del self._names[number]
        return False

    # Inside transactions

    def _count(self, txn: Txn) -> None:
        file = self._file
        for name, query in file.after(txn, file.queries, b"", b"", Query):
            self._names[query.number] = name.decode()
        for key, staged in file.after(txn, file.staged, b"", b"", Staged):
            self._add_staged(staged_of(key), staged.size_bytes, staged.staged_ns)
        for key, sealed in file.after(txn, file.sealed, b"", b"", Sealed):
            number = sealed_of(key)[0]
            self._sealed_bytes += sealed.part.size_bytes
            self._waiting[number] = self._waiting.get(number, 0) + 1

    def _find(self, txn: Txn, name: str) -> Query | None:
        return self._file.get(txn, self._file.queries, name.encode(), Query)

    def _known(self, txn: Txn, name: str) -> Query:
        query = self._find(txn, name)
        if query is None:
            raise NotFound(f"query {name!r} is not known here: take an epoch for it first")
        return query

    def _current(self, txn: Txn, name: str, epoch: int) -> Query:
        query = self._known(txn, name)
        if epoch != query.epoch:
            raise Fenced(
                f"query {name} is at epoch {query.epoch} (run {query.run}), this is epoch {epoch}:"
                " another driver has taken it over, stop this one"
            )
        return query

    def _save(self, txn: Txn, name: str, query: Query) -> None:
        self._file.put(txn, self._file.queries, name.encode(), query)

    def _take_epoch(
        self, txn: Txn, name: str, run: str, stream: StreamId, once: bool, now_ns: int
    ) -> Query:
        query = self._find(txn, name)
        if query is None:
            known = txn.stat(self._file.queries)["entries"]
            if known >= self.config.queries_max:
                raise UsageError(
                    f"{known} queries are known here: use another node's outbox, or a new folder"
                )
            query = Query(self._file.next_number(txn), stream, once, 1, run, (), now_ns)
        elif query.stream != stream:
            raise UsageError(
                f"query {name} writes to {query.stream}, not to {stream}: a query keeps its"
                " stream; start it with a new checkpoint"
            )
        elif run in query.past:
            raise Fenced(
                f"run {run} of query {name} was followed by run {query.run}: another driver has"
                " taken it over, stop this one"
            )
        else:
            query.past = (*query.past, query.run)[-self.config.runs_max :]
            query.epoch, query.run, query.touched_ns = query.epoch + 1, run, now_ns
        self._save(txn, name, query)
        return query

    def _is_staged(self, txn: Txn, query: Query, at: ChunkPlace) -> bool:
        return txn.get(_key_of(query, at), db=self._file.staged) is not None

    def _stage(
        self, txn: Txn, at: ChunkPlace, encoded: Iterable[tuple[int, int, bytes]], now_ns: int
    ) -> None:
        file = self._file
        query = self._current(txn, at.query, at.epoch)
        parts = []
        for partition, count, rows in encoded:
            part = Part(file.next_number(txn), partition, count, len(rows))
            file.put_rows(txn, part, rows)
            parts.append(part)
        file.put(txn, file.staged, _key_of(query, at), Staged(tuple(parts), now_ns))

    def _seal(
        self, txn: Txn, name: str, epoch: int, batch: int, attempts: Sequence[Attempt], now_ns: int
    ) -> tuple[Query, list[Part] | None]:
        file = self._file
        query = self._current(txn, name, epoch)
        if batch <= query.batch:
            return query, None
        heads: dict[int, Head] = {}
        parts: list[Part] = []
        for attempt in sorted(attempts, key=lambda each: each.partition):
            for part in self._take_staged(txn, query, batch, attempt):
                key = chain_key(query.number, part.partition)
                head = heads.get(part.partition) or file.get(txn, file.chains, key, Head) or Head()
                first = position_after(head.given, now_ns)
                head.given = Position(first.timestamp_ms, first.sequence + part.count - 1)
                heads[part.partition] = head
                at = sealed_key(query.number, query.place)
                file.put(txn, file.sealed, at, Sealed(part, batch, first))
                query.place += 1
                parts.append(part)
        for partition, head in heads.items():
            file.put(txn, file.chains, chain_key(query.number, partition), head)
        query.batch, query.touched_ns = batch, now_ns
        self._save(txn, name, query)
        return query, parts

    def _take_staged(self, txn: Txn, query: Query, batch: int, attempt: Attempt) -> list[Part]:
        file, parts = self._file, list[Part]()
        for chunk in range(attempt.chunks):
            key = staged_key(
                query.number, query.epoch, batch, attempt.partition, attempt.attempt, chunk
            )
            staged = file.get(txn, file.staged, key, Staged)
            if staged is None:
                raise NotStaged(
                    f"batch {batch}, partition {attempt.partition}, attempt {attempt.attempt}:"
                    f" chunk {chunk} of {attempt.chunks} is not here: run the batch again"
                )
            txn.delete(key, db=file.staged)
            parts.extend(staged.parts)
        return parts

    def _discard(self, txn: Txn, name: str, epoch: int, batch: int) -> tuple[Query, int]:
        file, query = self._file, self._current(txn, name, epoch)
        prefix, dropped = staged_prefix(query.number, epoch, batch), 0
        for key, staged in list(file.after(txn, file.staged, prefix, prefix, Staged)):
            file.drop_staged(txn, key, staged)
            dropped += staged.size_bytes
        return query, dropped

    # Steps

    def _check_room(self, batch: tuple[int, int, int], size_bytes: int) -> None:
        most = self.config.size_bytes_max
        of_batch = self._staged_bytes.get(batch, 0) + size_bytes
        if of_batch > most:
            raise OutboxTooSmall(
                f"batch {batch[2]} has {of_batch} bytes staged, and the outbox takes {most}: raise"
                " megabytes_max under [outbox] in the node's network file, or write smaller batches"
            )
        if self.size_bytes + size_bytes > most:
            raise OutboxFull(
                f"{self.size_bytes} of {most} bytes are in use: try again when more is published"
            )

    def _add_staged(self, batch: tuple[int, int, int], size_bytes: int, staged_ns: int = 0) -> None:
        left = self._staged_bytes.pop(batch, 0) + size_bytes
        last_ns = max(self._staged_ns.pop(batch, 0), staged_ns)
        if left:
            self._staged_bytes[batch], self._staged_ns[batch] = left, last_ns

    def _busy(self) -> set[int]:
        """Queries of which there is something left, by number."""
        return {*self._waiting, *(query for query, _, _ in self._staged_bytes)}

    def _chain(self, name: str) -> str:
        return hashlib.sha256(self._file.id + name.encode()).hexdigest()[:16]


def _key_of(query: Query, at: ChunkPlace) -> bytes:
    return staged_key(query.number, at.epoch, at.batch, at.partition, at.attempt, at.chunk)
