"""Which logs are followed with whom, and which are not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from shoal.base.ids import Contact, NodeId, StreamId
from shoal.base.units import MS_NS
from shoal.kernel.wall_clock import SLEWED_NS, WallClock
from shoal.protocols.streams.config import SyncConfig
from shoal.protocols.streams.history.disk_requests import Compared
from shoal.protocols.streams.history.log_follower import Place, PlaceLog


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


# Whether a storage node may lack what another one has, and up to when it surely does not.
#
# What was published meanwhile comes with the logs of the others. Until each of them that is there
# was gone through once, they serve readers better. That begins anew with every link: which of the
# two was away while there was none, or only cut off, nobody can say. Nobody is waited for who
# cannot be reached, or gives nothing: a node that is alone answers with what it has.


class Behind:
    """Streams, and their other storage nodes that were not gone through since we met them."""

    def __init__(self, config: SyncConfig) -> None:
        self._config = config
        self._unmet: dict[StreamId, dict[NodeId, None]] = {}
        self._until_ns: dict[NodeId, int] = {}  # for so long each of them is waited for

    def followed(self, stream: StreamId, node: NodeId, now_ns: int) -> None:
        """Another storage node of a stream is to be gone through; it is there, perhaps."""
        self._unmet.setdefault(stream, {})[node] = None
        self._wait(node, now_ns + self._config.behind_dial_ns)

    def opened(self, node: NodeId, streams: Iterable[StreamId], now_ns: int) -> None:
        """It is there, and may have more of these streams than when it was there last."""
        for stream in streams:
            self._unmet.setdefault(stream, {})[node] = None
        self.moved(node, now_ns)

    def moved(self, node: NodeId, now_ns: int) -> None:
        """Rows of it have come."""
        self._wait(node, now_ns + self._config.behind_ns)

    def lost(self, node: NodeId) -> None:
        """It is not there."""
        self._until_ns[node] = 0

    def met(self, node: NodeId, streams: Iterable[StreamId]) -> None:
        """All that it had of these streams is here."""
        for stream in streams:
            unmet = self._unmet.get(stream, {})
            unmet.pop(node, None)
            if not unmet:
                self._unmet.pop(stream, None)

    def is_behind(self, stream: StreamId, now_ns: int) -> bool:
        """Whether somebody who is there may have more of a stream."""
        return any(self._until_ns[node] > now_ns for node in self._unmet.get(stream, ()))

    def _wait(self, node: NodeId, until_ns: int) -> None:
        self._until_ns[node] = max(until_ns, self._until_ns.get(node, 0))


class _Moment(NamedTuple):
    at_ns: int  # monotonic
    time_ns: int  # the time of day, as the clock said then


class Comparisons:
    """Up to when what other storage nodes have of each stream is here, too.

    Two nodes are compared by the peer's own log, which has every message that the peer holds: once
    our replica of that log reaches as far as the peer said when it was asked, nothing that it had
    at that moment is missing here. So an answer of ours speaks for the peer up to then, also when
    the peer is gone.
    """

    def __init__(self, wall: WallClock) -> None:
        self._wall = wall
        self._moments: dict[NodeId, dict[StreamId, _Moment]] = {}

    def compared(self, node: NodeId, at: Mapping[StreamId, tuple[int, int]]) -> None:
        """Nothing is missing here of what a node had of these streams at these times; and up to
        which time of day, in milliseconds, the node lets us say so."""
        known = self._moments.setdefault(node, {})
        for stream, (moment_ns, until_ms) in at.items():
            before = known.get(stream)
            if before is None or before.at_ns < moment_ns:
                time_ns = min(self._wall.earliest(moment_ns), until_ms * MS_NS)
                known[stream] = _Moment(moment_ns, time_ns)

    def at_ns(self, node: NodeId, stream: StreamId) -> int:
        """When that was last so; 0 if it never was."""
        moment = self._moments.get(node, {}).get(stream)
        return 0 if moment is None else moment.at_ns

    def until_ms(self, node: NodeId, stream: StreamId) -> int:
        """The same as the time of day; 0 if it never was."""
        moment = self._moments.get(node, {}).get(stream)
        return 0 if moment is None else self._time_of(moment) // MS_NS

    def note(self, node: NodeId) -> Compared:
        """What is to be known of a node after a restart."""
        times: dict[int, list[StreamId]] = {}
        for stream, moment in self._moments.get(node, {}).items():
            times.setdefault(self._time_of(moment), []).append(stream)
        return Compared(tuple([(at_ns, tuple(names)) for at_ns, names in times.items()]))

    def noted(self, node: NodeId, note: Compared, now_ns: int) -> None:
        """What was noted before a restart; what is known by now is newer."""
        known = self._moments.setdefault(node, {})
        for time_ns, streams in note.at_ns:
            if time_ns > self._wall.read(now_ns) + SLEWED_NS:
                continue  # by a clock that was wrong: when it was, nobody knows
            at_ns = min(time_ns - self._wall.read(0), now_ns - 1)
            for stream in streams:
                known.setdefault(stream, _Moment(max(1, at_ns), time_ns))

    def _time_of(self, moment: _Moment) -> int:
        """The earlier one of what the clock said then, and of what it says of that moment now: one
        of the two may be wrong, and too early is no lie."""
        return max(0, min(moment.time_ns, self._wall.read(moment.at_ns)))
