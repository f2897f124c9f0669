"""Flooding of one node: take each message once, check it, pass it on to everyone but its sender.

A message counts as seen only once its signature was checked: a forged copy with the same id must
never suppress the real one. While a check is under way, further copies with the same bytes wait
as duplicates; other bytes under the same id are checked for themselves.

A publisher who signs two bodies under one id contradicts itself. The first one that we checked is
the message; the other is proof, kept from everybody but the local application. It needs not be
passed on: every node sends the body that it took to all its neighbours, so the two meet on each
link between a node that took one and a node that took the other.

What is older than live messages may be is taken out of storage only, for this node itself: others
would take it for a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from shoal.base.errors import MalformedMessage
from shoal.base.ids import INT63_MAX, NodeId, StreamId
from shoal.base.units import MS_NS, S_NS, US_NS
from shoal.kernel.access import Permission
from shoal.kernel.effects import Effect, Notify, Send, Verify
from shoal.kernel.inputs import AccessChanged, AccessChecked
from shoal.kernel.records import (
    Delivered,
    Equivocation,
    ReceivedAgain,
    ReceivedFirst,
    Rejected,
    Sent,
)
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.streams.commands import (
    EquivocationSeen,
    FilledFromStorage,
    JoinStream,
    MessageArrived,
    MessageTaken,
)
from shoal.protocols.streams.config import HOPS_MAX, PENDING_BYTES_MIN, NodeConfig
from shoal.protocols.streams.delivery.backpressure import Pressure
from shoal.protocols.streams.delivery.chain_feeds import Feeds
from shoal.protocols.streams.delivery.chain_table import ChainTable, Delivery
from shoal.protocols.streams.delivery.gap_repair import Repair
from shoal.protocols.streams.delivery.replay_buffer import Copies, RecentMessages
from shoal.protocols.streams.messages import Announce, Close, Feed, Flood, Head, Want
from shoal.protocols.streams.permissions import AccessTable, Pending, Publishers
from shoal.protocols.streams.signed_message import PlacedMessage, read_placed

LOOKED_THROUGH = 64  # messages that are being checked, for one that is announced: the last

FeedMessage = Feed | Announce | Want

Read = Callable[[bytes], PlacedMessage]
"""What signed bytes say, as read_placed; a simulation has its nodes read each message once."""


class Flooding:
    """Messages in, messages on, across all streams of a node."""

    __slots__ = (
        "_channels",
        "_meanwhile",
        "_offend",
        "_pending",
        "_pending_bytes",
        "_read",
        "config",
        "copies",
        "handling",
        "pressure",
        "publishers",
        "wall",
    )

    def __init__(
        self,
        config: NodeConfig,
        channels: dict[StreamId, Channel],
        offend: Callable[[NodeId, str, int], list[Effect]],
        read: Read = read_placed,
        access: AccessTable | None = None,
        wall: WallClock | None = None,
    ) -> None:
        self.config = config
        self.wall = WallClock() if wall is None else wall
        self._read = read
        self._channels = channels
        self._offend = offend
        self._pending: dict[bytes, Pending] = {}
        self._pending_bytes: dict[NodeId, int] = {}  # what each link has us hold
        self._meanwhile: dict[bytes, dict[NodeId, Announce]] = {}  # while a check was under way
        self.copies = Copies()
        self.publishers = None if access is None else Publishers(access, config.freshness_ns)
        """Who may publish; None: everybody, for there is no registry."""
        self.handling = HandlingTime()
        self.pressure = Pressure(config)

    def receive(
        self, peer: NodeId, flood: Flood, now_ns: int, *, stored: bool = False
    ) -> list[Effect]:
        """One copy came in, from a neighbour or out of storage."""
        signed = flood.signed
        known = self.copies.new.get(signed) or self.copies.old.get(signed)
        if known is not None:
            channel = self._channels[known.id.stream]
            if peer in channel.neighbours:  # two copies in three end here
                if not channel.feeds.watched:
                    return [ReceivedAgain(known.id, peer)]
                return self._again(channel, known, peer)
        try:
            message = self._read(signed)
        except MalformedMessage:
            return self._offend(peer, "malformed-body", now_ns)
        id = message.id
        found = self._channels.get(id.stream)
        if found is None:
            return [Rejected(peer, "not-my-stream")]
        channel = found
        if peer not in channel.neighbours and not stored:
            # It takes us for a neighbour: our Close was lost, or it is not honest.
            return [Rejected(peer, "not-a-neighbour"), Send(Close(id.stream, False), (peer,))]
        if signed in self._pending:
            return self._again(channel, message, peer)
        seen = channel.seen.seen(message.chain, message.number)
        if seen and channel.recent.contradicted(message) is None:
            return self._again(channel, message, peer)
        refusal = self._refusal(channel, message, stored, now_ns)
        if refusal is not None:
            return [Rejected(peer, refusal)]
        publishers = self.publishers
        if publishers is not None:
            if publishers.holds(message, signed):
                return self._again(channel, message, peer)
            if publishers.judge(id.stream, id.publisher, now_ns) is False:
                return self._not_permitted(publishers, peer, now_ns)
        cost_bytes = max(len(signed), PENDING_BYTES_MIN)  # a small one is a check all the same
        held_bytes = self._pending_bytes.get(peer, 0) + cost_bytes
        high = held_bytes > self.config.pending_bytes_high
        if high and (stored or held_bytes > self.config.pending_bytes_max):
            return [Rejected(peer, "too-many-unverified")]
        self._pending_bytes[peer] = held_bytes
        self._pending[signed] = Pending(peer, flood, message, now_ns, cost_bytes, stored)
        verify = Verify(id.publisher, signed, signed)
        return [verify, *self.pressure.filled(peer)] if high else [verify]

    def filled(self, node: NodeId, filled: FilledFromStorage, now_ns: int) -> list[Effect]:
        """What this node's history machine found: taken like what neighbours send, and also what
        is too old to come from them."""
        channel = self._channels.get(filled.stream)
        if channel is None:
            return []  # left meanwhile
        effects: list[Effect] = []
        for signed in filled.found:
            flood = Flood(0, 0, self.wall.read(now_ns) // US_NS, signed)
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
        effects = self._checked(pending, valid, now_ns)
        if peer in self.pressure.full and left_bytes <= self.config.pending_bytes_low:
            effects.extend(self.pressure.drained(peer))
        return effects

    def _checked(self, pending: Pending, valid: bool, now_ns: int) -> list[Effect]:
        peer, signed = pending.peer, pending.flood.signed
        announced = self._meanwhile.pop(signed, {}) if self._meanwhile else {}
        if not valid:
            effects = self._offend(peer, "bad-signature", now_ns)
            for neighbour, announce in announced.items():
                effects.extend(self.feed(neighbour, announce, now_ns))
            return effects
        publishers, id = self.publishers, pending.message.id
        if publishers is not None:
            permitted = publishers.judge(id.stream, id.publisher, now_ns)
            if permitted is None:
                return publishers.hold(pending, now_ns)
            if not permitted:
                return self._not_permitted(publishers, peer, now_ns)
        return self._take(pending, now_ns, now_ns - pending.received_ns)

    def access_checked(self, event: AccessChecked, now_ns: int) -> list[Effect]:
        """The registry says what a publisher may do: what waits for that is taken, or refused."""
        publishers = self.publishers
        assert publishers is not None  # who else has asked
        judged, effects = publishers.checked(event, now_ns)
        for pending in judged:
            if event.verdict.allows(Permission.PUBLISH):
                effects.extend(self._take(pending, now_ns))
            else:
                effects.extend(self._not_permitted(publishers, pending.peer, now_ns))
        return effects

    def access_changed(self, event: AccessChanged) -> None:
        """What publishers may do is different, perhaps."""
        if self.publishers is not None:
            self.publishers.table.changed(event)

    def ask_again(self, stream: StreamId, publisher: NodeId) -> list[Effect]:
        """Nobody could say a while ago what a publisher may do."""
        return [] if self.publishers is None else self.publishers.ask_again(stream, publisher)

    def leave(self, stream: StreamId) -> None:
        """The node has left a stream."""
        self.copies.forget()
        if self.publishers is not None:
            self.publishers.leave(stream)

    def _not_permitted(self, publishers: Publishers, peer: NodeId, now_ns: int) -> list[Effect]:
        """Dropped, and not seen: it may be permitted when it comes again."""
        if publishers.blame(peer, now_ns):
            return self._offend(peer, "no-permission", now_ns)
        return [Rejected(peer, "no-permission")]

    def _take(self, pending: Pending, now_ns: int, handled_ns: int | None = None) -> list[Effect]:
        """All is well with a message: count it as seen, pass it on, deliver it. How long it was
        here counts only if it had not to wait for the registry."""
        peer, message, flood = pending.peer, pending.message, pending.flood
        id, signed = message.id, flood.signed
        channel = self._channels.get(id.stream)
        if channel is None:
            return [Rejected(peer, "not-my-stream")]  # left while the check ran
        # Again, for the check took time: others may have taken the room, and a chain forgotten
        # meanwhile must not come back with a message that has become stale.
        refusal = self._refusal(channel, message, pending.stored, now_ns)
        if refusal is not None:
            return [Rejected(peer, refusal)]
        if not channel.seen.take(message):
            return self._seen_meanwhile(channel, pending)
        self.copies.add(message, now_ns)
        is_history = pending.stored and self.is_stale(message, now_ns)
        if not is_history:
            channel.recent.add(message, now_ns)
        if handled_ns is not None:
            self.handling.add(handled_ns, now_ns)
        # The age grows by what the last link and our own queue took, by the sender's clock and
        # ours, as the thesis measures it (5.4.3). It decides nothing: whatever a peer writes
        # there, the message goes on, in numbers that the next hop can read.
        wall_ns = self.wall.read(now_ns)
        now_us = wall_ns // US_NS
        age_us = flood.age_us
        if now_us > flood.seen_us:
            age_us = min(age_us + now_us - flood.seen_us, INT63_MAX)
        hops = flood.hops + 1 if flood.hops < HOPS_MAX else HOPS_MAX
        effects: list[Effect] = [ReceivedFirst(id, peer, hops, age_us)]
        onward = [] if is_history else [n for n in channel.active if n != peer]
        if self.pressure.congested and not pending.stored:
            effects.extend(self.pressure.brings(peer, onward))
        feeds = channel.feeds
        if feeds.watched and peer in channel.active:
            effects.extend(feeds.first(message.chain, message.number, peer))
        if feeds.names_only and message.chain in feeds.names_only:
            onward = self._announce(channel, message, onward, effects)
        if onward:
            copy = Flood(hops, age_us, now_us, signed)
            effects.append(Send(copy, tuple(onward)))
            effects.append(Sent(id, len(onward)))
        if channel.kept or channel.unordered:
            effects.append(Notify(MessageTaken(message.message, hops, wall_ns)))
            if channel.unordered and not channel.subscribed:
                effects.append(Delivered(id, hops, age_us))
        if channel.seen.is_in_order(message.chain):  # the usual case
            if channel.subscribed:
                effects.append(Notify(MessageArrived(message.message, hops, wall_ns)))
                effects.append(Delivered(id, hops, age_us))
            return effects
        if channel.subscribed:
            delivery = Delivery(message, hops, age_us)
            ready = channel.seen.ready(delivery)
            effects.extend(self.deliver(ready, now_ns))
            if not ready:
                abandoned, ready = channel.repair.relieve(message.chain)
                effects.extend([*abandoned, *self.deliver(ready, now_ns)])
        if not channel.seen.is_whole(message.chain):
            effects.extend(channel.repair.seen(message.chain, now_ns))
        return effects

    def deliver(self, ready: Sequence[Delivery], now_ns: int) -> list[Effect]:
        """Hand messages to the local application."""
        effects: list[Effect] = []
        wall_ns = self.wall.read(now_ns)
        for each in ready:
            message, hops = each.message, each.hops
            effects.append(Notify(MessageArrived(message.message, hops, wall_ns, each.gap_before)))
            effects.append(Delivered(message.id, hops, each.age_us))
        return effects

    def originate(self, channel: Channel, message: PlacedMessage, now_ns: int) -> list[Effect]:
        """Send a message of our own to every neighbour; whoever comes later may ask for it."""
        channel.seen.take(message)
        self.copies.add(message, now_ns)
        channel.recent.add(message, now_ns)
        if not channel.active:
            return []  # alone, perhaps only because the others are with another tracker
        effects = channel.feeds.own(message.chain) if channel.feeds.watched else []
        onward: Sequence[NodeId] = channel.active
        if message.chain in channel.feeds.names_only:
            onward = self._announce(channel, message, onward, effects)
        if onward:
            flood = Flood(0, 0, self.wall.read(now_ns) // US_NS, message.signed)
            effects.append(Send(flood, tuple(onward)))
        return [*effects, Sent(message.id, len(onward))]

    def feed(self, peer: NodeId, message: FeedMessage, now_ns: int) -> list[Effect]:
        """What a neighbour says of the feeds between us."""
        channel = self._channels.get(message.stream)
        if channel is None or peer not in channel.neighbours:
            return [Rejected(peer, "not-a-neighbour")]
        match message:
            case Announce():
                return self._announced(channel, peer, message, now_ns)
            case Feed(_, chains, wanted):
                known = [chain for chain in chains if channel.seen.knows(chain)]
                if peer in channel.active:
                    channel.feeds.told(peer, known, wanted=wanted)
                if wanted or len(known) == len(chains):
                    return []  # what it wants again we may have forgotten
                return [Rejected(peer, "unknown-chain")]
            case Want(_, head):
                if peer in channel.active:
                    channel.feeds.told(peer, (head[0],), wanted=True)
                return channel.repair.send_again(peer, head, now_ns)

    def under_way(self, stream: StreamId) -> list[Head]:
        """What has come of a stream and waits for its check, or for the registry."""
        heads = [p.message.head for p in self._pending.values() if p.message.id.stream == stream]
        return heads if self.publishers is None else heads + self.publishers.heads_of(stream)

    def pending_count(self) -> int:
        """Messages that are being checked."""
        held = 0 if self.publishers is None else self.publishers.held_count()
        return len(self._pending) + held

    def _again(self, channel: Channel, message: PlacedMessage, peer: NodeId) -> list[Effect]:
        again = ReceivedAgain(message.id, peer)
        # What a neighbour that is leaving had under way says nothing of the links that stay.
        if not channel.feeds.watched or peer not in channel.active:
            return [again]
        return [again, *channel.feeds.again(message.chain, message.number, peer)]

    def _announced(
        self, channel: Channel, peer: NodeId, announce: Announce, now_ns: int
    ) -> list[Effect]:
        """A neighbour has a message that it holds back: the usual case is that we have it, too."""
        head = announce.head
        if not channel.seen.lacking((head,), now_ns):
            return []
        for signed, pending in islice(reversed(self._pending.items()), LOOKED_THROUGH):
            if pending.message.head == head:
                # It is being checked. Should it be forged, this neighbour is asked after all.
                self._meanwhile.setdefault(signed, {})[peer] = announce
                return []
        want = Send(Want(announce.stream, head), (peer,))
        if peer not in channel.active:
            return [want]
        return [want, *channel.feeds.wanted(head[0], peer, now_ns)]

    def _announce(
        self,
        channel: Channel,
        message: PlacedMessage,
        peers: Sequence[NodeId],
        effects: list[Effect],
    ) -> list[NodeId]:
        """Tell those the name of a message who want no more; who is left gets the message."""
        names_only = channel.feeds.names_only[message.chain]
        told = tuple([peer for peer in peers if peer in names_only])
        if told:
            effects.append(Send(Announce(message.id.stream, message.head), told))
        return [peer for peer in peers if peer not in names_only]

    def _seen_meanwhile(self, channel: Channel, pending: Pending) -> list[Effect]:
        """A good signature under an id that we have: a copy, or a publisher that lies."""
        message, second = pending.message, pending.flood.signed
        first = channel.recent.contradicted(message)
        if first is None:
            return [ReceivedAgain(message.id, pending.peer)]
        channel.recent.settle(message)
        # The neighbour that sent it is honest, for all we know: it may have seen this one first.
        seen = EquivocationSeen(message.id.stream, first, second)
        return [Equivocation(message.id, pending.peer), Notify(seen)]

    def is_stale(self, message: PlacedMessage, now_ns: int) -> bool:
        """Whether a message is older than live messages may be."""
        age_ns = self.wall.read(now_ns) - message.id.timestamp_ms * MS_NS
        return age_ns > self.config.freshness_ns

    def _refusal(
        self, channel: Channel, message: PlacedMessage, stored: bool, now_ns: int
    ) -> str | None:
        """Why a message is not taken now, whoever signed it."""
        ahead_ns = message.id.timestamp_ms * MS_NS - now_ns - self.wall.offset_ns
        if ahead_ns < -self.config.freshness_ns and not (
            stored and channel.seen.is_ours(message.chain, message.number)
        ):
            return "stale"
        if ahead_ns > self.config.future_ns:
            return "from-the-future"
        return None if channel.seen.has_room(message.chain, now_ns) else "too-many-chains"


# What flooding needs to know of one stream that this node takes part in.


class Channel:
    """What was seen, what is passed on, and to whom."""

    __slots__ = (
        "active",
        "feeds",
        "kept",
        "neighbours",
        "recent",
        "repair",
        "seen",
        "subscribed",
        "unordered",
    )

    def __init__(
        self,
        stream: StreamId,
        config: NodeConfig,
        since_ms: int = 0,
        node: NodeId | None = None,
        redundant_feeds: int | None = None,
        wall: WallClock | None = None,
    ) -> None:
        """`since_ms` is when this node came, in its monotonic time."""
        wall = WallClock() if wall is None else wall
        self.seen = ChainTable(config, since_ms, wall)
        self.recent = RecentMessages(config)
        self.feeds = Feeds(stream, redundant_feeds)
        self.repair = Repair(stream, self.seen, self.recent, config, node, self.feeds, wall)
        self.subscribed = False
        """Some local subscriber wants each chain in order."""
        self.unordered = False
        """Some local subscriber wants messages as they come."""
        self.kept = False
        self.active: tuple[NodeId, ...] = ()
        """Neighbours that get data."""
        self.neighbours: frozenset[NodeId] = frozenset()
        """Whoever data is taken from."""

    def joined(self, command: JoinStream) -> None:
        """One more reason to be in the stream."""
        wants_order = command.subscribe and command.ordered
        if wants_order and not self.subscribed:
            self.seen.begin_delivery()
        self.subscribed |= wants_order
        self.unordered |= command.subscribe and not command.ordered
        self.kept |= command.keep


# How long new messages are here before they go on, for the tracker's estimates.
#
# The mean of the last ones: under load messages wait for each other's checks. What a burst has left
# behind fades when it is over, towards the least that was ever seen, which is what a single message
# takes. Without that, an idle node would report its last burst until the next messages come.


GAIN = 16  # one message counts a sixteenth: bursts of checks even out
HALF_NS = 5 * S_NS  # without a message, half of what is above the least is gone by then


class HandlingTime:
    """A running mean that fades."""

    __slots__ = ("_added_ns", "_least_ns", "_mean_ns")

    def __init__(self) -> None:
        self._mean_ns = 0
        self._least_ns = INT63_MAX
        self._added_ns = 0

    def add(self, handled_ns: int, now_ns: int) -> None:
        """A message went on, so long after it came."""
        if handled_ns < self._least_ns:
            self._least_ns = handled_ns
        mean_ns = self.typical_ns(now_ns)
        self._mean_ns = mean_ns + (handled_ns - mean_ns) // GAIN
        self._added_ns = now_ns

    def typical_ns(self, now_ns: int) -> int:
        """What a message that comes now should take."""
        excess_ns, halves = self._mean_ns - self._least_ns, (now_ns - self._added_ns) // HALF_NS
        if excess_ns <= 0 or halves <= 0:
            return self._mean_ns
        return self._least_ns + (excess_ns >> min(halves, 63))
