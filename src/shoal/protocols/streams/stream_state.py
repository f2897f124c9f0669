"""All that a node has of one stream."""

from __future__ import annotations

import msgspec

from shoal.base.ids import NodeId
from shoal.base.units import MS_NS
from shoal.protocols.streams.absence import Absence
from shoal.protocols.streams.commands import JoinStream
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.flooding import Channel
from shoal.protocols.streams.overlay import Overlay
from shoal.protocols.streams.placed import PlacedMessage
from shoal.protocols.streams.reports import Reporter


class StreamState(msgspec.Struct):
    """Neighbours, what flows between them and us, and what the tracker should know."""

    overlay: Overlay
    channel: Channel
    reporter: Reporter
    absence: Absence
    held: list[PlacedMessage] = []
    """What was published before there was a neighbour."""
    ready: bool = False
    """The first instruction was carried out."""


def join_stream(command: JoinStream, node: NodeId, config: NodeConfig, now_ns: int) -> StreamState:
    """Begin with a stream."""
    channel = Channel(command.stream, config, now_ns // MS_NS, node)
    channel.ordered = command.ordered
    channel.joined(command)
    return StreamState(
        Overlay(command.stream, node, config),
        channel,
        Reporter(command.stream, config),
        Absence(command.stream, node, config, now_ns),
    )
