"""The durable outbox of a publishing node: what a Spark query writes becomes messages exactly once.

Tasks stage rows, under their query, epoch, batch, Spark partition and attempt. Sealing a batch
decides which attempts count, in one transaction: the first seal of a batch wins. Each run of a
query takes an epoch, higher than all before it; whoever comes with an older one is fenced.

Spark replays only its last batch. So the number of the last sealed batch is a replay if that batch
was planned once, or has the same rows from the same source offsets; then its rows are ignored. An
older number, or another batch under the same number, comes from a checkpoint that was restored from
an old copy: it is refused, since ignoring its rows would lose them.

Room. A task that is tried again, or run twice, stages its rows twice: the larger attempt counts,
and of more than two the one that stood still for longest is dropped. All batches together may use
one eighth of the room. One batch at a time, the holder, may use all the rest until it is sealed or
given up; so it can always be completed, and the others wait for it.

There is one chain per query and partition of the stream, and sealing gives every row its place in
it. A chain that has come far ahead of the clock, by a wrong reading, ends, and goes on under the
next name: its own with a number, 2 and up. The messages are not written down: what is signed
follows from what is, byte for byte, as signatures are deterministic. So whatever was sent before a
crash is sent again as it was. Only a part of which nothing can have been sent may still move, to a
later time: nodes refuse messages older than some minutes, and the network may have been out of
reach for longer.

Not for several threads at once: its owner has one.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path

import msgspec

from shoal.base.errors import NotFound, UsageError
from shoal.base.gateway_messages import Fingerprint
from shoal.base.ids import NodeId, StreamId
from shoal.base.units import MS_NS, S_NS
from shoal.identity import Entropy
from shoal.identity.message_body import Position
from shoal.protocols.streams.config import CHAIN_AHEAD_NS
from shoal.storage.config import OutboxConfig, StoreConfig
from shoal.storage.errors import (
    Fenced,
    MissingBatches,
    NotAReplay,
    NotStaged,
    OutboxFull,
    OutboxTooSmall,
)
from shoal.storage.lmdb_file import Txn
from shoal.storage.outbox_file import (
    NAME_CHARS_MAX,
    Attempt,
    ChunkPlace,
    Head,
    Holder,
    OutboxFile,
    Part,
    Query,
    QueryState,
    Rows,
    SealAnswer,
    Sealed,
    Sending,
    Staged,
    StagedAt,
    attempt_prefix,
    chain_key,
    encode_rows,
    query_key,
    sealed_key,
    sealed_of,
    staged_key,
    staged_of,
    staged_prefix,
)

log = logging.getLogger("shoal.storage")
BatchPlace = tuple[int, int, int]
"""Query, epoch, batch."""


class _StagedBatch:
    """How much is staged of a batch, by task and attempt."""

    def __init__(self) -> None:
        self.tasks: dict[int, dict[int, int]] = {}
        """Bytes, by partition and attempt; the attempt that handed in last is the last."""
        self.size_bytes = 0
        """What counts: of each task its largest attempt."""
        self.staged_ns = 0

    def growth(self, partition: int, attempt: int, size_bytes: int) -> int:
        """How much more would count."""
        attempts = self.tasks.get(partition, {})
        before = max(attempts.values(), default=0)
        return max(before, attempts.get(attempt, 0) + size_bytes) - before

    def add(self, partition: int, attempt: int, size_bytes: int, staged_ns: int) -> None:
        """Rows came, or went."""
        attempts = self.tasks.setdefault(partition, {})
        before = max(attempts.values(), default=0)
        attempts[attempt] = attempts.pop(attempt, 0) + size_bytes
        if not attempts[attempt]:
            del attempts[attempt]
        self.size_bytes += max(attempts.values(), default=0) - before
        self.staged_ns = max(self.staged_ns, staged_ns)
        if not attempts:
            del self.tasks[partition]


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
        self._staged: dict[BatchPlace, _StagedBatch] = {}
        self._holder: BatchPlace | None = None
        self._given_up: dict[int, tuple[int, int]] = {}  # the last epoch and batch, by query
        if self._file.restored:
            log.warning("%s is a copy: what was sealed keeps its places", self._file.file)
            self._file.write(lambda txn: begin_restored(self._file, txn))
        self._sealed_bytes = 0
        self._waiting: dict[int, int] = {}  # sealed parts, by query
        self._names: dict[int, str] = {}
        self._swept = b""
        self._file.read(self._count)
        if self._beside_holder() > self._shared_bytes:
            self._holder = max(self._staged, key=lambda place: self._staged[place].size_bytes)

    def close(self) -> None:
        """Closing twice is fine."""
        self._file.close()

    @property
    def size_bytes(self) -> int:
        """Rows that are staged, or sealed and not yet done with."""
        return self._sealed_bytes + sum(batch.size_bytes for batch in self._staged.values())

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
        source = query.fingerprint.source
        return QueryState(name, query.stream, query.epoch, query.batch, waiting, source)

    def holder(self) -> Holder | None:
        """The batch that others wait for when they need more than the shared part of the room."""
        if self._holder is None:
            return None
        number, epoch, batch = self._holder
        staged = self._staged.get(self._holder, _StagedBatch())
        return Holder(self._names[number], epoch, batch, staged.size_bytes, staged.staged_ns)

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
        self._forget_staged(place for place in self._staged if place[0] == query.number)
        self._given_up.pop(query.number, None)
        return query.epoch

    def stage(self, at: ChunkPlace, groups: Mapping[int, Rows], now_ns: int) -> bool:
        """Keep rows of a task, by partition of the stream; False if the batch was sealed before.
        A chunk that comes twice counts once; chunks of an attempt come in order."""
        encoded = [(p, len(rows), encode_rows(rows)) for p, rows in groups.items() if rows]
        size_bytes = sum(len(raw) for _, _, raw in encoded)
        query = self._file.read(self._current, at.query, at.epoch)
        if at.batch == query.batch:
            return False
        _check_number(at.query, query, at.batch)
        place = (query.number, at.epoch, at.batch)
        self._check_not_given_up(place)
        if self._file.read(self._is_staged, query, at):
            return True  # its answer was lost on the way: it takes no more room
        if at.chunk and not self._file.read(
            self._is_staged, query, msgspec.structs.replace(at, chunk=at.chunk - 1)
        ):
            raise NotStaged(
                f"batch {at.batch}, partition {at.partition}: what attempt {at.attempt} handed in"
                " before is gone, since newer attempts took its place or it was too long ago: end"
                " this attempt"
            )
        self._drop_idle_attempt(place, at)
        holder = self._holder_with(place, at, size_bytes, now_ns)
        self._file.write(self._stage, at, encoded, now_ns)
        self._holder = holder
        self._add_staged(StagedAt(*place, at.partition, at.attempt, 0), size_bytes, now_ns)
        return True

    def seal(
        self,
        name: str,
        epoch: int,
        batch: int,
        attempts: Sequence[Attempt],
        now_ns: int,
        fingerprint: Fingerprint = Fingerprint(),  # noqa: B008 - it is frozen
    ) -> SealAnswer:
        """Decide that these attempts are the batch. Atomic; the first seal of a batch wins, and
        what comes again under its number has to be the same batch: NotAReplay if it is not."""
        partitions = [attempt.partition for attempt in attempts]
        if len(set(partitions)) < len(partitions):
            raise UsageError(f"batch {batch}: two attempts of one partition: name the one to count")
        query, parts = self._file.write(
            self._seal, name, epoch, batch, attempts, now_ns, fingerprint
        )
        if parts is None:
            changed = not fingerprint.has_same_rows(query.fingerprint)
            return SealAnswer(0, replayed=True, changed=changed)
        self._sealed_bytes += sum(part.size_bytes for part in parts)
        self._forget_staged([(query.number, epoch, batch)])
        if parts:
            self._waiting[query.number] = self._waiting.get(query.number, 0) + len(parts)
        return SealAnswer(sum(part.count for part in parts), replayed=False)

    def discard(self, name: str, epoch: int, batch: int) -> None:
        """A job was given up: what it staged of a batch that is not sealed is not needed, and
        tasks of it that still run are refused."""
        query = self._file.write(self._discard, name, epoch, batch)
        self._forget_staged([(query.number, epoch, batch)])
        if batch > query.batch:
            self._given_up[query.number] = (epoch, batch)

    def discard_attempt(
        self, name: str, epoch: int, batch: int, partition: int, attempt: int
    ) -> None:
        """A task failed: what this attempt staged is not needed."""
        query = self._file.read(self._current, name, epoch)
        place = (query.number, epoch, batch)
        if attempt in self._attempts(place, partition):
            self._drop_attempt(place, partition, attempt)

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
            sealed = self._place(key, sealed, now_ns)
        return self._sending(query, key, sealed)

    def move(self, query: int, place: int, now_ns: int) -> Sending:
        """A part that was begun with a time far ahead of the clock, and that nobody has, gets
        another place: where it was everybody would refuse it."""
        key = sealed_key(query, place)
        sealed = self._file.read(lambda txn: self._file.get(txn, self._file.sealed, key, Sealed))
        assert sealed is not None  # it waits
        return self._sending(query, key, self._place(key, sealed, now_ns))

    def _place(self, key: bytes, sealed: Sealed, now_ns: int) -> Sealed:
        stale_ns = self.config.stale_ns
        return self._file.write(
            lambda txn: begin_part(self._file, txn, key, sealed, now_ns, stale_ns)
        )

    def _sending(self, query: int, key: bytes, sealed: Sealed) -> Sending:
        name = self._names[query]
        stream = StreamId(self._file.read(self._known, name).stream)
        rows = self._file.read(lambda txn: self._file.get_rows(txn, sealed.part))
        place, partition = sealed_of(key)[1], sealed.part.partition
        chain = self._chain(name, sealed.chain)
        return Sending(query, place, stream, chain, partition, sealed.first, sealed.previous, rows)

    def done(self, query: int, place: int) -> None:
        """A part was sent, and is stored where it has to be: nothing of it is needed any more."""
        part = self._file.write(lambda txn: drop_part(self._file, txn, sealed_key(query, place)))
        self._sealed_bytes -= part.size_bytes
        self._waiting[query] -= 1
        if not self._waiting[query]:
            del self._waiting[query]

    def sweep(self, now_ns: int) -> bool:
        """One step of forgetting what nobody can want, by a clock that can be believed; True while
        there is more to look at."""
        for batch in self._staged.values():
            # Staged while the clock was ahead: it is not to stay for as long as that was.
            batch.staged_ns = min(batch.staged_ns, now_ns)
        last_ns = {place: batch.staged_ns for place, batch in self._staged.items()}
        step = self._file.write(
            lambda txn: sweep_staged(self._file, txn, self._swept, last_ns, self.config, now_ns)
        )
        self._swept = step.next
        for at, size_bytes in step.dropped:
            self._add_staged(at, -size_bytes)
        if step.next:
            return True
        forgotten = self._file.write(
            lambda txn: forget_batch_writes(self._file, txn, self._busy(), self.config, now_ns)
        )
        for number in forgotten:
            del self._names[number]
            self._given_up.pop(number, None)
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
            self._file.drop_all_staged(txn, query_key(query.number))  # of runs that are fenced
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
        self,
        txn: Txn,
        name: str,
        epoch: int,
        batch: int,
        attempts: Sequence[Attempt],
        now_ns: int,
        fingerprint: Fingerprint,
    ) -> tuple[Query, list[Part] | None]:
        file = self._file
        query = self._current(txn, name, epoch)
        if batch == query.batch:
            _check_replay(name, query, fingerprint)
            return query, None
        _check_number(name, query, batch)
        self._check_not_given_up((query.number, epoch, batch))
        heads: dict[int, Head] = {}
        parts: list[Part] = []
        for attempt in sorted(attempts, key=lambda each: each.partition):
            for part in self._take_staged(txn, query, batch, attempt):
                key = chain_key(query.number, part.partition)
                head = heads.get(part.partition) or file.get(txn, file.chains, key, Head) or Head()
                go_on(head, now_ns)
                first = position_after(head.given, now_ns)
                head.given = Position(first.timestamp_ms, first.sequence + part.count - 1)
                heads[part.partition] = head
                at = sealed_key(query.number, query.place)
                file.put(txn, file.sealed, at, Sealed(part, batch, first, chain=head.chain))
                query.place += 1
                parts.append(part)
        for partition, head in heads.items():
            file.put(txn, file.chains, chain_key(query.number, partition), head)
        file.drop_all_staged(txn, staged_prefix(query.number, epoch, batch))  # other attempts
        query.batch, query.touched_ns, query.fingerprint = batch, now_ns, fingerprint
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

    def _discard(self, txn: Txn, name: str, epoch: int, batch: int) -> Query:
        query = self._current(txn, name, epoch)
        self._file.drop_all_staged(txn, staged_prefix(query.number, epoch, batch))
        return query

    # Room

    @property
    def _shared_bytes(self) -> int:
        """What all batches may use together, beside the holder."""
        return self.config.size_bytes_max // self.config.shared_part

    def _beside_holder(self) -> int:
        return sum(b.size_bytes for place, b in self._staged.items() if place != self._holder)

    def _holder_with(
        self, place: BatchPlace, at: ChunkPlace, size_bytes: int, now_ns: int
    ) -> BatchPlace | None:
        """Who is the holder when a batch uses so much more; raises if it may not."""
        most, shared = self.config.size_bytes_max, self._shared_bytes
        batch = self._staged.get(place, _StagedBatch())
        growth = batch.growth(at.partition, at.attempt, size_bytes)
        if batch.size_bytes + growth > most - shared:
            raise OutboxTooSmall(
                f"batch {at.batch} has {batch.size_bytes + growth} bytes staged, and one batch may"
                f" use {most - shared} of the outbox's {most}: raise megabytes_max under [outbox]"
                " in the node's network file, or write smaller batches"
            )
        holder = self._holder
        if place != holder and self._beside_holder() + growth > shared:
            if holder is not None:
                raise OutboxFull(self._held_text(now_ns))
            holder = place
        if self.size_bytes + growth > most:
            raise OutboxFull(
                f"{self.size_bytes} of {most} bytes are in use, {self._sealed_bytes} of them sealed"
                " and not yet published: try again when more is published",
                publishing=True,
            )
        return holder

    def _held_text(self, now_ns: int) -> str:
        holder = self.holder()
        assert holder is not None
        discard = f'{{"query": "{holder.query}", "epoch": {holder.epoch}, "batch": {holder.batch}}}'
        silent_s = max(0, now_ns - holder.staged_ns) // S_NS
        return (
            f"the room is held by batch {holder.batch} of query {holder.query}"
            f" ({holder.size_bytes} bytes, the last of them {silent_s} s ago), and the"
            f" {self._shared_bytes} bytes that all others share are in use: try again when that"
            " batch is sealed. If its job is dead, POST /outbox/discard with"
            f" {discard} gives the room back"
        )

    def _attempts(self, place: BatchPlace, partition: int) -> dict[int, int]:
        """Bytes of each attempt of a task; the one that handed in last is the last."""
        batch = self._staged.get(place)
        return {} if batch is None else batch.tasks.get(partition, {})

    def _drop_idle_attempt(self, place: BatchPlace, at: ChunkPlace) -> None:
        """Make place for a new attempt of a task."""
        attempts = self._attempts(place, at.partition)
        if at.attempt not in attempts and len(attempts) >= self.config.attempts_max:
            self._drop_attempt(place, at.partition, next(iter(attempts)))

    def _drop_attempt(self, place: BatchPlace, partition: int, attempt: int) -> None:
        prefix = attempt_prefix(*place, partition, attempt)
        self._file.write(self._file.drop_all_staged, prefix)
        size_bytes = self._attempts(place, partition)[attempt]
        self._add_staged(StagedAt(*place, partition, attempt, 0), -size_bytes)

    def _add_staged(self, at: StagedAt, size_bytes: int, staged_ns: int = 0) -> None:
        place = at[:3]
        batch = self._staged.get(place)
        if batch is None:
            batch = self._staged[place] = _StagedBatch()
        batch.add(at.partition, at.attempt, size_bytes, staged_ns)
        if not batch.tasks:
            self._forget_staged([place])

    def _forget_staged(self, places: Iterable[BatchPlace]) -> None:
        for place in list(places):
            self._staged.pop(place, None)
            if place == self._holder:
                self._holder = None

    def _check_not_given_up(self, place: BatchPlace) -> None:
        number, epoch, batch = place
        if self._given_up.get(number) == (epoch, batch):
            raise Fenced(
                f"batch {batch} of query {self._names[number]} was given up by its driver, whose"
                " job failed: end this task, and start the job again"
            )

    def _busy(self) -> set[int]:
        """Queries of which there is something left, by number."""
        return {*self._waiting, *(query for query, _, _ in self._staged)}

    def _chain(self, name: str, number: int) -> str:
        first = hashlib.sha256(self._file.id + name.encode()).hexdigest()[:16]
        return first if number == 1 else f"{first}.{number}"


def _check_number(name: str, query: Query, batch: int) -> None:
    """Spark numbers its batches one by one, and each of them is sealed."""
    if batch < query.batch:
        raise NotAReplay(
            f"batch {batch} of query {name} is older than the last sealed one, {query.batch}, and"
            f" Spark replays only its last batch: {_restored(query.fingerprint.source)}"
        )
    if query.batch < batch - 1:
        last = f"the last one that was sealed here is {query.batch}"
        raise MissingBatches(
            f"batch {batch} of query {name} comes next, and"
            f" {'none of it was sealed here' if query.batch < 0 else last}: the outbox was restored"
            " from an old copy or made anew, or the query wrote to another one before. What is"
            " between may not have been published. Start the query with a new checkpoint where its"
            " rows are missing"
            + _where(query.fingerprint.source, " (the last sealed batch ended at {})")
        )


def _check_replay(name: str, query: Query, fingerprint: Fingerprint) -> None:
    sealed = query.fingerprint
    if not fingerprint.is_replay_of(sealed):
        raise NotAReplay(
            f"batch {query.batch} of query {name} was sealed with {sealed.rows} rows (digest"
            f" {sealed.digest[:8]}), and comes again with {fingerprint.rows} others (digest"
            f" {fingerprint.digest[:8]}) or from elsewhere: {_restored(sealed.source)}"
            + ("" if sealed.plan and fingerprint.plan else _UNREAD)
        )


_UNREAD = (
    ". If the checkpoint was not restored, the query gives other rows each time it runs: give"
    " checkpointLocation as an option of the write, at a place that the driver can read, so that"
    " such a replay is known"
)


def _restored(source: str) -> str:
    return (
        "the checkpoint was restored from an old copy, or written anew, and nothing of this batch"
        " was published. Restore the newest checkpoint; or start the query with a new checkpoint"
        " where the last sealed batch ends" + _where(source, ", with startingOffsets = {}")
    )


def _where(source: str, text: str) -> str:
    """The offsets of a query with one source, as startingOffsets takes them."""
    return text.format(source) if source.startswith("{") and "\n" not in source else ""


def _key_of(query: Query, at: ChunkPlace) -> bytes:
    return staged_key(query.number, at.epoch, at.batch, at.partition, at.attempt, at.chunk)


# Sealed parts on their way out: which is next, where it stands for good, and its end.


def next_part(file: OutboxFile, txn: Txn, query: int, after: int) -> tuple[bytes, Sealed] | None:
    """The first part of a query behind a place, and its key."""
    first = sealed_key(query, after + 1)
    return next(file.after(txn, file.sealed, query_key(query), first, Sealed), None)


def begin_part(
    file: OutboxFile, txn: Txn, key: bytes, sealed: Sealed, now_ns: int, stale_ns: int
) -> Sealed:
    """Fix the place of a part in its chain, before any of it is sent. It is the one that its seal
    gave, unless that was too long ago, or the part before it had to move past it."""
    at = chain_key(sealed_of(key)[0], sealed.part.partition)
    head = file.get(txn, file.chains, at, Head)
    assert head is not None  # its batch was sealed
    go_on(head, now_ns)
    first, sent = sealed.first, head.sent
    is_stale = now_ns - first.timestamp_ms * MS_NS > stale_ns
    is_elsewhere = sealed.chain != head.chain or is_ahead(first, now_ns)
    if is_stale or is_elsewhere or (sent is not None and first <= sent):
        first = position_after(sent, now_ns)
    head.sent = Position(first.timestamp_ms, first.sequence + sealed.part.count - 1)
    head.given = head.sent if head.given is None else max(head.given, head.sent)
    file.put(txn, file.chains, at, head)
    begun = Sealed(sealed.part, sealed.batch, first, True, sent, head.chain)
    file.put(txn, file.sealed, key, begun)
    return begun


def begin_restored(file: OutboxFile, txn: Txn) -> None:
    """An outbox goes on from a copy: its node may have sent since what is sealed here. So all of it
    has its place for good, however long ago that was given: storage nodes know what they have by
    its place, and keep it once."""
    for key, sealed in list(file.after(txn, file.sealed, b"", b"", Sealed)):
        if not sealed.begun:
            # Judged at the time of its own place, which is then neither late nor ahead.
            at_ns = sealed.first.timestamp_ms * MS_NS
            begin_part(file, txn, key, sealed, now_ns=at_ns, stale_ns=0)
    file.settle_restored(txn)


def is_ahead(position: Position, now_ns: int) -> bool:
    """Whether a position is so far ahead of the clock that nodes may refuse it."""
    return position.timestamp_ms * MS_NS - now_ns > CHAIN_AHEAD_NS


def go_on(head: Head, now_ns: int) -> None:
    """Have a chain whose positions can be used now: what was given too far ahead, and not sent, is
    given anew; a chain that was sent too far ahead ends, and the next one begins."""
    if head.sent is not None and is_ahead(head.sent, now_ns):
        head.ended, head.given, head.sent = head.sent, None, None
        head.chain += 1
    if head.given is not None and is_ahead(head.given, now_ns):
        head.given = head.sent


def drop_part(file: OutboxFile, txn: Txn, key: bytes) -> Part:
    """Forget a part that everybody has who should."""
    sealed = file.get(txn, file.sealed, key, Sealed)
    assert sealed is not None  # one thread, and it was sent
    file.drop_rows(txn, sealed.part)
    txn.delete(key, db=file.sealed)
    return sealed.part


def position_after(last: Position | None, now_ns: int) -> Position:
    """The next position of a chain; its time never falls behind the one before."""
    now_ms = now_ns // MS_NS
    if last is None or last.timestamp_ms < now_ms:
        return Position(now_ms, 0)
    return Position(last.timestamp_ms, last.sequence + 1)


# What an outbox forgets: leftovers of attempts that do not count, and batch writes long done.


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
