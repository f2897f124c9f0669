"""Signals between neighbours that have no link yet: through the tracker that made them a pair.

A node that is behind a NAT can be called, but not dialled. What the two have to tell each other
first goes node, tracker, node. The tracker passes on what one member of a stream says to another
one that it was told to link with, to measure, or to ask for keys, and nothing else: it is no
mailbox. What they say is theirs (shoal.transport.webrtc_signals), and as little as a few kilobytes.

Two machines of their own, beside the tracker's and the node's: neither needs to know of the other's
work, only who is whose neighbour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from shoal.base.containers import RateLimit
from shoal.base.errors import InvariantViolated, UsageError
from shoal.base.ids import NodeId, StreamId
from shoal.base.units import MS_NS
from shoal.kernel.effects import Effect, Notify, Send
from shoal.kernel.inputs import CommandIssued, Input, MessageReceived
from shoal.kernel.records import Rejected
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.messages import Signal, Signalled
from shoal.protocols.streams.tracker.stream_record import TrackedStream

SIGNALS_BURST = 32
SIGNALS_REFILL_NS = 250 * MS_NS
"""From one node to one other: a call takes two or three each way, and is tried again after
seconds. A neighbour can so cost a node 128 KiB at once, and 16 KiB/s."""

SIGNALS_PAIRS_MAX = 100_000
"""Pairs whose rate is remembered."""

StreamsOf = Callable[[NodeId], Iterable[StreamId]]

ROUTES_MAX = 1024
"""Callers whose tracker a node remembers: it has a few dozen neighbours."""


class SendSignal(msgspec.Struct, frozen=True, gc=False):
    """Pass this on to a neighbour."""

    peer: NodeId
    payload: bytes


class SignalArrived(msgspec.Struct, frozen=True, gc=False):
    """Told: a neighbour says this, or so says the tracker."""

    peer: NodeId
    payload: bytes


class SignalRelay:
    """At the tracker: passes signals on within the pairs that it made."""

    accepts = (Signal,)

    def __init__(self, streams: Mapping[StreamId, TrackedStream]) -> None:
        """Streams are the tracker's own, and only read."""
        self._streams = streams
        self._limit = RateLimit(SIGNALS_BURST, SIGNALS_REFILL_NS, SIGNALS_PAIRS_MAX)

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """The one entry point."""
        if not isinstance(event, MessageReceived):
            return []
        peer, signal = event.peer, event.message
        state = self._streams.get(signal.stream)
        if state is None or not state.is_pair(peer, signal.peer, now_ns):
            return [Rejected(peer, "not-instructed")]
        if not self._limit.allow((peer, signal.peer), now_ns):
            return [Rejected(peer, "too-many-signals")]
        return [Send(Signalled(signal.stream, peer, signal.payload), (signal.peer,))]

    def check_invariants(self) -> None:
        """There is no state but the rate limit's."""


class Signaller:
    """At a node: says and hears signals, through whichever tracker has both."""

    accepts = (Signalled,)

    def __init__(self, node: StreamNode, introduced: StreamsOf = lambda peer: ()) -> None:
        """The stream machine of this node, which is only read. `introduced` names the streams in
        which a peer and we were told of each other, for keys."""
        self._node = node
        self._introduced = introduced
        self._routes: dict[NodeId, StreamId] = {}
        """Streams in which others called us. They may be ahead of our own instruction."""

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """The one entry point."""
        if isinstance(event, CommandIssued):
            return self._send(event.command)
        if isinstance(event, MessageReceived):
            return self._arrived(event.peer, event.message)
        return []

    def check_invariants(self) -> None:
        """Raise InvariantViolated on impossible state."""
        if len(self._routes) > ROUTES_MAX:
            raise InvariantViolated(f"{len(self._routes)} routes of signals")

    def route(self, peer: NodeId) -> tuple[StreamId, NodeId] | None:
        """The stream in which a peer is reached, and the tracker through which."""
        for stream in self._shared_with(peer):
            tracker = self._node.trackers.at(stream)
            if tracker is not None:
                return stream, tracker
        return None

    def tracker_addresses(self) -> list[str]:
        """Where all trackers of this node are."""
        contacts = self._node.trackers.ring.trackers.values()
        return [address for contact in contacts for address in contact.addresses]

    def _shared_with(self, peer: NodeId) -> Iterator[StreamId]:
        for stream, state in self._node.streams.items():
            if peer in state.overlay.neighbours:
                yield stream
        yield from self._node.prober.streams_of(peer)
        yield from self._introduced(peer)
        if peer in self._routes:
            yield self._routes[peer]

    def _send(self, command: Any) -> list[Effect]:
        if not isinstance(command, SendSignal):
            raise UsageError(f"{command!r} is no command of a signaller")
        route = self.route(command.peer)
        if route is None:
            return []  # it has just gone: calls end by their time
        stream, tracker = route
        return [Send(Signal(stream, command.peer, command.payload), (tracker,))]

    def _arrived(self, tracker: NodeId, signal: Signalled) -> list[Effect]:
        if self._node.trackers.at(signal.stream) != tracker:
            return [Rejected(tracker, "not-my-tracker")]
        if signal.peer == self._node.node:
            return [Rejected(tracker, "signals-from-myself")]
        self._routes.pop(signal.peer, None)
        self._routes[signal.peer] = signal.stream
        if len(self._routes) > ROUTES_MAX:
            del self._routes[next(iter(self._routes))]
        return [Notify(SignalArrived(signal.peer, signal.payload))]
