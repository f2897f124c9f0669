"""A node's link to its tracker: how it is dialled, and what is said over it."""

from __future__ import annotations

from shoal.base.ids import NodeId, StreamId
from shoal.kernel.effects import OpenLink
from shoal.protocols.streams.messages import Join
from tests.support.streams import ME, STREAM, TRACKER, contact

TRACKER_PURPOSE = ""
DIAL = ("dial", TRACKER)
DIALLED = OpenLink(contact(TRACKER), TRACKER_PURPOSE)


def join_message(
    stream: StreamId = STREAM, epoch: int = 0, counter: int = 0, active: tuple[NodeId, ...] = ()
) -> Join:
    """What a node says to get into a stream, or to stay in it."""
    return Join(stream, contact(ME), epoch, counter, active)
