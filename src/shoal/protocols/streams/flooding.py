"""Flooding of one node: take each message once, check it, pass it on to everyone but its sender.

A message counts as seen only once its signature was checked: a forged copy with the same id must
never suppress the real one. While a check is under way, further copies with the same bytes wait
as duplicates; other bytes under the same id are checked for themselves.

A publisher who signs two bodies under one id contradicts itself. The first one that we checked is
the message; the other is proof, kept from everybody but the local application. It needs not be
passed on: every node sends the body that it took to all its neighbours, so the two meet on each
link between a node that took one and a node that took the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from shoal.base.errors import MalformedMessage
from shoal.base.ids import INT63_MAX, NodeId, StreamId
from shoal.base.units import MS_NS, US_NS
from shoal.kernel.effects import Effect, Notify, Send, Verify
from shoal.kernel.records import (
    Delivered,
    Equivocation,
    ReceivedAgain,
    ReceivedFirst,
    Rejected,
    Sent,
)
from shoal.protocols.streams.chains import ChainTable
from shoal.protocols.streams.commands import (
    EquivocationSeen,
    JoinStream,
    MessageArrived,
    MessageTaken,
)
from shoal.protocols.streams.config import HOPS_MAX, PENDING_BYTES_MIN, NodeConfig
from shoal.protocols.streams.copies import Copies
from shoal.protocols.streams.history.messages import FilledFromStorage
from shoal.protocols.streams.messages import Close, Flood
from shoal.protocols.streams.ordering import Delivery
from shoal.protocols.streams.placed import PlacedMessage, read_placed
from shoal.protocols.streams.recent import RecentMessages
from shoal.protocols.streams.repair import Repair

HANDLING_GAIN = 16  # one message counts a sixteenth: bursts of checks even out

Read = Callable[[bytes], PlacedMessage]
"""What signed bytes say, as read_placed; a simulation has its nodes read each message once."""


class Channel:
    """What flooding needs to know of one stream that this node takes part in."""

    __slots__ = (
        "active",
        "kept",
        "neighbours",
        "ordered",
        "recent",
        "repair",
        "seen",
        "subscribed",
    )

    def __init__(
        self,
        stream: StreamId,
        config: NodeConfig,
        since_ms: int = 0,
        node: NodeId | None = None,
    ) -> None:
        self.seen = ChainTable(config, since_ms)
        self.recent = RecentMessages(config)
        self.repair = Repair(stream, self.seen, self.recent, config, node)
        self.subscribed = False
        self.kept = False
        self.ordered = True
        """Whether the local subscribers want each chain in order."""
        self.active: tuple[NodeId, ...] = ()
        """Neighbours that get data."""
        self.neighbours: frozenset[NodeId] = frozenset()
        """Whoever data is taken from."""

    def joined(self, command: JoinStream) -> None:
        """One more reason to be in the stream."""
        if command.subscribe and not self.subscribed:
            self.seen.begin_delivery()
        self.subscribed |= command.subscribe
        self.kept |= command.keep


class _Pending(msgspec.Struct, frozen=True, gc=False):
    peer: NodeId
    flood: Flood
    message: PlacedMessage
    received_ns: int
    cost_bytes: int


class Flooding:
    """Messages in, messages on, across all streams of a node."""

    __slots__ = (
        "_channels",
        "_config",
        "_offend",
        "_pending",
        "_pending_bytes",
        "_read",
        "copies",
        "handling_ns",
    )

    def __init__(
        self,
        config: NodeConfig,
        channels: dict[StreamId, Channel],
        offend: Callable[[NodeId, str], list[Effect]],
        read: Read = read_placed,
    ) -> None:
        self._config = config
        self._read = read
        self._channels = channels
        self._offend = offend
        self._pending: dict[bytes, _Pending] = {}
        self._pending_bytes: dict[NodeId, int] = {}  # what each link has us hold
        self.copies = Copies()
        self.handling_ns = 0
        """How long new messages have lately been here before they went on."""

    def receive(
        self, peer: NodeId, flood: Flood, now_ns: int, *, stored: bool = False
    ) -> list[Effect]:
        """One copy came in, from a neighbour or out of storage."""
        signed = flood.signed
        known = self.copies.new.get(signed) or self.copies.old.get(signed)
        if known is not None and peer in self._channels[known.id.stream].neighbours:
            return [ReceivedAgain(known.id, peer)]  # two copies in three end here
        try:
            message = self._read(signed)
        except MalformedMessage:
            return self._offend(peer, "malformed-body")
        id = message.id
        channel = self._channels.get(id.stream)
        if channel is None:
            return [Rejected(peer, "not-my-stream")]
        if peer not in channel.neighbours and not stored:
            # It takes us for a neighbour: our Close was lost, or it is not honest.
            return [Rejected(peer, "not-a-neighbour"), Send(Close(id.stream, False), (peer,))]
        if signed in self._pending:
            return [ReceivedAgain(id, peer)]
        seen = channel.seen.seen(message.chain, message.number)
        if seen and channel.recent.contradicted(message) is None:
            return [ReceivedAgain(id, peer)]
        refusal = self._refusal(channel, message, now_ns)
        if refusal is not None:
            return [Rejected(peer, refusal)]
        cost_bytes = max(len(signed), PENDING_BYTES_MIN)  # a small one is a check all the same
        held_bytes = self._pending_bytes.get(peer, 0) + cost_bytes
        if held_bytes > self._config.pending_bytes_max:
            return [Rejected(peer, "too-many-unverified")]
        self._pending_bytes[peer] = held_bytes
        self._pending[signed] = _Pending(peer, flood, message, now_ns, cost_bytes)
        return [Verify(id.publisher, signed, signed)]

    def filled(self, node: NodeId, filled: FilledFromStorage, now_ns: int) -> list[Effect]:
        """What this node's history machine found for a gap: taken like what neighbours send."""
        channel = self._channels.get(filled.stream)
        if channel is None:
            return []  # left meanwhile
        effects: list[Effect] = []
        for signed in filled.found:
            flood = Flood(0, 0, now_ns // US_NS, signed)
            effects.extend(self.receive(node, flood, now_ns, stored=True))
        return effects + channel.repair.storage_answered(filled, now_ns)

    def verified(self, signed: bytes, valid: bool, now_ns: int) -> list[Effect]:
        """A signature check came back."""
        pending = self._pending.pop(signed)
        peer = pending.peer
        left_bytes = self._pending_bytes[peer] - pending.cost_bytes
        if left_bytes:
            self._pending_bytes[peer] = left_bytes
        else:
            del self._pending_bytes[peer]
        if not valid:
            return self._offend(peer, "bad-signature")
        message, flood = pending.message, pending.flood
        id = message.id
        channel = self._channels.get(id.stream)
        if channel is None:
            return [Rejected(peer, "not-my-stream")]  # left while the check ran
        # Again, for the check took time: others may have taken the room, and a chain forgotten
        # meanwhile must not come back with a message that has become stale.
        refusal = self._refusal(channel, message, now_ns)
        if refusal is not None:
            return [Rejected(peer, refusal)]
        if not channel.seen.take(message):
            return self._seen_meanwhile(channel, pending)
        self.copies.add(message, now_ns)
        channel.recent.add(message, now_ns)
        handled_ns = now_ns - pending.received_ns
        self.handling_ns += (handled_ns - self.handling_ns) // HANDLING_GAIN
        # The age grows by what the last link and our own queue took, by the sender's clock and
        # ours, as the thesis measures it (5.4.3). It decides nothing: whatever a peer writes
        # there, the message goes on, in numbers that the next hop can read.
        now_us = now_ns // US_NS
        age_us = min(flood.age_us + max(0, now_us - flood.seen_us), INT63_MAX)
        hops = min(flood.hops + 1, HOPS_MAX)
        effects: list[Effect] = [ReceivedFirst(id, peer, hops, age_us)]
        onward = tuple([n for n in channel.active if n != peer])
        if onward:
            copy = Flood(hops, age_us, now_us, signed)
            effects.append(Send(copy, onward))
            effects.append(Sent(id, len(onward)))
        if channel.kept:
            effects.append(Notify(MessageTaken(message.message)))
        if channel.seen.is_in_order(message.chain):  # the usual case
            if channel.subscribed:
                effects.append(Notify(MessageArrived(message.message, hops, now_ns)))
                effects.append(Delivered(id, hops, age_us))
            return effects
        if channel.subscribed:
            delivery = Delivery(message, hops, age_us)
            ready = channel.seen.ready(delivery) if channel.ordered else [delivery]
            effects.extend(self.deliver(ready, now_ns))
        if not channel.seen.is_whole(message.chain):
            effects.extend(channel.repair.seen(message.chain, now_ns))
        return effects

    def deliver(self, ready: Sequence[Delivery], now_ns: int) -> list[Effect]:
        """Hand messages to the local application."""
        effects: list[Effect] = []
        for each in ready:
            message, hops = each.message, each.hops
            effects.append(Notify(MessageArrived(message.message, hops, now_ns, each.gap_before)))
            effects.append(Delivered(message.id, hops, each.age_us))
        return effects

    def originate(self, channel: Channel, message: PlacedMessage, now_ns: int) -> list[Effect]:
        """Send a message of our own to every neighbour; whoever comes later may ask for it."""
        channel.seen.take(message)
        self.copies.add(message, now_ns)
        channel.recent.add(message, now_ns)
        if not channel.active:
            return []  # alone, perhaps only because the others are with another tracker
        flood = Flood(0, 0, now_ns // US_NS, message.signed)
        return [Send(flood, channel.active), Sent(message.id, len(channel.active))]

    def pending_count(self) -> int:
        """Messages whose signature is being checked."""
        return len(self._pending)

    def _seen_meanwhile(self, channel: Channel, pending: _Pending) -> list[Effect]:
        """A good signature under an id that we have: a copy, or a publisher that lies."""
        message, second = pending.message, pending.flood.signed
        first = channel.recent.contradicted(message)
        if first is None:
            return [ReceivedAgain(message.id, pending.peer)]
        channel.recent.settle(message)
        # The neighbour that sent it is honest, for all we know: it may have seen this one first.
        seen = EquivocationSeen(message.id.stream, first, second)
        return [Equivocation(message.id, pending.peer), Notify(seen)]

    def _refusal(self, channel: Channel, message: PlacedMessage, now_ns: int) -> str | None:
        """Why a message is not taken now, whoever signed it."""
        ahead_ns = message.id.timestamp_ms * MS_NS - now_ns
        if ahead_ns < -self._config.freshness_ns:
            return "stale"
        if ahead_ns > self._config.future_ns:
            return "from-the-future"
        return None if channel.seen.has_room(message.chain, now_ns) else "too-many-chains"
