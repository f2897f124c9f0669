"""Which logs are followed with whom, and which are not."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from shoal.base.ids import NodeId, StreamId
from shoal.kernel.contact import Contact
from shoal.kernel.wall import WallClock
from shoal.protocols.streams.history.config import SyncConfig
from shoal.protocols.streams.history.tail import Place, PlaceLog


class Peer(msgspec.Struct, eq=False):
    """Another storage node of some of our streams."""

    contact: Contact
    streams: dict[StreamId, None]
    own: bytes | None = None
    """The log that it says is its own."""
    seen_ns: int = 0
    """When it last said so."""
    request: int = 0
    """The number of our last question to it."""
    linked: bool = False
    resting: bool = False
    """Its link was lost, and is dialled again after a pause, or when the peer asks something."""
    asked_ns: int = 0
    """When it was asked what it has not answered yet."""
    met: bool = False
    """All that it had was gone through once since the link came up."""
    silent: bool = False
    """It has left a question without an answer since."""
    named: bool = False
    """Our settings name it beside us for streams that we have not heard of yet."""
    listing: bytes = bytes(16)
    """The log of the store whose streams it has listed."""
    listed: int = 0
    """And how far."""

    @property
    def node(self) -> NodeId:
        return self.contact.node


class Copied(msgspec.Struct):
    """The own log at one place, and how far others have it."""

    first: int = 1
    last: int = 0
    """As it was when it was last compared."""
    since: int = 0
    """Messages that were stored since then."""
    peers: dict[NodeId, tuple[int, int]] = {}
    """The first and the last row of it that each peer has, as it said."""


class CopyCounts(msgspec.Struct, frozen=True):
    """What storage nodes lack of each other, as far as this one knows."""

    single: int
    """Messages of the own log that no other storage node has said that it has."""
    missing: int
    """Copies of messages of the own log that other storage nodes have not said that they have."""
    uncompared: int
    """Streams that were compared with no other storage node yet, since the links came up."""


class CopyLedger:
    """How many copies of the own log's messages there are, by what peers say at each comparison.

    A peer that is down has what it said last; when it comes back, it is compared anew.
    """

    def __init__(self) -> None:
        self._places: dict[Place, Copied] = {}
        self._uncompared: dict[tuple[StreamId, NodeId], None] = {}

    def stored(self, place: Place) -> None:
        """The disk took a message, which is new, or was known."""
        copied = self._places.get(place)
        if copied is None:
            copied = self._places[place] = Copied()
        copied.since += 1

    def unknown(self, stream: StreamId, peer: NodeId) -> None:
        """A peer is to be compared with."""
        self._uncompared[stream, peer] = None

    def forget(self, peer: NodeId) -> None:
        """A peer comes back, perhaps without its disk: what it said does not count any more."""
        for copied in self._places.values():
            copied.peers.pop(peer, None)

    def grown(self, streams_max: int) -> tuple[StreamId, ...]:
        """Streams of which messages were stored since their log was looked at, a few of them."""
        grown = dict.fromkeys(
            stream for (stream, _), copied in self._places.items() if copied.since
        )
        return tuple(grown)[:streams_max]

    def looked_at(self, place: Place, first: int, last: int) -> None:
        """Our log at a place, as the disk has it."""
        copied = self._places.setdefault(place, Copied())
        copied.first, copied.last, copied.since = first, last, 0

    def compared(
        self, place: Place, first: int, last: int, peer: NodeId, peer_has: tuple[int, int]
    ) -> None:
        """Our log at a place, and from where to where a peer has it."""
        self.looked_at(place, first, last)
        self._places[place].peers[peer] = peer_has

    def lacking(self, place: Place, first: int, last: int) -> int:
        """So many rows from first to last of our log are in no copy that one peer has all of the
        rest of, too."""
        rows = last + 1 - first
        found = self._places.get(place)
        copies = () if found is None else found.peers.values()
        most = max((min(last, end) + 1 - max(first, begin) for begin, end in copies), default=0)
        return rows - max(0, most)

    def done(self, stream: StreamId, peer: NodeId) -> None:
        """All places of a stream were compared with a peer."""
        self._uncompared.pop((stream, peer), None)

    def count(self, peers_of: Callable[[StreamId], Collection[NodeId]]) -> CopyCounts:
        """Goes over all places; `peers_of` names the other storage nodes of a stream."""
        single = missing = 0
        for (stream, _), copied in self._places.items():
            peers = peers_of(stream)
            lacks = [
                max(0, copied.last - max(copied.first - 1, copied.peers.get(p, (1, 0))[1]))
                for p in peers
            ]
            if lacks:
                single += min(lacks) + copied.since
                missing += sum(lacks) + copied.since * len(lacks)
        streams = dict.fromkeys(stream for stream, _ in self._uncompared)
        uncompared = [s for s in streams if all((s, p) in self._uncompared for p in peers_of(s))]
        return CopyCounts(single, missing, len(uncompared))


class Followed:
    """A log is followed with one peer at a time: its owner, unless that is away for long."""

    def __init__(self, config: SyncConfig, wall: WallClock | None = None) -> None:
        self.config = config
        self.wall = WallClock() if wall is None else wall
        self.peers: dict[NodeId, Peer] = {}
        self.logs: dict[PlaceLog, Peer] = {}
        self.since_ns = 0
        self.copies = CopyLedger()
        self._diverged: dict[PlaceLog, None] = {}
        # Until when, and since when, if that is as the time of day was then.
        self._resting: dict[tuple[NodeId, PlaceLog], tuple[int, int | None]] = {}

    def claims(self, peer: Peer, own: bytes, now_ns: int) -> bool:
        """A peer says which log is its own; False if another one said so before."""
        peer.seen_ns = now_ns
        if any(other.own == own for other in self.peers.values() if other is not peer):
            return False
        peer.own = own
        return True

    def may_follow(self, peer: Peer, key: PlaceLog, now_ns: int) -> bool:
        """Whether to follow a log with this peer now."""
        if key in self.logs or key in self._diverged:
            return False
        until_ns, since_ns = self._resting.get((peer.node, key), (0, None))
        if until_ns > now_ns and (since_ns is None or since_ns >= self.wall.stepped_ns):
            return False
        owner = next((other for other in self.peers.values() if other.own == key[1]), None)
        if owner is peer:
            return True
        away_since_ns = self.since_ns if owner is None else owner.seen_ns
        return now_ns - away_since_ns >= self.config.owner_patience_ns

    def penalise(self, peer: Peer, key: PlaceLog, now_ns: int) -> None:
        """It told lies about this log: it is not asked about it for a while."""
        self.rest(peer, key, now_ns + self.config.penalty_ns, now_ns)

    def rest(
        self, peer: Peer, key: PlaceLog, until_ns: int, now_ns: int, *, by_wall: bool = False
    ) -> None:
        """There is nothing to be had of this log until then, or until our clock is set, if it is
        the time of day that says so; after a while it is asked again."""
        while len(self._resting) >= self.config.penalties_max:
            del self._resting[next(iter(self._resting))]
        self._resting[peer.node, key] = (
            min(until_ns, now_ns + self.config.penalty_ns),
            now_ns if by_wall else None,
        )

    def diverge(self, key: PlaceLog) -> None:
        """The log is not the one that it was: our replica of it stays as it is."""
        self._diverged[key] = None

    def release(self, peer: Peer) -> None:
        """Nothing is followed with this peer any more."""
        for key in [key for key, other in self.logs.items() if other is peer]:
            del self.logs[key]
