"""The node machine: takes part in streams as its tracker says.

Theory of operation. The application joins streams; each becomes an `Overlay` (who are my
neighbours), a `Channel` (what flooding needs), and a `Reporter` (what the tracker should know).
A long-lived link to a tracker carries Join, Leave, Status and Report out and Instruction in.
When it breaks, the overlay stays as it is and data flows on; `trackers.py` finds another one, or
comes back to the same. Everything a peer sends is checked before it changes anything; what is
wrong is counted (Rejected), and a neighbour that sends too much of it is dropped and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Protocol

from shoal.base.errors import InvariantViolated, UsageError
from shoal.base.ids import Contact, NodeId, StreamId, show_node_id
from shoal.kernel.effects import CancelTimer, CloseLink, Effect, Notify, Send, SetTimer
from shoal.kernel.inputs import (
    AccessChanged,
    AccessChecked,
    CommandIssued,
    Input,
    LinkClosed,
    LinkFailed,
    LinkOpened,
    MessageReceived,
    SendQueueHigh,
    SendQueueLow,
    Started,
    TimerFired,
    Verified,
)
from shoal.kernel.records import Delivered, Published, Rejected
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.streams.commands import (
    FilledFromStorage,
    JoinStream,
    LeaveStream,
    MessageArrived,
    MessageTaken,
    Publish,
    PublishAccepted,
    ReadySent,
    SendReady,
    SetTrackers,
    StreamReady,
    StreamRefused,
)
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.delivery.backpressure import CONGESTED
from shoal.protocols.streams.delivery.flooding import Channel, FeedMessage, Flooding, Read
from shoal.protocols.streams.member.joined_stream import StreamState, join_stream
from shoal.protocols.streams.member.ping_meter import PROBE, Prober, RttMeter
from shoal.protocols.streams.member.tracker_selection import (
    SEEK,
    TRACKER_TIMERS,
    TrackerRing,
    Trackers,
)
from shoal.protocols.streams.member.tracker_session import TRACKER
from shoal.protocols.streams.messages import (
    NODE_MESSAGES,
    Announce,
    Close,
    Feed,
    Fill,
    FillDone,
    Flood,
    Heads,
    Instruction,
    JoinRefused,
    Left,
    Open,
    Ping,
    Pong,
    Probe,
    Want,
)
from shoal.protocols.streams.permissions import ACCESS, AccessTable
from shoal.protocols.streams.signed_message import (
    Publisher,
    Sign,
    VerifiedMessage,
    place,
    read_placed,
)


class StreamNode:
    """One node in any number of streams."""

    accepts = (*NODE_MESSAGES, FilledFromStorage)

    __slots__ = (
        "_channels",
        "_flooding",
        "_now_ns",
        "_offences",
        "_publisher",
        "_rng",
        "config",
        "node",
        "prober",
        "rtts",
        "streams",
        "trackers",
        "wall",
    )

    def __init__(
        self,
        node: NodeId,
        ring: TrackerRing,
        sign: Sign,
        chain: str,
        rng: Random,
        config: NodeConfig | None = None,
        read: Read = read_placed,
        access: AccessTable | None = None,
    ) -> None:
        """Without a table, everybody may publish: there is no registry."""
        self.node = node
        self.config = config or NodeConfig()
        self.wall = WallClock() if access is None else access.wall
        self.streams: dict[StreamId, StreamState] = {}
        self.rtts = RttMeter(rng)
        self.trackers = Trackers(node, ring, rng, self.config)
        self._rng = rng
        self._publisher = Publisher(node, chain, sign)
        self._channels: dict[StreamId, Channel] = {}
        self._flooding = Flooding(
            self.config, self._channels, self._offend, read, access, self.wall
        )
        self._offences = Offences(self.config)
        self.prober = Prober(rng, self.config)
        self._now_ns = 0

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """The one entry point."""
        # Nearly all inputs are one of these two.
        if type(event) is MessageReceived and type(event.message) is Flood:
            return self._flooding.receive(event.peer, event.message, now_ns)
        if type(event) is Verified:
            signed: Any = event.token
            return self._flooding.verified(signed, event.valid, now_ns)
        self._now_ns = now_ns
        handler = _INPUTS.get(type(event))
        return handler(self, event) if handler is not None else []

    def check_invariants(self) -> None:
        """Raise InvariantViolated on impossible state."""
        self.trackers.check_invariants()
        for stream, state in self.streams.items():
            state.overlay.check_invariants()
            if state.channel.active != tuple(state.overlay.active()):
                raise InvariantViolated(f"{stream}: flooding and overlay disagree on neighbours")

    # Inputs

    def _started(self, event: Started) -> list[Effect]:
        self.trackers.own = Contact(self.node, event.addresses)
        first_ns = self._rng.randrange(self.config.ping_ns)  # thousands of nodes spread out
        return [SetTimer("ping", first_ns)]

    def _received(self, event: MessageReceived) -> list[Effect]:
        return _MESSAGES[type(event.message)](self, event.peer, event.message)

    def _access_checked(self, event: AccessChecked) -> list[Effect]:
        return self._flooding.access_checked(event, self._now_ns)

    def _access_changed(self, event: AccessChanged) -> list[Effect]:
        self._flooding.access_changed(event)
        return []

    def _command(self, event: CommandIssued) -> list[Effect]:
        handler = _COMMANDS.get(type(event.command))
        if handler is None:
            raise UsageError(f"{event.command!r} is no command of a stream node")
        return handler(self, event.command, event.token)

    def _link_opened(self, event: LinkOpened) -> list[Effect]:
        if event.purpose == TRACKER:
            return self.trackers.opened(event.peer, self._now_ns)
        if event.purpose == PROBE:
            return self.prober.opened(event.peer, self._now_ns)
        state = self.streams.get(StreamId(event.purpose))
        if state is None:
            return [CloseLink(event.peer, event.purpose)]
        return self._moved(state, state.overlay.link_opened(event.peer))

    def _link_lost(self, event: LinkClosed | LinkFailed) -> list[Effect]:
        effects = self._flooding.pressure.lost(event.peer)
        if event.purpose == TRACKER:
            return effects + self.trackers.lost(event.peer, self._now_ns)
        if event.purpose == PROBE:
            return effects + self.prober.lost(event.peer)
        state = self.streams.get(StreamId(event.purpose))
        if state is None:
            return effects
        was_active = event.peer in state.channel.active
        effects.extend(self._moved(state, state.overlay.link_lost(event.peer)))
        neighbour = state.overlay.neighbours.get(event.peer)
        if was_active and neighbour is not None:
            effects.extend(state.reporter.lost(event.peer, self._now_ns))
        return effects

    def _timer(self, event: TimerFired) -> list[Effect]:
        key: Any = event.key
        if key == "ping":
            peers = {peer: None for s in self.streams.values() for peer in s.channel.active}
            return self.rtts.tick(tuple(peers), self._now_ns, self.config.ping_ns)
        if key == SEEK or key[0] in TRACKER_TIMERS:
            return self.trackers.timer(key, self._now_ns)
        name, stream = key[0], key[1]
        if name == PROBE:
            return self.prober.timed_out(stream)
        if name == ACCESS:
            return self._flooding.ask_again(stream, key[2])
        if name == CONGESTED:
            return self._flooding.pressure.waited(key[1], self._now_ns)
        state = self.streams.get(stream)
        if state is None:
            return []
        if name in TICKS:
            return tick(name, state, self._flooding, self.rtts, self._now_ns)
        return self._moved(state, state.overlay.timer(key, self._now_ns))

    # Messages

    def _on_ping(self, peer: NodeId, message: Ping) -> list[Effect]:
        return [Send(Pong(message.nonce), (peer,))]

    def _on_pong(self, peer: NodeId, message: Pong) -> list[Effect]:
        probed = self.prober.answered(peer, message.nonce, self._now_ns)
        return self.rtts.answered(peer, message.nonce, self._now_ns) if probed is None else probed

    def _on_probe(self, peer: NodeId, message: Probe) -> list[Effect]:
        if self.trackers.at(message.stream) != peer:
            return [Rejected(peer, "not-my-tracker")]
        return self.prober.asked(self.node, peer, message)

    def _on_repair(self, peer: NodeId, message: Heads | Fill | FillDone) -> list[Effect]:
        channel = self._channels.get(message.stream)
        if channel is None or peer not in channel.neighbours:
            return [Rejected(peer, "not-a-neighbour")]
        return channel.repair.handle(peer, message, self._now_ns)

    def _on_feed(self, peer: NodeId, message: FeedMessage) -> list[Effect]:
        return self._flooding.feed(peer, message, self._now_ns)

    def _on_filled(self, peer: NodeId, message: FilledFromStorage) -> list[Effect]:
        if peer != self.node:
            return [Rejected(peer, "not-mine")]  # of our own history machine, and nobody else's
        return self._flooding.filled(peer, message, self._now_ns)

    def _on_open(self, peer: NodeId, message: Open) -> list[Effect]:
        state = self.streams.get(message.stream)
        if state is None:
            return [Rejected(peer, "not-my-stream")]
        return self._moved(state, state.overlay.peer_opened(peer, message, self._now_ns))

    def _on_close(self, peer: NodeId, message: Close) -> list[Effect]:
        state = self.streams.get(message.stream)
        if state is None:
            return []  # we left, and said so
        return self._moved(state, state.overlay.peer_closed(peer, message))

    def _on_instruction(self, peer: NodeId, message: Instruction) -> list[Effect]:
        if peer not in self.trackers:
            return [Rejected(peer, "not-my-tracker")]
        obeyed, effects = self.trackers.instructed(peer, message, self._now_ns)
        if not obeyed:
            return effects
        state = self.streams[message.stream]
        return effects + self._moved(state, state.overlay.instruct(message, self._now_ns))

    def _on_left(self, peer: NodeId, message: Left) -> list[Effect]:
        if peer not in self.trackers:
            return [Rejected(peer, "not-my-tracker")]
        return self.trackers.left(peer, message.stream, self._now_ns)

    def _on_refused(self, peer: NodeId, message: JoinRefused) -> list[Effect]:
        if peer != self.trackers.at(message.stream):
            return [Rejected(peer, "not-my-tracker")]
        told = Notify(StreamRefused(message.stream, message.later, message.problem))
        return [told, *self.trackers.refused(peer, message.stream)]

    # Commands

    def _join(self, command: JoinStream, token: Any) -> list[Effect]:
        state = self.streams.get(command.stream)
        if state is not None:
            state.channel.joined(command)
            return [Notify(StreamReady(command.stream))] if state.ready else []
        state = join_stream(command, self.node, self.config, self._now_ns, self.wall)
        self.streams[command.stream] = state
        self._channels[command.stream] = state.channel
        return self.trackers.join(state.overlay, self._now_ns)

    def _leave(self, command: LeaveStream, token: Any) -> list[Effect]:
        state = self.streams.pop(command.stream, None)
        if state is None:
            raise UsageError(f"this node is not in stream {command.stream}: nothing to leave")
        del self._channels[command.stream]
        self._flooding.leave(command.stream)
        effects = state.overlay.leave()
        for name in TICKS:
            effects.append(CancelTimer((name, command.stream)))
        effects.extend(self.prober.forget(command.stream))
        return effects + self.trackers.leave(command.stream)

    def _set_trackers(self, command: SetTrackers, token: Any) -> list[Effect]:
        return self.trackers.replace(command.contacts, self._now_ns)

    def _publish(self, command: Publish, token: Any) -> list[Effect]:
        state, held_max = self._joined(command.stream), self.config.held_messages_max
        return publish(
            command, token, state, self._publisher, self._flooding, held_max, self._now_ns
        )

    def _send_ready(self, command: SendReady, token: Any) -> list[Effect]:
        state = self._joined(command.stream)
        return send_ready(command, token, self.node, state, self._flooding, self._now_ns)

    def _joined(self, stream: StreamId) -> StreamState:
        state = self.streams.get(stream)
        if state is None:
            raise UsageError(f"this node is not in stream {stream}: join it first")
        return state

    # Steps

    def _moved(self, state: StreamState, effects: list[Effect]) -> list[Effect]:
        """After any step of an overlay: who gets data now, and what follows from it."""
        stream, before = state.overlay.stream, state.channel.active
        after = tuple(state.overlay.active())
        state.channel.neighbours = state.overlay.heard()
        if after != before:
            state.channel.active = after
            effects.extend(state.channel.feeds.lost([p for p in before if p not in after]))
            fresh = [p for p in after if p not in before and self.rtts.rtt_us(p) is None]
            effects.extend(self.rtts.greet(tuple(fresh), self._now_ns))
            # Whoever is new may lack what passed while the link was made, and so may we.
            added = tuple([p for p in after if p not in before])
            effects.extend(state.channel.repair.greet(added, self._now_ns))
            if added:
                effects.extend(state.reporter.linked(self._now_ns))
            effects.extend(state.absence.moved(bool(before), bool(after), self._now_ns))
        if state.overlay.handled and not state.ready:
            state.ready = True
            effects.extend(state.reporter.ready(self._now_ns))
            effects.append(SetTimer(("heads", stream), self.config.heads_ns))
            effects.append(Notify(StreamReady(stream)))
        if state.held and state.ready and after:
            effects.extend(send_held(state, self._flooding, self.node, self._now_ns))
        return effects

    def _offend(self, peer: NodeId, reason: str, now_ns: int) -> list[Effect]:
        """A peer sent what no honest peer sends: count it, and part with it past the limit."""
        self._now_ns = now_ns
        effects: list[Effect] = [Rejected(peer, reason)]
        shared = [s for s in self.streams.values() if peer in s.overlay.neighbours]
        if not shared:
            return effects
        if not self._offences.add(peer):
            return effects
        for state in shared:
            effects.extend(self._moved(state, state.overlay.drop(peer)))
            effects.extend(state.reporter.accuse(peer, self._now_ns))
        return effects


# Tables of the class, not of each node: thousands of nodes share them in the processor's cache.

_INPUTS: dict[type[Input], Callable[[StreamNode, Any], list[Effect]]] = {
    MessageReceived: StreamNode._received,
    AccessChecked: StreamNode._access_checked,
    AccessChanged: StreamNode._access_changed,
    TimerFired: StreamNode._timer,
    LinkOpened: StreamNode._link_opened,
    LinkClosed: StreamNode._link_lost,
    LinkFailed: StreamNode._link_lost,
    SendQueueHigh: lambda self, e: self._flooding.pressure.queue_high(e.peer, self._now_ns),
    SendQueueLow: lambda self, e: self._flooding.pressure.queue_low(e.peer),
    CommandIssued: StreamNode._command,
    Started: StreamNode._started,
}

_MESSAGES: dict[type, Callable[[StreamNode, NodeId, Any], list[Effect]]] = {
    Open: StreamNode._on_open,
    Close: StreamNode._on_close,
    Heads: StreamNode._on_repair,
    Fill: StreamNode._on_repair,
    FillDone: StreamNode._on_repair,
    Feed: StreamNode._on_feed,
    Announce: StreamNode._on_feed,
    Want: StreamNode._on_feed,
    FilledFromStorage: StreamNode._on_filled,
    Ping: StreamNode._on_ping,
    Pong: StreamNode._on_pong,
    Probe: StreamNode._on_probe,
    Instruction: StreamNode._on_instruction,
    Left: StreamNode._on_left,
    JoinRefused: StreamNode._on_refused,
}

_COMMANDS: dict[type, Callable[[StreamNode, Any, Any], list[Effect]]] = {
    JoinStream: StreamNode._join,
    LeaveStream: StreamNode._leave,
    SetTrackers: StreamNode._set_trackers,
    Publish: StreamNode._publish,
    SendReady: StreamNode._send_ready,
}

# What a node does with a message of its own: it goes to the overlay, and to whoever is here.


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


# How often peers sent what no honest peer sends.


class Offences:
    """Of the last few offenders, also when their links are gone."""

    __slots__ = ("_config", "_counts")

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._counts: dict[NodeId, int] = {}

    def add(self, peer: NodeId) -> bool:
        """One more; whether that is too many, and it begins anew."""
        count = self._counts.pop(peer, 0) + 1
        if count >= self._config.offences_max:
            return True
        self._counts[peer] = count
        if len(self._counts) > self._config.offenders_max:
            del self._counts[next(iter(self._counts))]
        return False


# What a node does for one stream now and then: repair gaps, tell of quiet chains, report.


TICKS = ("repair", "heads", "report")  # the first fields of their timer keys


def tick(
    name: str, state: StreamState, flooding: Flooding, rtts: RttMeter, now_ns: int
) -> list[Effect]:
    """One of TICKS ran out."""
    channel, overlay = state.channel, state.overlay
    if name == "repair":
        under_way = partial(flooding.under_way, overlay.stream)
        effects, ready = channel.repair.tick(channel.active, now_ns, under_way)
        if channel.subscribed:
            effects.extend(flooding.deliver(ready, now_ns))
        return effects
    if name == "heads":
        told = channel.repair.tell_quiet(channel.active, now_ns)
        return [*told, SetTimer((name, overlay.stream), flooding.config.heads_ns)]
    handling_ns = flooding.handling.typical_ns(now_ns)
    return state.reporter.report(overlay.tracker, channel.active, rtts, now_ns, handling_ns)


# What the key exchange knows of a node's place in its streams.


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
