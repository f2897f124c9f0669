"""What a node does with a message of its own: it goes to the overlay, and to whoever is here."""

from __future__ import annotations

from typing import Any

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId, show_node_id
from shoal.kernel.effects import Effect, Notify
from shoal.kernel.records import Delivered, Published, Rejected
from shoal.protocols.streams.channel import Channel
from shoal.protocols.streams.commands import (
    MessageArrived,
    MessageTaken,
    Publish,
    PublishAccepted,
    ReadySent,
    SendReady,
)
from shoal.protocols.streams.flooding import Flooding
from shoal.protocols.streams.messages import VerifiedMessage
from shoal.protocols.streams.placed import place
from shoal.protocols.streams.publisher import Publisher
from shoal.protocols.streams.stream_state import StreamState


def publish(
    command: Publish,
    token: Any,
    state: StreamState,
    publisher: Publisher,
    flooding: Flooding,
    held_max: int,
    now_ns: int,
) -> list[Effect]:
    """The next message of the node's own chain; it waits if there is no neighbour yet."""
    hold = state.holds(held_max)
    message = publisher.make(
        command.stream,
        command.partition,
        command.content_type,
        command.content,
        flooding.wall.read(now_ns),
        command.seal,
        flooding.wall.latest(now_ns),
    )
    placed = place(message)
    effects: list[Effect] = [
        Published(message.id, len(message.signed)),
        Notify(PublishAccepted(message.id, token, message.signed)),
    ]
    if hold:
        state.held.append(placed)
    else:
        effects.extend(flooding.originate(state.channel, placed, now_ns))
    return effects + _tell(state.channel, message, flooding.wall.read(now_ns))


def send_ready(
    command: SendReady,
    token: Any,
    node: NodeId,
    state: StreamState,
    flooding: Flooding,
    now_ns: int,
) -> list[Effect]:
    """Messages of other chains of this node. One that was sent before goes to the neighbours again,
    who know what they have; here nobody is told of it twice."""
    for message in command.messages:
        if message.id.publisher != node or message.id.stream != command.stream:
            raise UsageError(
                f"{message.id}: only messages of {show_node_id(node)} in {command.stream}"
                " can be sent as ready"
            )
    if not state.is_open:
        return [Notify(ReadySent(token, sent=False))]
    effects: list[Effect] = []
    for message in command.messages:
        placed = place(message)
        if state.channel.seen.seen(placed.chain, placed.number):
            effects.extend(flooding.originate(state.channel, placed, now_ns))
            continue
        effects.append(Published(message.id, len(message.signed)))
        effects.extend(flooding.originate(state.channel, placed, now_ns))
        effects.extend(_tell(state.channel, message, flooding.wall.read(now_ns)))
    return [*effects, Notify(ReadySent(token, sent=True))]


def send_held(state: StreamState, flooding: Flooding, node: NodeId, now_ns: int) -> list[Effect]:
    """There is a neighbour now: what was published before goes out."""
    effects: list[Effect] = []
    for message in state.held:
        if flooding.is_stale(message, now_ns):
            state.channel.seen.take(message)  # or what follows would show a gap
            effects.append(Rejected(node, "held-too-long"))  # everybody would refuse it as stale
        else:
            effects.extend(flooding.originate(state.channel, message, now_ns))
    state.held.clear()
    return effects


def _tell(channel: Channel, message: VerifiedMessage, wall_ns: int) -> list[Effect]:
    """Those in this node who listen."""
    effects: list[Effect] = []
    if channel.kept or channel.unordered:
        effects.append(Notify(MessageTaken(message, 0, wall_ns)))
    if channel.subscribed:
        effects.append(Notify(MessageArrived(message, 0, wall_ns)))
    if channel.subscribed or channel.unordered:
        effects.append(Delivered(message.id, 0, 0))
    return effects
