"""The parts of a search node, and how they hang together."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from shoal.base.ids import NodeId
from shoal.base.units import MS_NS
from shoal.identity import PrivateKey
from shoal.kernel.contact import Contact
from shoal.kernel.effects import Effect, Send
from shoal.protocols.search.addresses import AddressRecord
from shoal.protocols.search.bubbles import Bubbles
from shoal.protocols.search.capacity import Capacity
from shoal.protocols.search.casts import Casts
from shoal.protocols.search.checks import Checks
from shoal.protocols.search.clients import Clients, Hosting
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.durable import Ask, Durable, Sizes
from shoal.protocols.search.holdings import Holdings
from shoal.protocols.search.links import CLIENT, USER, VISIT, Links
from shoal.protocols.search.measurement import Measurement
from shoal.protocols.search.messages import BubbleCast, Totals
from shoal.protocols.search.payloads import BubbleType, Lookup, Wanted
from shoal.protocols.search.publications import Publications
from shoal.protocols.search.rendezvous import Rendezvous
from shoal.protocols.search.routes import Routes
from shoal.protocols.search.searches import Searches
from shoal.protocols.search.standing import Standing
from shoal.protocols.search.topology.circle import Circle
from shoal.protocols.search.traffic import DATA_COLUMN, QUERY_COLUMN, Traffic
from shoal.protocols.search.uplink import Uplink
from shoal.protocols.search.users import Users
from shoal.protocols.search.watches import Watches


class Parts:
    """All of one incarnation."""

    def __init__(
        self,
        key: PrivateKey,
        record: AddressRecord,
        bootstrap: Sequence[Contact],
        rng: Random,
        config: SearchConfig,
        client: bool,
    ) -> None:
        self._node = record.node
        self._client = client
        self._heir: Contact | None = None
        self.checks = Checks(config.checks_max)
        self.visits = Links(VISIT, soft=True)
        self.host_links = Links(CLIENT, soft=False)
        self.user_links = Links(USER, soft=False)
        self.measurement = Measurement(rng)
        self.uplink = Uplink(config)
        self.capacity = Capacity(config)
        self.traffic = Traffic()
        self.circle = Circle(record, bootstrap, self.totals, self.checks, self.visits, rng, config)
        self.clients = Clients(self.circle, config)
        self.hosting = Hosting(
            record, self.circle.acquaintances, self.host_links, self.measurement.told
        )
        self.users = Users(record.node, self.user_links, config)
        self.routes = Routes(self._is_linked, self.visits, self._answered, config)
        self.bubbles = Bubbles(key, record, self.totals, self._cast, rng, config)
        self.searches = Searches(self.bubbles, self.routes, self.checks, config)
        self.publications = Publications(key, self.bubbles)
        self.standing = Standing(self.bubbles, self.checks, rng, config)
        self.holdings = Holdings()
        self.watches = Watches()
        self.durable = Durable(self.holdings, Sizes(1.0, 1, 1), rng)
        self.rendezvous = Rendezvous(
            record.node,
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
        )
        self.circle.lost = self.casts.edge_lost

    def totals(self) -> Totals | None:
        """The network, as it was measured last."""
        return self.measurement.known

    # Durable documents

    def keep_durable(self, now_ns: int) -> list[Effect]:
        """Ask about those whose turn it is, and cast those that too few have."""
        bubbles = self.bubbles
        queries = bubbles.query_size(bubbles.default_confidence)
        self.durable.sizes = Sizes(bubbles.nodes(), bubbles.data_size(), queries)
        effects: list[Effect] = []
        for step in self.durable.due(now_ns):
            if isinstance(step, Ask):
                wanted = Wanted(step.document.id, step.document.version, step.document.digest)
                bubble = bubbles.make(Lookup((wanted,)), queries, bubbles.life_ns, now_ns)
                effects += bubbles.cast(bubble, queries, now_ns)
            else:
                effects += self.publications.cast(step.document, now_ns, step.size)
        return effects

    # Leaving

    def choose_heir(self) -> None:
        """Who gets our part of the measurement, when we have no neighbour any more."""
        for edge in self.circle.edges:
            if edge.peer != self._node:
                self._heir = edge.record.contact

    def hand_over(self) -> list[Effect]:
        """Our part of the measurement, for somebody who stays."""
        if self._heir is None:
            return []
        # The link to our last neighbour stays up for a while after its last edge.
        return [Send(self.measurement.hand_over().ping(None), (self._heir.node,))]

    # How the parts reach each other

    def _cast(self, cast: BubbleCast, now_ns: int) -> list[Effect]:
        column = QUERY_COLUMN if cast.kind == BubbleType.QUERY else DATA_COLUMN
        self.traffic.started(column, len(cast.payload))
        if not self._client:
            return self.casts.start(cast, now_ns)
        self._passed(cast, cast.id, None, now_ns)
        host = self.hosting.host
        return [] if host is None else [Send(cast, (host,))]

    def _passed(
        self, cast: BubbleCast, id: bytes, peer: NodeId | None, now_ns: int
    ) -> list[Effect]:
        origin, expires_ns = cast.header.origin, cast.header.expires_ms * MS_NS
        self.routes.remember(id, peer, origin, expires_ns)
        return []

    def _answered(self, id: bytes, items: Sequence[bytes], now_ns: int) -> list[Effect]:
        return self.searches.told(id, items, now_ns) + self.rendezvous.told(items, now_ns)

    def _is_linked(self, peer: NodeId) -> bool:
        return (
            peer in self.circle.ring.links
            or peer in self.visits
            or peer in self.clients
            or peer in self.host_links
        )
