"""A store behind the disk port: the machines of a storage node ask it by Store and Load.

All messages of a batch are appended in one transaction, whoever asked for it; then come changes of
replicas, then the questions. What cannot be done fails alone, and is said.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

import msgspec

from shoal.base.errors import MalformedMessage, NotFound, RemoteError, ShoalError, UsageError
from shoal.base.ids import MessageId, NodeId
from shoal.base.log_limit import log_of_others
from shoal.base.units import S_NS
from shoal.kernel.disk import DiskRequest, DiskResult
from shoal.kernel.effects import Load, Store
from shoal.kernel.inputs import Loaded, Stored, StoreFailed
from shoal.kernel.wall import WallClock
from shoal.protocols.streams.history.disk import (
    CONFLICT,
    DISK_FAILED,
    DIVERGED,
    MALFORMED,
    NOT_HELD,
    STORE_GONE,
    Compared,
    ComparedKey,
    FindCompared,
    FindGranted,
    Granted,
    GrantedKey,
    KeptRow,
    MendKey,
    ReplicaKey,
    Retain,
    Retained,
    decode_change,
    decode_key,
    decode_question,
    encode,
)
from shoal.protocols.streams.history.kept import read_kept
from shoal.protocols.streams.messages import VerifiedMessage
from shoal.storage.answers import Answers
from shoal.storage.errors import LogDiverged, RowDamaged, StoreDamaged, StoreError, StoreGone
from shoal.storage.rows import Conflict, ReplicaRow
from shoal.storage.store import Store as MessageStore

log = logging.getLogger("shoal.storage")
log_others = log_of_others("shoal.storage")

RETENTION_SETTLES_NS = 3600 * S_NS
"""After the start, and after the clock was set: retention has time, and clocks are set right within
minutes, where they are."""
LOG_AHEAD_NS = 60 * S_NS  # what clocks may differ
LOG_SETTLES_NS = 20 * S_NS
"""After the clock was set, for it may be set again. Until the next pass of retention, every 10 s,
rows come in at the time of the newest."""

COUNTS_TOLD = frozenset(10**power for power in range(1, 10))  # of failures of one kind


class StoreDisk:
    """The disk of a storage node. What goes wrong is in the log, and in `problem`."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self._problem: str | None = None
        self.unanswered: dict[str, int] = {}
        """How many questions failed, by what went wrong."""
        self._answers = Answers(store)
        self.wall = WallClock()
        self.wall_is_wrong = False
        """Trackers and storage nodes say so: nothing is let go for its age by the time of day."""
        self._begun_ns: int | None = None
        self.refused: str | None = None
        """Why nothing may be stored here any more, if so."""

    @property
    def problem(self) -> str | None:
        """Why the last batch could not be stored, or the next one cannot; None if all is well."""
        try:
            self.store.check_present()
        except StoreGone as error:
            return str(error)
        return self._problem

    @problem.setter
    def problem(self, problem: str | None) -> None:
        self._problem = problem

    def work(self, requests: Sequence[DiskRequest], now_ns: int) -> list[DiskResult]:
        steady_ns, now_ns = now_ns, self.wall.read(now_ns)  # rows carry the time of day
        if self._begun_ns is None:
            self._begin(steady_ns, now_ns)
        results: dict[int, DiskResult] = {}
        messages: dict[int, VerifiedMessage] = {}
        changes: dict[int, tuple[ReplicaKey | ComparedKey | GrantedKey, bytes]] = {}
        mended: dict[int, tuple[MendKey, VerifiedMessage]] = {}
        for at, (_, effect) in enumerate(requests):
            if isinstance(effect, Load):
                continue
            try:
                key = decode_key(effect.key)
                if isinstance(key, ReplicaKey | ComparedKey | GrantedKey):
                    changes[at] = key, effect.value or b""
                elif isinstance(key, MendKey):
                    mended[at] = key, read_kept(key.stream, effect.value or b"").message
                else:
                    messages[at] = read_kept(key.id.stream, effect.value or b"").message
            except (MalformedMessage, msgspec.MsgspecError) as error:
                log_others.error("a message that cannot be read was to be stored: %s", error)
                results[at] = StoreFailed(effect.token, MALFORMED)
        for at, failure in self._append(messages, now_ns).items():
            results[at] = _result(requests[at][1], failure)
        for at, (key, value) in changes.items():
            results[at] = _result(requests[at][1], self._change(key, value, now_ns))
        for at, (place, message) in mended.items():
            results[at] = _result(requests[at][1], self._mend(place, message))
        for at, (_, effect) in enumerate(requests):
            if isinstance(effect, Load):
                results[at] = Loaded(effect.token, self._answer(effect.key, steady_ns))
        return [results[at] for at in range(len(requests))]

    def refuse(self, problem: str) -> None:
        """Store nothing from now on: another node goes on under the name of this one's log. What
        is held is still told."""
        self.refused = self.problem = problem
        log.error("nothing can be stored: %s", problem)

    def clear(self) -> None:
        raise UsageError("a store is not cleared: close it, and remove its folder")

    def close(self) -> None:
        self.store.close()

    def _append(self, messages: dict[int, VerifiedMessage], now_ns: int) -> dict[int, str | None]:
        """Why each message could not be stored, or None."""
        if not messages:
            return {}
        if self.refused is not None:
            return dict.fromkeys(messages, DISK_FAILED)
        try:
            appended = self.store.append(list(messages.values()), now_ns)
        except (UsageError, StoreDamaged) as error:
            if len(messages) > 1:  # one that cannot be stored must not keep out the others
                every, half = list(messages.items()), len(messages) // 2
                first = self._append(dict(every[:half]), now_ns)
                return first | self._append(dict(every[half:]), now_ns)
            if isinstance(error, RowDamaged):
                return dict.fromkeys(messages, DISK_FAILED)  # that one alone cannot be told apart
            return dict.fromkeys(messages, self._failed(error))
        except ShoalError as error:
            return dict.fromkeys(messages, self._failed(error))
        self._problem = None
        return {
            at: CONFLICT if isinstance(result, Conflict) else None
            for at, result in zip(messages, appended, strict=True)
        }

    def _granted_name(self, node: NodeId) -> str:
        """What another log was, as of a copy that was restored, says nothing of this one."""
        return f"granted {self.store.log.hex} {node.hex()}"

    def _change(
        self, key: ReplicaKey | ComparedKey | GrantedKey, value: bytes, now_ns: int
    ) -> str | None:
        """Why rows could not be appended to a replica, or a note could not be made; or None."""
        if self.refused is not None:
            return DISK_FAILED
        if not isinstance(key, ReplicaKey):
            is_limit = isinstance(key, GrantedKey)
            name = self._granted_name(key.node) if is_limit else _note_name(key.node)
            try:
                self.store.put_note(name, value)
            except StoreError as error:
                return self._failed(error)
            return None
        replica = UUID(bytes=key.log)
        try:
            change = decode_change(value)
            rows = [_replica_row(key, row) for row in change.rows]
            if change.advance and rows:
                self.store.advance_replica(replica, key.stream, key.partition, rows[0].seq)
            self.store.append_replica(replica, key.stream, key.partition, rows, now_ns)
        except LogDiverged as error:
            log_others.warning("%s", error)
            return DIVERGED
        except NotFound:
            return NOT_HELD  # retention was faster than the peer's answer
        except (RemoteError, msgspec.MsgspecError, UsageError) as error:
            log_others.warning("rows of a replica were refused: %s", error)
            return MALFORMED
        except StoreError as error:
            return self._failed(error)
        self._problem = None
        return None

    def _mend(self, key: MendKey, message: VerifiedMessage) -> str | None:
        """Why a row could not be put right, or None."""
        try:
            done = self.store.mend(key.stream, key.partition, key.seq, message)
        except ShoalError as error:
            return self._failed(error)
        return None if done else NOT_HELD

    def _answer(self, key: bytes, steady_ns: int) -> bytes | None:
        try:
            question = decode_question(key)
            if isinstance(question, Retain):
                return encode(self._retain(steady_ns))
            if isinstance(question, FindCompared):
                return self.store.note(_note_name(question.node)) or encode(Compared())
            if isinstance(question, FindGranted):
                return self.store.note(self._granted_name(question.node)) or encode(Granted())
            return encode(self._answers.answer(question))
        except StoreGone as error:
            self._failed(error)
            return None
        except (ShoalError, msgspec.MsgspecError) as error:
            self._count_unanswered(error)
            return None

    def _begin(self, steady_ns: int, wall_ns: int) -> None:
        self._begun_ns = steady_ns
        try:
            self.store.begin_time(steady_ns, wall_ns)
        except ShoalError as error:
            self._failed(error)

    def _retain(self, steady_ns: int) -> Retained:
        wall_ns = self.wall.read(steady_ns)
        assert self._begun_ns is not None  # in `work`
        age_ns = min(steady_ns - self._begun_ns, steady_ns - self.wall.stepped_ns)
        settled = age_ns >= RETENTION_SETTLES_NS and not self.wall_is_wrong
        step = self.store.retain_carefully(steady_ns, wall_ns, settled=settled)
        certain_ns, ahead_ns = self.store.certain_ns, self.store.newest_ingest_ns - wall_ns
        if (
            ahead_ns > LOG_AHEAD_NS
            and self.wall.is_settled(steady_ns, LOG_SETTLES_NS)
            and not self.wall_is_wrong
            and certain_ns is not None
            and wall_ns > certain_ns - LOG_AHEAD_NS  # or the clock was set back, and is wrong now
        ):
            self._begin_log(ahead_ns, wall_ns)
        return Retained(step.removed, step.more)

    def _begin_log(self, ahead_ns: int, wall_ns: int) -> None:
        old = self.store.log
        try:
            new = self.store.new_log(wall_ns)
        except ShoalError as error:  # retention has done its step all the same
            self._count_unanswered(error)
            return
        log.warning(
            "rows of log %s came in up to %.0f s ahead of the clock, which was wrong then: the"
            " store goes on under log %s",
            *(old, ahead_ns / S_NS, new),
        )

    def _count_unanswered(self, error: Exception) -> None:
        """Tell the operator in full once for each kind; peers may ask the same without end."""
        kind = type(error).__name__
        count = self.unanswered[kind] = self.unanswered.get(kind, 0) + 1
        if count == 1:
            log.error("a question could not be answered: %s", error, exc_info=error)
        elif count in COUNTS_TOLD:
            log.error("%d questions could not be answered: %s, the last: %s", count, kind, error)

    def _failed(self, error: ShoalError) -> str:
        """Tell the operator, once for each new problem."""
        problem = str(error)
        if problem != self._problem:  # messages of others may bring it about, and in turn
            log_others.error("nothing can be stored: %s", problem)
        self._problem = problem
        return STORE_GONE if isinstance(error, StoreGone) else DISK_FAILED


def _note_name(node: NodeId) -> str:
    return f"compared {node.hex()}"


def _replica_row(key: ReplicaKey, row: KeptRow) -> ReplicaRow:
    id = MessageId(
        key.stream, key.partition, row.timestamp_ms, row.sequence, row.publisher, row.chain
    )
    message = None if row.signed is None else read_kept(key.stream, row.signed).message
    return ReplicaRow(row.seq, row.ingest_ns, id, message, row.lost)


def _result(effect: Store | Load, failure: str | None) -> DiskResult:
    return Stored(effect.token) if failure is None else StoreFailed(effect.token, failure)
