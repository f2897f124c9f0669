"""What a tracker is asked by those who need more of a stream than neighbours: who keeps it, and who
has a publisher's keys."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from shoal.base.ids import NodeId, StreamId
from shoal.kernel.contact import Contact
from shoal.kernel.effects import Effect, Send
from shoal.kernel.records import Rejected
from shoal.protocols.streams.admission import Admission
from shoal.protocols.streams.config import STORAGE_NODES_MAX, TrackerConfig
from shoal.protocols.streams.introducing import introduce
from shoal.protocols.streams.messages import FindHolders, FindStorage, StorageNodes
from shoal.protocols.streams.tracked_stream import TrackedStream
from shoal.protocols.streams.tracker_limits import TrackerLimits

Question = FindStorage | FindHolders
StorageOf = Callable[[StreamId], tuple[Contact, ...]]


class Questions:
    """All of them, at one tracker."""

    def __init__(
        self,
        streams: Mapping[StreamId, TrackedStream],
        gone: Container[NodeId],
        storage_of: StorageOf,
        admission: Admission,
        config: TrackerConfig,
    ) -> None:
        """Streams, and the members whose link is down, are the tracker's own, and only read."""
        self._streams = streams
        self._gone = gone
        self._storage_of = storage_of
        self._admission = admission
        self._config = config

    def asked(
        self, peer: NodeId, question: Question, limits: TrackerLimits, now_ns: int
    ) -> list[Effect]:
        """Answer, or find out first whether the asker may know."""
        introduces = isinstance(question, FindHolders)
        may = limits.may_be_introduced if introduces else limits.may_ask
        if not may(peer, now_ns):
            return [Rejected(peer, "too-many-questions")]
        waits = self._admission.wait(peer, question, now_ns)
        return self.answer(peer, question, now_ns) if waits is None else waits

    def answer(self, peer: NodeId, question: Question, now_ns: int) -> list[Effect]:
        """The asker may know."""
        stream = question.stream
        if isinstance(question, FindStorage):
            return [Send(StorageNodes(stream, self.storage_nodes(stream)), (peer,))]

        def may_read(node: NodeId) -> bool:
            return self._admission.may_read(stream, node, now_ns)

        state = self._streams.get(stream)
        return introduce(state, peer, question, may_read, self._gone, self._config, now_ns)

    def storage_nodes(self, stream: StreamId) -> tuple[Contact, ...]:
        """Who keeps a stream. Where a member says that it is reached, it is: its settings may
        name the port of yesterday."""
        state = self._streams.get(stream)
        members = {} if state is None else state.members
        contacts = self._storage_of(stream)[:STORAGE_NODES_MAX]
        joined = [members[c.node].contact if c.node in members else c for c in contacts]
        return tuple(j if j.addresses else c for j, c in zip(joined, contacts, strict=True))
