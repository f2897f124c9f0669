"""A store as one would write it without a disk: lists and dictionaries, nothing clever."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.identity import SIGNATURE_BYTES
from shoal.identity.message_body import Position
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.storage.message_store.store_types import (
    Appended,
    Conflict,
    Duplicate,
    LogHead,
    LogId,
    Row,
    Stored,
)

Place = tuple[StreamId, int]


def place_of(id: MessageId) -> Place:
    return id.stream, id.partition


def order(row: Row) -> tuple[int, int, bytes, str]:
    return row.id.timestamp_ms, row.id.sequence, row.id.publisher, row.id.chain


class Log:
    """Rows of one log at one place, all that ever were."""

    def __init__(self, first: int = 1) -> None:
        self.first = first
        self.rows: list[Row] = []
        self.before = first - 1

    @property
    def last(self) -> int:
        return self.before + len(self.rows)

    @property
    def ingest_ns(self) -> int:
        return self.rows[-1].ingest_ns if self.rows else 0

    def row(self, seq: int) -> Row:
        return self.rows[seq - self.before - 1]

    def after(self, seq: int) -> list[Row]:
        return [row for row in self.rows if row.seq > seq]


class NaiveStore:
    """What a store must say."""

    def __init__(self, own: LogId) -> None:
        self.own = own
        self.held: dict[MessageId, Row] = {}
        self.logs: dict[tuple[LogId, Place], Log] = {}
        self.holders: dict[MessageId, list[tuple[LogId, int]]] = {}
        self.leases: dict[tuple[str, LogId, Place], tuple[int, int]] = {}
        self.horizons: dict[Place, int] = {}
        self.closed: list[LogId] = []
        """Logs that were the own one."""
        self.shared: dict[tuple[LogId, Place], int] = {}

    # Writing

    def append(self, batch: Sequence[VerifiedMessage], now_ns: int) -> list[Appended]:
        return [self.accept(message, now_ns) for message in batch]

    def accept(self, message: VerifiedMessage, now_ns: int) -> Appended:
        held = self.held.get(message.id)
        if held is not None:
            if held.signed[SIGNATURE_BYTES:] == message.signed[SIGNATURE_BYTES:]:
                return Duplicate(held.seq)
            return Conflict(held.seq, held.signed, message.signed)
        log = self.logs.setdefault((self.own, place_of(message.id)), Log())
        row = Row(message.id, log.last + 1, max(now_ns, log.ingest_ns), message.signed)
        log.rows.append(row)
        self.held[message.id] = row
        return Stored(row.seq)

    def append_replica(self, log: LogId, place: Place, rows: Iterable[Row], now_ns: int) -> int:
        appended = 0
        for row in rows:
            replica = self.logs.setdefault((log, place), Log(row.seq))
            if row.seq <= replica.last:
                continue
            self.accept(VerifiedMessage(row.id, None, 0, b"", row.signed), now_ns)
            held = self.held[row.id]
            same = held.signed[SIGNATURE_BYTES:] == row.signed[SIGNATURE_BYTES:]
            signed = held.signed if same else row.signed
            replica.rows.append(Row(row.id, row.seq, row.ingest_ns, signed))
            self.holders.setdefault(row.id, []).append((log, row.seq))
            appended += 1
        return appended

    def advance(self, log: LogId, place: Place, first: int) -> bool:
        replica = self.logs.get((log, place))
        if replica is not None and first <= replica.last + 1:
            return False
        self.logs[log, place] = Log(first)
        return True

    def retain(self, now_ns: int, age_ns: int) -> int:
        removed = 0
        for (log, place), own in self.logs.items():
            if log != self.own:
                continue
            while own.first <= own.last and own.row(own.first).ingest_ns + age_ns <= now_ns:
                if self.is_leased(own.row(own.first), place, now_ns):
                    break
                self.remove(own.row(own.first), place)
                own.first += 1
                removed += 1
        return removed

    def is_leased(self, row: Row, place: Place, now_ns: int) -> bool:
        named = [(self.own, row.seq), *self.holders.get(row.id, [])]
        return any(
            seq > after_seq and expires_ns > now_ns and (log, place) == (leased, at)
            for log, seq in named
            for (_, leased, at), (after_seq, expires_ns) in self.leases.items()
        )

    def remove(self, row: Row, place: Place) -> None:
        del self.held[row.id]
        for log, seq in self.holders.pop(row.id, []):
            replica = self.logs[log, place]
            replica.first = max(replica.first, seq + 1)
        self.horizons[place] = max(self.horizons.get(place, 0), row.id.timestamp_ms + 1)

    def new_log(self, log: LogId, now_ns: int, *, keep_old: bool) -> None:
        old, self.own = self.own, log
        for (id, place), at in list(self.logs.items()):
            if id != old:
                continue
            new = self.logs[log, place] = Log()
            new.first, new.before = at.first, at.before
            new.rows = [Row(r.id, r.seq, min(r.ingest_ns, now_ns), r.signed) for r in at.rows]
            if not keep_old:
                del self.logs[old, place]
                continue
            self.shared[old, place] = at.last
            for row in at.after(at.first - 1):
                self.holders.setdefault(row.id, []).append((old, row.seq))
        if keep_old:
            self.closed.append(old)
        else:
            self.leases = {key: at for key, at in self.leases.items() if key[1] != old}

    # Reading

    def range(
        self,
        place: Place,
        begin: Position | None = None,
        end: Position | None = None,
        publisher: NodeId | None = None,
        chain: str | None = None,
    ) -> list[Row]:
        found = [
            row
            for row in self.held.values()
            if place_of(row.id) == place
            and publisher in (None, row.id.publisher)
            and chain in (None, row.id.chain)
            and (begin is None or begin <= Position(row.id.timestamp_ms, row.id.sequence))
            and (end is None or Position(row.id.timestamp_ms, row.id.sequence) <= end)
        ]
        return sorted(found, key=order)

    def holds(self, message: VerifiedMessage) -> bool:
        held = self.held.get(message.id)
        return (
            held is not None and held.signed[SIGNATURE_BYTES:] == message.signed[SIGNATURE_BYTES:]
        )

    def heads(self, place: Place) -> dict[LogId, LogHead]:
        found = {self.own: LogHead(1, 0)}
        found.update(
            {
                log: LogHead(at.first, at.last)
                for (log, there), at in self.logs.items()
                if there == place
            }
        )
        return found

    def log(self, log: LogId, place: Place) -> Log | None:
        return self.logs.get((log, place), Log() if log == self.own else None)

    def minus(self, rows: Sequence[Row], minus: dict[LogId, int]) -> list[Row]:
        def is_in(row: Row) -> bool:
            named = [(self.own, self.held[row.id].seq), *self.holders.get(row.id, [])]
            return any(seq <= minus.get(log, 0) for log, seq in named)

        return [row for row in rows if not is_in(row)]
