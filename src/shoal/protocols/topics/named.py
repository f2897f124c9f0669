"""Events that peers named, and that nobody here waits for: each neighbour has room for so many.

Whoever names events that do not exist fills its own room, and what others name is looked for all
the same. Head records, and peers that are no neighbours any more, share one room: its oldest go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from shoal.base.ids import NodeId
from shoal.identity.topics.cid import Cid
from shoal.protocols.topics.config import NAMED_MAX

Peer = NodeId | None  # None: a head record, or somebody who is gone


class Named:
    """Who named what, of the events of one topic that are looked for."""

    def __init__(self, neighbours: Callable[[], Iterable[NodeId]]) -> None:
        self._neighbours = neighbours
        self._rooms: dict[Peer, dict[Cid, None]] = {None: {}}
        self._by: dict[Cid, Peer] = {}

    def has_room(self, peer: Peer) -> bool:
        """Whether what this peer names can be looked for."""
        return peer is None or len(self._rooms.get(peer, ())) < NAMED_MAX

    def add(self, id: Cid, peer: Peer) -> list[Cid]:
        """An event is looked for because a peer named it; gives those that are not any more."""
        if peer not in self._rooms:
            self._sweep()
            self._rooms[peer] = {}
        self._put(id, peer)
        shared = self._rooms[None]
        gone = list(islice(shared, max(0, len(shared) - NAMED_MAX)))
        for each in gone:
            self.remove(each)
        return gone

    def remove(self, id: Cid) -> None:
        """An event came, was given up, or is waited for now."""
        if id in self._by:
            del self._rooms[self._by.pop(id)][id]

    def _put(self, id: Cid, peer: Peer) -> None:
        self._rooms[peer][id] = None
        self._by[id] = peer

    def _sweep(self) -> None:
        """So there is one room more than there are neighbours, whoever comes and goes."""
        neighbours = {None, *self._neighbours()}
        for peer in [one for one in self._rooms if one not in neighbours]:
            for id in self._rooms.pop(peer):
                self._put(id, None)
