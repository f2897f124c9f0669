"""What the key exchange knows of a node's place in its streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shoal.base.ids import NodeId, StreamId
from shoal.kernel.contact import Contact
from shoal.protocols.streams.node import StreamNode


class Vicinity(Protocol):
    """Who is around, in each stream."""

    def neighbours(self, stream: StreamId) -> Sequence[NodeId]:
        """Who is linked with us in the overlay."""
        ...

    def tracker(self, stream: StreamId) -> NodeId | None:
        """Whose word on the stream counts."""
        ...

    def trackers(self, stream: StreamId) -> Sequence[Contact]:
        """Whom to ask about the stream, one after the other."""
        ...


class StreamVicinity:
    """As the stream machine of the same node has it, which is only read."""

    def __init__(self, streams: StreamNode) -> None:
        self._streams = streams

    def neighbours(self, stream: StreamId) -> Sequence[NodeId]:
        state = self._streams.streams.get(stream)
        return () if state is None else state.channel.active

    def tracker(self, stream: StreamId) -> NodeId | None:
        return self._streams.trackers.at(stream)

    def trackers(self, stream: StreamId) -> Sequence[Contact]:
        """The one that the stream is with, for it knows us; whoever is not in it asks them all."""
        ring, at = self._streams.trackers.ring, self.tracker(stream)
        return ring.order(stream) if at is None else (ring.trackers[at],)


class FixedVicinity:
    """The fake of the port: in every stream the same, as a test says."""

    def __init__(self, neighbours: Sequence[NodeId] = (), trackers: Sequence[Contact] = ()) -> None:
        self.around = list(neighbours)
        self.asked = list(trackers)
        """Trackers; the first is obeyed."""

    def neighbours(self, stream: StreamId) -> Sequence[NodeId]:
        return self.around

    def tracker(self, stream: StreamId) -> NodeId | None:
        return self.asked[0].node if self.asked else None

    def trackers(self, stream: StreamId) -> Sequence[Contact]:
        return self.asked
