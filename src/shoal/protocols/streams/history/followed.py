"""Which logs are followed with whom, and which are not."""

from __future__ import annotations

import msgspec

from shoal.base.ids import NodeId, StreamId
from shoal.kernel.contact import Contact
from shoal.protocols.streams.history.config import SyncConfig
from shoal.protocols.streams.history.tail import PlaceLog


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
    asked_ns: int = 0
    """When it was asked what it has not answered yet."""
    silent: bool = False
    """It has left a question without an answer since."""

    @property
    def node(self) -> NodeId:
        return self.contact.node


class Followed:
    """A log is followed with one peer at a time: its owner, unless that is away for long."""

    def __init__(self, config: SyncConfig) -> None:
        self.config = config
        self.peers: dict[NodeId, Peer] = {}
        self.logs: dict[PlaceLog, Peer] = {}
        self.since_ns = 0
        self._diverged: dict[PlaceLog, None] = {}
        self._resting: dict[tuple[NodeId, PlaceLog], int] = {}  # until when

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
        if self._resting.get((peer.node, key), 0) > now_ns:
            return False
        owner = next((other for other in self.peers.values() if other.own == key[1]), None)
        if owner is peer:
            return True
        away_since_ns = self.since_ns if owner is None else owner.seen_ns
        return now_ns - away_since_ns >= self.config.owner_patience_ns

    def penalise(self, peer: Peer, key: PlaceLog, now_ns: int) -> None:
        """It told lies about this log: it is not asked about it for a while."""
        self.rest(peer, key, now_ns + self.config.penalty_ns, now_ns)

    def rest(self, peer: Peer, key: PlaceLog, until_ns: int, now_ns: int) -> None:
        """There is nothing to be had of this log until then; after a while it is asked again."""
        while len(self._resting) >= self.config.penalties_max:
            del self._resting[next(iter(self._resting))]
        self._resting[peer.node, key] = min(until_ns, now_ns + self.config.penalty_ns)

    def diverge(self, key: PlaceLog) -> None:
        """The log is not the one that it was: our replica of it stays as it is."""
        self._diverged[key] = None

    def release(self, peer: Peer) -> None:
        """Nothing is followed with this peer any more."""
        for key in [key for key, other in self.logs.items() if other is peer]:
            del self.logs[key]
