"""The topology of one node: keep so many places on the circle, and let others have theirs.

Theory of operation. Each location has two edges. `joins.py` asks for one, `splits.py` and
`redirections.py` are what its future master and slave do, `leaves.py` gives it up again. This file
hands them what comes in, and sees at every beat to what time brings: neighbours that are silent,
requests that nobody answered, and the number of neighbours. Holes that crashes leave are not
mended: a node that lacks two neighbours asks for a new location, and a location whose two edges
are gone is dismissed. `reunions.py` brings parts together that lost each other. Edges of different
locations are never joined: that could tear the circle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from shoal.base.containers import RateLimit
from shoal.base.ids import Contact, NodeId
from shoal.kernel.effects import Effect, Send
from shoal.kernel.records import Rejected
from shoal.protocols.search.circle.join import Joins, Redirections, Splits
from shoal.protocols.search.circle.known_nodes import Acquaintances
from shoal.protocols.search.circle.leave import Leaves
from shoal.protocols.search.circle.locations import JOINING, LEAVING, STANDING, Edge, Location, Ring
from shoal.protocols.search.circle.partition_healing import Reunions
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.links import Links
from shoal.protocols.search.messages import (
    BreakEdge,
    Cancel,
    EdgeClosed,
    EdgeName,
    MasterHello,
    MergeEdge,
    Redirect,
    SlaveHello,
    SplitEdge,
    Totals,
)
from shoal.protocols.search.signature_checks import Checks
from shoal.protocols.search.signed_records import AddressRecord

EDGE_MESSAGES: tuple[type, ...] = (
    SplitEdge,
    MasterHello,
    SlaveHello,
    Redirect,
    Cancel,
    MergeEdge,
    BreakEdge,
    EdgeClosed,
)


class Circle:
    """This node's places, and the messages about them."""

    def __init__(
        self,
        record: AddressRecord,
        bootstrap: Sequence[Contact],
        totals: Callable[[], Totals | None],
        checks: Checks,
        visits: Links,
        rng: Random,
        config: SearchConfig,
        founders: Sequence[NodeId] = (),
    ) -> None:
        """`totals` is what was measured last; `visits` are links for a few messages. Founders are
        the bootstrap nodes of a list that names this one, too: one of them begins the network."""
        self.ring = Ring(record, totals, checks, rng, config)
        self.wanted = config.locations
        """Places that we want to have."""
        self.going = False
        """We leave, all of it."""
        self.acquaintances = Acquaintances(
            record.node, bootstrap, config.acquaintances_max, founders
        )
        self._visits = visits
        self._config = config
        self._leaves = Leaves(self.ring)
        self._splits = Splits(self.ring, self._leaves.merge)
        self._joins = Joins(
            self.ring,
            self._splits,
            self._enter,
            self._leaves.ask,
            self.acquaintances.saw,
            self.acquaintances.linked,
        )
        self._redirections = Redirections(self.ring, self._leaves.ask)
        self._reunions = Reunions(self.ring, self.acquaintances, visits, self._bridge)
        self.lost: Callable[[Edge, int], list[Effect]] = lambda edge, now_ns: []
        """Told of neighbours that are gone without a word."""
        self.founded: Callable[[], None] = lambda: None
        """Told that we have begun a circle of our own."""
        self._founders = tuple([node for node in founders if node != record.node])
        self._reunions.is_entrance = record.node in founders
        self._askers: dict[NodeId, None] = {}
        """Who wanted to enter through us while we had no place."""
        self._waits_ns = 0
        """Since when we know that somebody has to begin a network, and that it may be us."""
        self._placed_ns: int | None = None
        """When we had an edge last."""
        self._walks = RateLimit(config.walk_burst, config.walk_refill_ns, config.peers_max)

    # What others need to know

    @property
    def edges(self) -> list[Edge]:
        """Where messages may go, oldest first."""
        return self.ring.edges.open()

    @property
    def degree(self) -> int:
        """Neighbours; a self loop counts twice."""
        return len(self.ring.edges.open())

    @property
    def joined(self) -> bool:
        """Whether we have a place."""
        return any(location.phase == STANDING for location in self.ring.locations)

    @property
    def empty(self) -> bool:
        """Whether nothing is left of our places."""
        return not len(self.ring.locations)

    def edge(self, peer: NodeId, name: EdgeName, now_ns: int) -> Edge | None:
        """The edge that a message came over, whose other end lives, as we see from it."""
        edge = self.ring.edges.named(peer, name)
        if edge is not None:
            edge.heard_ns, edge.hello = now_ns, None
        return edge

    # Life

    def start(self, now_ns: int) -> list[Effect]:
        """Take our places: in the network of those that we were given, or in one of our own."""
        self._waits_ns = now_ns
        if not self.acquaintances.bootstrap:
            return self._create(now_ns)
        return self._keep_degree(now_ns)

    def leave(self, now_ns: int) -> list[Effect]:
        """Leave every place in good order. Whoever comes to one that we only asked for is refused,
        and stays where it is."""
        self.going = True
        if self._alone:
            return self._dissolve()
        effects: list[Effect] = []
        for location in self.ring.locations:
            if location.phase == JOINING and not location.edges:
                self.ring.locations.remove(location)
            else:
                effects += self._leaves.begin(location, now_ns)
        return effects

    def beat(self, now_ns: int) -> list[Effect]:
        """See to what only time brings."""
        effects: list[Effect] = []
        for edge in list(self.ring.edges):
            if now_ns - edge.heard_ns > self._config.silent_ns:
                self._miss(edge, now_ns)
                effects += [*self.ring.close(edge), *self.ring.gone(edge)]
                effects += self.lost(edge, now_ns)
        for location in self.ring.locations:
            self._joins.expire(location, now_ns)
            effects += self._splits.expire(location, now_ns)
            effects += self._leaves.expire(location, now_ns)
            if location.unwanted and location.phase == STANDING:
                effects += self._leaves.begin(location, now_ns)
        if self.going:
            return effects
        effects += self._begin_again(now_ns)
        return effects + self._keep_degree(now_ns) + self._reunions.beat(now_ns)

    def check_invariants(self) -> None:
        """Raise InvariantViolated if the state is one that must not exist."""
        self.ring.check_invariants()

    # What comes in

    def message(self, peer: NodeId, message: Any, now_ns: int) -> list[Effect]:
        """One message of the topology."""
        match message:
            case MasterHello():
                return self._joins.master_came(peer, message, now_ns)
            case SlaveHello(sender=theirs, receiver=mine):
                edge = self.edge(peer, EdgeName(theirs, mine, False), now_ns)
                if edge is None or edge.closing:
                    return self._joins.slave_came(peer, message, now_ns)
                return self._splits.confirmed(edge, now_ns)
            case SplitEdge(edge=None):
                return self._walk(peer, message, now_ns)
        edge = self.edge(peer, message.edge, now_ns)
        if edge is None:
            return self.no_edge(peer, message.edge, closed=type(message) is EdgeClosed)
        if type(message) in (Redirect, BreakEdge) and edge.master:
            return [Rejected(peer, "not-our-master")]
        if type(message) in (Cancel, MergeEdge) and not edge.master:
            return [Rejected(peer, "not-our-slave")]
        match message:
            case SplitEdge():
                return self._walk(peer, message, now_ns)
            case Redirect():
                return self._redirections.begin(edge, message, now_ns)
            case Cancel():
                return self._splits.cancelled(edge)
            case MergeEdge():
                return self._leaves.asked(edge, message, now_ns)
            case BreakEdge():
                return self._leaves.broken(edge)
            case EdgeClosed():
                return [*self.ring.close(edge), *self.ring.gone(edge)]
        raise AssertionError(f"{message!r} is no message of the topology")

    def no_edge(self, peer: NodeId, name: EdgeName, *, closed: bool = False) -> list[Effect]:
        """A message on an edge that has ended here: the other end must not go on with it."""
        if closed:
            return []
        ours = EdgeName(name.receiver, name.sender, not name.master)
        return [Send(EdgeClosed(ours), (peer,))]

    def link_opened(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """A link for edges is up."""
        return self.ring.links.opened(peer, now_ns) + self.ring.unlink(peer)

    def link_lost(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """All edges that went over a link are gone with it."""
        self.acquaintances.lost(peer)
        effects = self.ring.links.lost(peer, now_ns)
        for edge in self.ring.edges.with_peer(peer):
            self._miss(edge, now_ns)
            effects += [*self.ring.cut(edge, now_ns), *self.lost(edge, now_ns)]
        return effects

    def resume(self, now_ns: int) -> list[Effect]:
        """Something has happened: perhaps whoever waits for an edge of ours can have one."""
        return self._splits.resume(now_ns) if self._splits.waiting and not self.going else []

    # Steps

    def _miss(self, edge: Edge, now_ns: int) -> None:
        """A neighbour is gone; without a word, unless we were parting."""
        if not edge.closing:
            self.acquaintances.lost(edge.peer)
            self._reunions.lost(edge.peer, now_ns)

    def _bridge(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """Somebody who is no neighbour answers."""
        return [] if self.going else self._joins.begin_at(peer, now_ns)

    def _walk(self, peer: NodeId, message: SplitEdge, now_ns: int) -> list[Effect]:
        if not self._walks.allow(peer, now_ns):
            return [Rejected(peer, "rate-limited")]
        if message.edge is None and self._placed_ns is None and not len(self.ring.edges):
            if message.origin.node == peer:
                self._asked_by(peer, now_ns)
            self._splits.hold(peer, message, now_ns)
            return self._meet(message, now_ns)
        return self._meet(message, now_ns) + self._splits.walk(peer, message, now_ns)

    def _meet(self, message: SplitEdge, now_ns: int) -> list[Effect]:
        """Remember who walks past: in a network in which nobody casts bubbles, those are all whom
        we hear of beside our neighbours."""
        if self.ring.checks.busy:
            return []
        origin = message.origin

        def checked(valid: bool, now_ns: int) -> list[Effect]:
            if valid:
                self.acquaintances.saw(origin.contact)
            return []

        return self.ring.checks.check(origin.node, origin.signed, checked, now_ns)

    def _create(self, now_ns: int) -> list[Effect]:
        """The first node of a network: a circle of its own places."""
        ring = self.ring
        locations = [ring.locations.add(STANDING) for _ in range(self.wanted)]
        effects: list[Effect] = []
        for above, below in zip(locations, locations[1:] + locations[:1], strict=True):
            above.slave, claims = ring.connect(
                ring.record, above, below.id, master=True, now_ns=now_ns
            )
            below.master, _ = ring.connect(
                ring.record, below, above.id, master=False, now_ns=now_ns
            )
            effects += claims
        self.founded()
        return effects

    def _asked_by(self, peer: NodeId, now_ns: int) -> None:
        """Somebody wants to enter through us, and we have no place ourselves."""
        if not (self._askers or self._founders):
            self._waits_ns = now_ns
        if len(self._askers) < self._config.acquaintances_max:
            self._askers[peer] = None

    def _begin_again(self, now_ns: int) -> list[Effect]:
        """Whoever has lost all and is let in by nobody makes a circle of its own, as the first node
        did: where all whom a crash has left are alone, somebody has to have a place."""
        if len(self.ring.edges):
            self._placed_ns = now_ns
        elif self._placed_ns is not None:
            if now_ns - self._placed_ns > self._config.join_ns:
                return self._create(now_ns)
        elif (self._founders or self._askers) and now_ns - self._waits_ns > self._patience_ns:
            self._reunions.is_entrance = True
            return self._create(now_ns)
        return []

    @property
    def _patience_ns(self) -> int:
        """How long we wait to be let in before we begin a network for those who enter through us.
        Of several who all wait the one with the lowest id is the first, and the others enter
        through it: each waits once more for everybody below it who does not seem to be gone. That
        is no promise: two that cannot see each other begin a network each, and meet later."""
        given = [contact.node for contact in self.acquaintances.bootstrap]
        rivals = self._founders or [node for node in given if node in self._askers]
        missed = self.acquaintances.is_missed
        below = [node for node in rivals if node < self.ring.node and not missed(node)]
        return self._config.found_ns * (1 + len(below))

    @property
    def stranded(self) -> bool:
        """Whether we are alone, though we were given others, and nobody enters through us: whom we
        look for is elsewhere."""
        given = bool(self.acquaintances.bootstrap)
        return self._alone and given and not self._reunions.is_entrance

    @property
    def _alone(self) -> bool:
        """Whether nobody else is on our circle."""
        edges = self.ring.edges
        return bool(len(edges)) and all(edge.peer == self.ring.node for edge in edges)

    def _dissolve(self) -> list[Effect]:
        """Nobody is left who could take our places."""
        effects: list[Effect] = []
        for location in self.ring.locations:
            self.ring.locations.remove(location)
        for edge in list(self.ring.edges):
            effects += self.ring.gone(edge)
        return effects

    def _enter(self, message: SplitEdge, location: Location, now_ns: int) -> list[Effect]:
        """Bring a request into a network in which we have no neighbour yet, or none any more."""
        contact = self.acquaintances.next()
        if contact is None:
            self.ring.locations.remove(location)
            return []

        def reached(up: bool, now_ns: int) -> list[Effect]:
            if up and self.ring.locations.get(location.id) is location:
                return [Send(message, (contact.node,))]
            if not up:
                self.acquaintances.lost(contact.node)
            self.ring.locations.remove(location)  # the next beat asks the next one
            return []

        return self._visits.open(contact, reached, now_ns)

    def _keep_degree(self, now_ns: int) -> list[Effect]:
        """Ask for neighbours if two are missing, give up a place if there are two too many.

        Whoever is left on a circle of its own, but has known others, counts none of its places:
        its own walks would go round in it for ever. Whoever has a single neighbour left asks
        outside for one of its places: what a crash has cut off is small and mostly a tree, whose
        last nodes have one neighbour, and its walks would not leave it. (In the model, after a
        crash of 90 % of a million nodes, 99.99 % of the rest come together instead of 96 %.)
        """
        stranded = self._alone and len(self.acquaintances) > 0
        others = {edge.peer for edge in self.ring.edges.open()} - {self.ring.node}
        have = asked = 0
        for location in self.ring.locations:
            if location.unwanted or location.phase == LEAVING:
                continue
            if location.phase == JOINING:
                asked += 2
            elif not stranded:
                have += location.edges
        effects: list[Effect] = []
        for number in range((2 * self.wanted - have - asked) // 2):
            first = number == 0 and len(others) == 1
            effects += self._joins.begin(now_ns, outside=stranded or first)
        if have >= 2 * self.wanted + 2:
            effects += self._shed(now_ns)
        return effects

    def _shed(self, now_ns: int) -> list[Effect]:
        """Leave the place with the most holes: so holes run into each other, and vanish. An edge
        to ourselves is worth no more than a hole."""
        idle = [
            location
            for location in self.ring.locations
            if location.can_leave and not location.unwanted
        ]
        if len(idle) <= 1:
            return []
        node = self.ring.node
        worst = min(idle, key=lambda location: (location.bridge, len(location.others(node))))
        return self._leaves.begin(worst, now_ns)
