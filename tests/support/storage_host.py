"""A storage node on a fake host: its disk is a real store, its signatures are cheap."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from pathlib import Path
from random import Random
from typing import Any

from shoal.base.ids import Contact, NodeId, StreamId
from shoal.identity import SeededEntropy
from shoal.kernel.effects import CheckAccess, Verify
from shoal.kernel.fake_host import FakeHost
from shoal.kernel.inputs import Verified
from shoal.kernel.machine import Machine
from shoal.kernel.records import Rejected
from shoal.protocols.streams.config import StorageConfig, SyncConfig
from shoal.protocols.streams.history.anti_entropy import StorageSync
from shoal.protocols.streams.history.log_entries import Permits
from shoal.protocols.streams.history.messages import ReadRange
from shoal.protocols.streams.history.storage_node import KeepMessage, StorageNode
from shoal.protocols.streams.permissions import AccessTable
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.protocols.streams.stream_quota import NameQuota
from shoal.protocols.streams.wire import HistoryCodec
from shoal.storage.config import DEFAULTS, StoreConfig
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_disk import StoreDisk
from tests.support.streams import ALICE, NOW_NS, STREAM, body_of, is_signed, message_id, signed_by

CODEC = HistoryCodec()


class StorageHost(FakeHost):
    """StorageNode and StorageSync; slow work is done when a test says so, or by `settle`."""

    def __init__(
        self,
        node: NodeId,
        folder: Path,
        *,
        peers: Sequence[NodeId] = (),
        streams: Sequence[StreamId] = (STREAM,),
        config: StorageConfig | None = None,
        sync_config: SyncConfig | None = None,
        store_config: StoreConfig = DEFAULTS,
        permissions: bool = False,
        permits: Permits = lambda _: False,
        signed: Callable[[Verify], bool] = is_signed,
        trackers: Sequence[NodeId] = (),
        quota: NameQuota | None = None,
        kept: Container[StreamId] = (),
        holds: Callable[[StreamId], bool] | None = None,
    ) -> None:
        """`signed` checks signatures: with topics they are real ones."""
        self._signed = signed
        self.store_below = Store(folder, SeededEntropy(node), store_config)
        self.port = StoreDisk(self.store_below)
        contacts = tuple(Contact(peer) for peer in peers)
        access = AccessTable() if permissions else None
        self.sync = StorageSync(
            node,
            lambda _: contacts,
            Random(1),
            sync_config,
            closed=permissions,
            permits=permits,
        )
        self.storage = StorageNode(
            node,
            lambda stream: stream in streams,
            config,
            access,
            self.sync.is_behind,
            self.sync.missed,
            lambda id: self.sync.stored((id.stream, id.partition)),
            lambda peer: peer in trackers,
            lambda stream: stream in kept,
            quota,
            holds=holds,
            replicas=self.sync.replicas,
            unaware=self.sync.unaware,
        )
        self.exchange: Callable[[], bool] = lambda: False
        """Says to other nodes what is to be said to them, and whether there was something."""
        machines: list[Machine] = [self.storage, self.sync]
        super().__init__(node, machines)
        self.time_ns = NOW_NS
        self.start()

    def finish_one(self, *, valid: bool = True) -> None:
        slot, work = self.slow_work.popleft()
        if isinstance(work, Verify):
            self.feed(slot, Verified(work.token, self._signed(work)))
        elif isinstance(work, CheckAccess):
            self.slow_work.appendleft((slot, work))
            super().finish_one()
        else:
            self.feed(slot, self.port.work([(slot, work)], self.time_ns)[0])
        for machine in self.machines:
            machine.check_invariants()

    def said(self, peer: NodeId) -> list[Any]:
        """What was sent to a peer since the last time, through the codec."""
        said = [CODEC.decode(CODEC.encode(message)) for to, message in self.sent if to == peer]
        self.sent = [entry for entry in self.sent if entry[0] != peer]
        return said

    def reasons(self) -> list[str]:
        """Why things were rejected."""
        return [record.reason for record in self.records if isinstance(record, Rejected)]

    def close(self) -> None:
        self.store_below.close()


def message(number: int, size: int = 10, **names: Any) -> VerifiedMessage:
    """A message of Carol's, a millisecond after the one before, signed as `is_signed` knows it."""
    id = message_id(0, timestamp_ms=NOW_NS // 1_000_000 - 100_000 + number, **names)
    body = body_of(id, number.to_bytes(4) + bytes(size))
    return VerifiedMessage(id, None, 0, body.content, signed_by(id.publisher, body))


def keep(host: StorageHost, *messages: VerifiedMessage) -> None:
    """The subscriber of a storage node hears these messages, and they are on disk."""
    for one in messages:
        host.command(host.storage, KeepMessage(one))
    host.finish_all()


def ask(host: StorageHost, question: Any) -> Any:
    """Alice asks, and is answered."""
    host.received(ALICE, question)
    host.finish_all()
    (answer,) = host.said(ALICE)
    return answer


def everything(request: int = 1, rows_max: int = 1000, after: Any = None) -> ReadRange:
    """A question for all that is kept of the stream."""
    return ReadRange(request, STREAM, 0, None, None, None, None, after, rows_max)
