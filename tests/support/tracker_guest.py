"""A node with three trackers under test, and whom it dials and joins."""

from __future__ import annotations

from random import Random

from shoal.base.ids import NodeId, StreamId
from shoal.kernel.effects import Effect, OpenLink
from shoal.kernel.inputs import Started
from shoal.protocols.streams.commands import JoinStream
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.member.tracker_selection import TrackerRing
from shoal.protocols.streams.messages import Join, Open
from tests.support.streams import (
    ME,
    STREAM,
    Bench,
    contact,
    instruction,
    node,
    of_kind,
    sent,
    sign_as,
)

CONFIG = NodeConfig()
RING = TrackerRing([contact(node(number)) for number in range(200, 203)])
FIRST, SECOND, THIRD = (c.node for c in RING.order(STREAM))

HOME_OF_FIRST = next(
    stream
    for stream in (StreamId(f"home/{number}") for number in range(100))
    if RING.order(stream)[0].node == FIRST and RING.order(stream)[1].node == SECOND
)

HOME_OF_SECOND = next(
    stream
    for stream in (StreamId(f"home/{number}") for number in range(100))
    if RING.order(stream)[0].node == SECOND
)


class Guest(Bench[StreamNode]):
    """A node that has been started, and knows three trackers."""

    def __init__(self) -> None:
        super().__init__(StreamNode(ME, RING, sign_as(ME), "c1", Random(1), CONFIG))
        self.feed(Started(contact(ME).addresses))

    def joined(self, *neighbours: NodeId) -> Guest:
        """In the stream with its best tracker, with these neighbours."""
        self.command(JoinStream(STREAM))
        self.link_up(FIRST)
        self.receive(FIRST, instruction(5, *neighbours, epoch=10))
        for peer in neighbours:
            self.link_up(peer)
            self.receive(peer, Open(STREAM, True))
        return self

    def failed_over(self, *neighbours: NodeId) -> Guest:
        """With its second tracker, after the first one died."""
        self.joined(*neighbours)
        self.link_down(FIRST)
        self.fire(("dial", FIRST))
        self.link_down(FIRST)
        self.link_up(SECOND)
        self.receive(SECOND, instruction(1, *neighbours, epoch=11))
        return self

    @property
    def at(self) -> NodeId | None:
        return self.machine.trackers.at(STREAM)

    @property
    def active(self) -> tuple[NodeId, ...]:
        return self.machine.streams[STREAM].channel.active


def dialled(effects: list[Effect]) -> list[NodeId]:
    """Whom it dials."""
    return [effect.contact.node for effect in of_kind(effects, OpenLink)]


def joins(effects: list[Effect]) -> list[tuple[NodeId, Join]]:
    """Whom it says Join to."""
    return [(peer, message) for message, peers in sent(effects, Join) for peer in peers]
