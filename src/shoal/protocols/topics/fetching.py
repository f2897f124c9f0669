"""Events that are looked for: in the tree first, then in the DHT, then again after a pause.

Neighbours are asked in batches, and answer with what was asked for and what lies behind it. One
that does not answer, or lacks an event, is made up for by the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable
from itertools import islice

import msgspec

from shoal.base.ids import NodeId
from shoal.base.units import S_NS
from shoal.identity.topics.cid import Cid
from shoal.kernel.effects import Effect, Send, SetTimer
from shoal.protocols.dht.commands import Get
from shoal.protocols.topics.config import NAMED_MAX, TopicsConfig
from shoal.protocols.topics.event_log import TopicLog
from shoal.protocols.topics.messages import Want, say, stamp

WANT = "want"  # the timer of questions under way
GET = "get"  # the token of a question to the DHT
KNOWN_MAX = 32  # heads that are named, so that an answer stops there
PAUSE_NS, PAUSE_MAX_NS = 2 * S_NS, 60 * S_NS
BEHIND_MIN = 4  # events that an answer may add at first: most gaps are small
DHT_QUESTIONS_MAX = 16  # at once: a topic's past must not crowd out other lookups


class _Wanted(msgspec.Struct):
    since_ns: int
    sources: dict[NodeId, None]
    """Who said that it has the event."""
    tried: dict[NodeId, None] = {}
    asked: NodeId | None = None
    in_dht: bool = False
    due_ns: int = 0
    """When the question is too old, or the pause over."""
    rounds: int = 0
    tokens: tuple[Hashable, ...] = ()
    """Applications that wait for it."""
    for_log: bool = False
    """The log lacks it."""


class Fetches:
    """The events of one topic that are looked for."""

    def __init__(
        self,
        topic: Cid,
        here: NodeId,
        log: TopicLog,
        neighbours: Callable[[], Iterable[NodeId]],
        checking: Container[Cid],
        config: TopicsConfig,
    ) -> None:
        """Checking holds what came and is not believed yet: nobody else is asked for it."""
        self._topic = topic
        self._here = here
        self._log = log
        self._neighbours = neighbours
        self._checking = checking
        self._config = config
        self._wanted: dict[Cid, _Wanted] = {}
        self._named = Named(neighbours)
        self._timer = False
        self._behind = BEHIND_MIN

    def __len__(self) -> int:
        return len(self._wanted)

    def __contains__(self, id: Cid) -> bool:
        return id in self._wanted

    def need(
        self,
        id: Cid,
        source: NodeId | None,
        now_ns: int,
        token: Hashable = None,
        *,
        vital: bool = False,
    ) -> None:
        """Look for an event, at this peer before all others; `ask` sends the questions. What an
        application waits for, which is vital or has a token, is looked for in any case; so is what
        others follow."""
        wanted = self._wanted.get(id)
        vital = vital or token is not None or id in self._log.absent
        if vital:
            self._named.remove(id)
        elif wanted is None:
            if not self._named.has_room(source):
                return  # a neighbour names heads without end
            for each in self._named.add(id, source):
                del self._wanted[each]
        if wanted is None:
            wanted = self._wanted[id] = _Wanted(now_ns, {})
        if source is not None and source not in wanted.sources:
            wanted.sources[source] = None
            if wanted.asked is None and not wanted.in_dht:
                wanted.due_ns = now_ns  # somebody has it: no need to pause
        if token is None:
            wanted.for_log = True
        else:
            wanted.tokens = (*wanted.tokens, token)

    def for_log(self, id: Cid) -> bool:
        """Whether the log lacks this event, not only an application."""
        wanted = self._wanted.get(id)
        return wanted is not None and wanted.for_log

    def came(self, id: Cid) -> tuple[Hashable, ...]:
        """The event is here; gives the applications that wait for it."""
        wanted = self._wanted.get(id)
        if wanted is None:
            return ()
        self._drop(id)
        return wanted.tokens

    def _drop(self, id: Cid) -> None:
        self._named.remove(id)
        del self._wanted[id]

    def ask(self, now_ns: int) -> list[Effect]:
        """Ask for what nobody is asked for at the moment."""
        if not self._wanted:
            return []
        effects: list[Effect] = []
        batches: dict[NodeId, list[Cid]] = {}
        under_way = Counter(one.asked for one in self._wanted.values() if one.asked is not None)
        in_dht = sum(wanted.in_dht for wanted in self._wanted.values())
        neighbours = list(self._neighbours())
        for id, wanted in self._wanted.items():
            if wanted.asked is not None or wanted.in_dht or wanted.due_ns > now_ns:
                continue
            if id in self._checking:
                continue
            peer = self._next_source(wanted, neighbours)
            if peer is None:
                if in_dht < DHT_QUESTIONS_MAX:
                    in_dht += 1
                    wanted.in_dht = True
                    effects.append(Send(Get(id, (GET, self._topic, id)), (self._here,)))
                continue
            batch = batches.setdefault(peer, [])
            if under_way[peer] < self._config.want_batch:
                under_way[peer] += 1
                batch.append(id)
                wanted.asked = peer
                wanted.tried[peer] = None
                wanted.due_ns = now_ns + self._config.want_timeout_ns
        known = tuple(self._log.heads)[-KNOWN_MAX:]
        for peer, batch in batches.items():
            if batch:
                want = Want(self._topic, tuple(batch), stamp(now_ns), known, self._behind)
                effects.append(say(peer, want))
        if batches:
            self._behind = min(2 * self._behind, self._config.want_batch)
        if not self._timer:
            self._timer = True
            effects.append(SetTimer((WANT, self._topic), self._config.want_timeout_ns))
        return effects

    def overlapped(self) -> None:
        """An answer brought what was here: the next one need not go so far back."""
        self._behind = BEHIND_MIN

    def lacked(self, peer: NodeId, ids: Iterable[Cid], now_ns: int) -> None:
        """A neighbour does not have what it was asked for."""
        for id in ids:
            wanted = self._wanted.get(id)
            if wanted is not None and wanted.asked == peer:
                wanted.asked, wanted.due_ns = None, now_ns

    def not_in_dht(self, id: Cid, now_ns: int) -> tuple[Hashable, ...]:
        """The DHT does not have it either: pause, and begin anew. Gives the applications that
        waited: they are told that nobody has it."""
        wanted = self._wanted.get(id)
        if wanted is None:
            return ()
        wanted.in_dht = False
        wanted.tried, wanted.sources = {}, {}
        wanted.due_ns = now_ns + min(PAUSE_NS << wanted.rounds, PAUSE_MAX_NS)
        wanted.rounds += 1
        tokens, wanted.tokens = wanted.tokens, ()
        if not wanted.for_log:
            self._drop(id)
        return tokens

    def lost(self, peer: NodeId, now_ns: int) -> None:
        """A peer that was asked is gone."""
        self.lacked(peer, [id for id, one in self._wanted.items() if one.asked == peer], now_ns)
        for wanted in self._wanted.values():
            wanted.sources.pop(peer, None)

    def tick(self, now_ns: int) -> tuple[dict[Cid, tuple[Hashable, ...]], list[Effect]]:
        """Questions grow old; gives what was looked for long enough, too, and who waited."""
        self._timer = False
        hopeless: dict[Cid, tuple[Hashable, ...]] = {}
        for id, wanted in self._wanted.items():
            if wanted.asked is not None and wanted.due_ns <= now_ns:
                wanted.asked = None
            too_long = now_ns - wanted.since_ns > self._config.gap_patience_ns
            if too_long and wanted.rounds and id not in self._checking:
                hopeless[id] = wanted.tokens
        for id in hopeless:
            self._drop(id)
        return hopeless, self.ask(now_ns)

    def _next_source(self, wanted: _Wanted, neighbours: list[NodeId]) -> NodeId | None:
        for peer in (*wanted.sources, *neighbours):
            if peer not in wanted.tried:
                return peer
        return None


# Events that peers named, and that nobody here waits for: each neighbour has room for so many.
#
# Whoever names events that do not exist fills its own room, and what others name is looked for all
# the same. Head records, and peers that are no neighbours any more, share one room: its oldest go.


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
