"""The parts of a search node, and how they hang together."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from random import Random

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId
from shoal.base.units import MS_NS
from shoal.identity import PrivateKey
from shoal.kernel.contact import Contact
from shoal.kernel.effects import Effect, Send
from shoal.kernel.rate_limit import RateLimit
from shoal.kernel.wall import WallClock
from shoal.protocols.search.addresses import AddressRecord
from shoal.protocols.search.belief import are_plausible
from shoal.protocols.search.bubbles import Bubbles
from shoal.protocols.search.capacity import Capacity
from shoal.protocols.search.casts import Casts
from shoal.protocols.search.checks import Checks
from shoal.protocols.search.clients import Clients, Hosting
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.durable import Ask, Durable, Sizes
from shoal.protocols.search.holdings import Holdings
from shoal.protocols.search.links import CLIENT, GUEST, USER, Links, is_private
from shoal.protocols.search.measurement import Measurement
from shoal.protocols.search.messages import BubbleCast, Totals
from shoal.protocols.search.payloads import BubbleType, Lookup, Wanted
from shoal.protocols.search.publications import Publications
from shoal.protocols.search.rendezvous import Rendezvous
from shoal.protocols.search.routes import Routes
from shoal.protocols.search.searches import Searches
from shoal.protocols.search.spaces import Columns, Space, Spaces
from shoal.protocols.search.spread import Spread
from shoal.protocols.search.standing import Standing
from shoal.protocols.search.topology.circle import Circle
from shoal.protocols.search.topology.edges import Edge
from shoal.protocols.search.traffic import BALANCE_BOUND, Traffic
from shoal.protocols.search.uplink import Uplink
from shoal.protocols.search.users import Users
from shoal.protocols.search.visits import Visits
from shoal.protocols.search.watches import Watches

PINGS_BURST = 16  # over one edge at once: what a jam may have held up


class Parts:
    """All of one incarnation."""

    def __init__(
        self,
        key: PrivateKey,
        record: AddressRecord,
        spaces: Spaces,
        bootstrap: Sequence[Contact],
        rng: Random,
        config: SearchConfig,
        client: bool,
        wall: WallClock,
        founders: Sequence[NodeId] = (),
    ) -> None:
        self._wall = wall
        self._node = record.node
        self._client = client
        self._spaces = spaces
        self._config = config
        self._heirs: dict[NodeId, Contact] = {}
        """Who may take our part of the measurement, the best one last."""
        self.gone = False
        """We have left, and somebody has taken it."""
        self.neighbours: dict[NodeId, int] = {}
        """When each was heard of last, also of those that are no more."""
        self.checks = Checks(config.checks_max)
        # A neighbour pings once in a beat; four times as often is no accident any more.
        fastest_ns = min(config.quick_beat_ns, config.beat_ns)
        self.pings = RateLimit(PINGS_BURST, fastest_ns // 4, config.peers_max)
        self.visits = Visits()
        self.host_links = Links(CLIENT, soft=False)
        self.guest_links = Links(GUEST, soft=False)
        self.user_links = Links(USER, soft=False)
        self.measurement = Measurement(rng)
        self.uplink = Uplink(config)
        self.capacity = Capacity(config)
        self.traffic = Traffic()
        self.circle = Circle(
            record, bootstrap, self.totals, self.checks, self.visits, rng, config, founders
        )
        self.circle.wanted = self.capacity.wanted
        self._last_beat_ns = 0
        self._keep_to_public_addresses(record, bootstrap)
        self.clients = Clients(self.circle, self.guest_links, config)
        self.hosting = Hosting(
            record, self.circle.acquaintances, self.host_links, self.checks, self._told_by_host
        )
        self.users = Users(record.node, self.user_links, config)
        self.routes = Routes(self._is_linked, self.visits, self._answered, config)
        self.bubbles = Bubbles(key, record, self.totals, self._cast, rng, config, wall)
        self.searches = Searches(spaces, self.bubbles, self.routes, self.checks, config)
        self.publications = Publications(key, spaces, self.bubbles, config)
        self.standing = Standing(
            spaces,
            self.bubbles,
            self.checks,
            self.searches,
            rng,
            config,
            can_be_dialled=bool(record.addresses),
        )
        self.holdings = Holdings(spaces, wall=wall)
        self.watches = Watches(spaces, wall=wall)
        self.durable = Durable(self.holdings, {}, rng)
        self.rendezvous = Rendezvous(
            record.node,
            spaces,
            self.holdings,
            self.watches,
            self.durable,
            self.routes,
            self.visits,
            self.checks,
        )
        self.casts = Casts(
            self.circle,
            self.totals,
            self.checks,
            self.uplink,
            self._passed,
            self.rendezvous.met,
            rng,
            config,
            wall,
        )
        self.circle.lost = self._edge_lost
        self.circle.founded = self._founded
        for space in spaces:
            self._measure(space)

    def _founded(self) -> None:
        """We have begun a network of our own, perhaps the first one."""
        if self.measurement.known is None:
            self.measurement.found(self.circle.degree)

    def totals(self) -> Totals | None:
        """The network, as it was measured last; at least those whom we see. A young network was
        measured when it had one node."""
        known = self.measurement.known
        if known is None or known.nodes >= self._config.quick_nodes:
            return known
        edges = self.circle.edges
        nodes, degree = len({self._node, *(edge.peer for edge in edges)}), len(edges)
        if known.nodes >= nodes:
            return known
        return Totals(float(nodes), float(nodes * degree), float(nodes * degree * degree))

    @property
    def beat_ns(self) -> int:
        """How far pings are apart now."""
        known, config = self.measurement.known, self._config
        small = not self._client and (known is None or known.nodes < config.quick_nodes)
        return min(config.quick_beat_ns, config.beat_ns) if small else config.beat_ns

    # Spaces

    def add_space(self, space: Space) -> None:
        """One that an application brings."""
        if self._client:
            raise UsageError(
                f"space {space.name!r}: a client has no part in measurements, and cannot know who"
                " has it: leave out `client = true` in [search] of its network file"
            )
        self._spaces.add(space)
        self._measure(space)

    def _measure(self, space: Space) -> None:
        """Have a space measured, as far as that goes."""
        columns = Columns(space.name)
        share = None if columns.members else 1.0
        self.bubbles.spreads[space.name] = Spread(columns, share=share)
        if self._client:  # it does not hear what the balance is, and is ready for the worst
            worst = Spread(columns, BALANCE_BOUND, 1 / BALANCE_BOUND, share)
            self.bubbles.spreads[space.name] = worst
        self.traffic.open(columns.query, columns.data)
        self.durable.sizes[space.name] = Sizes(1.0, 1, 1)
        for column in (columns.query, columns.data):  # before applications use all there are
            self.measurement.put(column, 0.0)
        if columns.members:
            self.measurement.put(columns.members, 1.0)

    # Durable documents

    def keep_durable(self, now_ns: int) -> list[Effect]:
        """Ask about those whose turn it is, and cast those that too few have."""
        bubbles = self.bubbles
        for space in self._spaces:
            holders = ceil(bubbles.data_size(space.name) * bubbles.share(space.name))
            asked = bubbles.query_size(bubbles.default_confidence, space.name)
            self.durable.sizes[space.name] = Sizes(bubbles.nodes(), holders, asked)
        effects: list[Effect] = []
        for step in self.durable.due(now_ns):
            document = step.document
            if isinstance(step, Ask):
                asked = self.durable.sizes[document.space].queries
                lookup = Lookup((Wanted(document.id, document.version, document.digest),))
                space = self._spaces[document.space]
                bubble = bubbles.make(space, lookup, asked, bubbles.life_ns, now_ns)
                effects += bubbles.cast(bubble, asked, now_ns)
            else:
                nodes = ceil(step.size / bubbles.share(document.space))
                effects += self.publications.spread(document, nodes, now_ns)
        return effects

    # Time

    def beat(self, now_ns: int) -> None:
        """Forget what is over."""
        self.casts.expire(now_ns)
        self.routes.expire(now_ns)
        self._last_beat_ns = now_ns
        oldest_ns = now_ns - self._config.silent_ns
        for peer in [peer for peer, at_ns in self.neighbours.items() if at_ns < oldest_ns]:
            del self.neighbours[peer]

    # Leaving

    def choose_heirs(self) -> None:
        """Remember who could take our part of the measurement when we have no neighbour any more.
        Masters come first: one that lets us go does not leave itself at that place."""
        edges = [edge for edge in self.circle.edges if edge.peer != self._node]
        for edge in sorted(edges, key=lambda edge: not edge.master):
            self._heirs.pop(edge.peer, None)
            self._heirs[edge.peer] = edge.record.contact

    def hand_over(self, now_ns: int) -> list[Effect]:
        """Give our part of the measurement to somebody who stays, and be gone."""
        if not self._heirs:
            self.gone = True
            return []
        heir, contact = self._heirs.popitem()

        def reached(up: bool, now_ns: int) -> list[Effect]:
            if not up:
                return self.hand_over(now_ns)
            self.gone = True
            return [Send(self.measurement.hand_over().ping(None), (heir,))]

        return self.visits.open(contact, reached, now_ns)

    # How the parts reach each other

    def _cast(self, cast: BubbleCast, now_ns: int) -> list[Effect]:
        if cast.start == 0:
            known = self._spaces.of_kind(cast.kind)
            assert known is not None  # it is ours
            space, type = known
            columns = Columns(space.name)
            # Standing queries and lookups are as large as questions, and meet the same data.
            column = columns.data if type is BubbleType.DOCUMENT else columns.query
            self.traffic.started(column, len(cast.payload))
        if not self._client:
            return self.casts.start(cast, now_ns)
        self._passed(cast, cast.id, None, now_ns)
        return self.hosting.cast(cast)

    def _passed(
        self, cast: BubbleCast, id: bytes, peer: NodeId | None, now_ns: int
    ) -> list[Effect]:
        left_ns = cast.header.expires_ms * MS_NS - self._wall.read(now_ns)
        self.routes.remember(id, peer, cast.header.origin, now_ns + left_ns)
        return []

    def _answered(self, id: bytes, items: Sequence[bytes], now_ns: int) -> list[Effect]:
        return self.searches.told(id, items, now_ns) + self.rendezvous.told(items, now_ns)

    def _edge_lost(self, edge: Edge, now_ns: int) -> list[Effect]:
        """A neighbour is gone without a word, and with it what it had from us since it was heard
        of last."""
        silent_ns = self._last_beat_ns - edge.heard_ns
        if silent_ns >= 0:
            self.measurement.edge_lost(1 + silent_ns // self.beat_ns)
        if not edge.closing:
            self.standing.edge_lost(len(self.circle.edges), now_ns)
        return self.casts.edge_lost(edge, now_ns)

    def _told_by_host(self, totals: Totals) -> None:
        if are_plausible(totals):
            self.measurement.known = totals

    def _keep_to_public_addresses(
        self, record: AddressRecord, bootstrap: Sequence[Contact]
    ) -> None:
        """In a network of the Internet nobody is dialled at a private address: others could have us
        knock at doors inside our own. We are in one if we have a public address, or if somebody has
        through whom we enter. What we were given at the start is dialled in any case."""
        given = frozenset(address for contact in bootstrap for address in contact.addresses)
        if all(is_private(address) for address in (*record.addresses, *given)):
            return
        for links in (self.visits, self.host_links, self.circle.ring.links):
            links.may_dial = lambda address: address in given or not is_private(address)

    def _is_linked(self, peer: NodeId) -> bool:
        links = (self.circle.ring.links, self.visits, self.user_links)
        return any(peer in held for held in (*links, self.guest_links, self.host_links))
