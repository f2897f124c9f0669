"""The search machine: one node of the BubbleStorm network.

Theory of operation. `topology/` keeps our places on the circle, and with them a random set of
neighbours. `measurement.py` learns from their pings how large the network is. With that,
`bubbles.py` knows how large a bubble must be; `casts.py` brings bubbles, ours and those of others,
to that many nodes; `rendezvous.py` is what happens where they meet, and `routes.py` brings the
answers back. `searches.py`, `publications.py` and `standing.py` are what our own applications want.
What a peer should not have sent is counted (Rejected) and changes nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import ceil
from random import Random
from typing import Any

from shoal.base.containers import RateLimit
from shoal.base.errors import UsageError
from shoal.base.ids import Contact, NodeId
from shoal.base.units import MS_NS
from shoal.identity import PrivateKey
from shoal.kernel.effects import Effect, Notify, Send, SetTimer
from shoal.kernel.inputs import (
    CommandIssued,
    Input,
    LinkClosed,
    LinkFailed,
    LinkOpened,
    MessageReceived,
    SendQueueHigh,
    SendQueueLow,
    Started,
    TimerFired,
    Verified,
)
from shoal.kernel.records import Rejected
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.search.bubbles.answer_routes import Routes
from shoal.protocols.search.bubbles.bubble_relay import Casts
from shoal.protocols.search.bubbles.data_density import BALANCE_BOUND, Spread, Traffic
from shoal.protocols.search.bubbles.own_bubbles import Bubbles
from shoal.protocols.search.circle.circle import EDGE_MESSAGES, Circle
from shoal.protocols.search.circle.clients import Clients, Hosting
from shoal.protocols.search.circle.locations import Edge
from shoal.protocols.search.commands import (
    CloseUser,
    ConnectUser,
    Contribute,
    FindDocuments,
    Joined,
    Leave,
    Left,
    ListenUser,
    Meet,
    OpenSpace,
    PutDocument,
    SendUser,
    StopSearch,
    Unwatch,
    WatchDocuments,
)
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.documents.document_store import Holdings
from shoal.protocols.search.documents.durable_documents import Ask, Durable, Sizes
from shoal.protocols.search.documents.own_documents import Publications
from shoal.protocols.search.links import CLIENT, GUEST, USER, Links, Visits, is_private
from shoal.protocols.search.measuring.measurement import Measurement
from shoal.protocols.search.measuring.plausibility import are_plausible
from shoal.protocols.search.messages import (
    BubbleCast,
    ClientDeny,
    ClientHello,
    ClientOk,
    ClientRedirect,
    EdgeName,
    MasterHello,
    Match,
    Ping,
    SlaveHello,
    Totals,
)
from shoal.protocols.search.own_searches import SEARCH, Searches
from shoal.protocols.search.payloads import BubbleType, Lookup, Wanted
from shoal.protocols.search.rendezvous import NO_BUBBLE, Rendezvous
from shoal.protocols.search.signature_checks import Checks
from shoal.protocols.search.signed_records import AddressRecord, sign_address
from shoal.protocols.search.spaces import Columns, DocumentSpace, Space, Spaces
from shoal.protocols.search.upload_limit import UPLINK, Capacity, Uplink
from shoal.protocols.search.user_connections import USER_MESSAGES, Users
from shoal.protocols.search.watches.own_watches import Standing
from shoal.protocols.search.watches.stored_watches import Watches

BEAT = "beat"
CLIENT_MESSAGES = (ClientHello, ClientOk, ClientDeny, ClientRedirect)


class SearchNode:
    """One node of the search network; a client, if it shall search without a place of its own."""

    accepts: tuple[type, ...] = (
        *EDGE_MESSAGES,
        Ping,
        BubbleCast,
        Match,
        *CLIENT_MESSAGES,
        *USER_MESSAGES,
    )

    def __init__(
        self,
        key: PrivateKey,
        bootstrap: Sequence[Contact],
        rng: Random,
        config: SearchConfig | None = None,
        addresses: tuple[str, ...] = (),
        *,
        client: bool = False,
        founders: Sequence[NodeId] = (),
    ) -> None:
        """The addresses are told to others besides those that the driver listens on. Founders are
        the bootstrap nodes of a list that names this one, too: if all are alone, one of them
        begins the network. Without bootstrap contacts this node begins one at once."""
        self.node = key.address
        self.config = config or SearchConfig()
        self.client = client
        self.wall = WallClock()
        self._spaces = Spaces(DocumentSpace())
        self._key = key
        self._rng = rng
        self._bootstrap = tuple(bootstrap)
        self._founders = tuple(founders)
        self._addresses = addresses
        self._joined = False
        self._leaving = False
        """All our places are given up."""
        self._left = False
        self.parts = self._make(0)

    @property
    def joined(self) -> bool:
        """Whether we have a place or a host, and know how large the network is."""
        parts = self.parts
        place = parts.hosting.host is not None if self.client else parts.circle.joined
        return place and parts.measurement.known is not None

    @property
    def stranded(self) -> bool:
        """Whether this node has lost the network that it was in, and is alone: it searches itself
        only."""
        return not self.client and self.parts.circle.stranded

    def measured(self, column: str) -> float | None:
        """The last result of a user-defined column."""
        return self.parts.measurement.extras.get(column)

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """Take one fact."""
        effects = self._handle(event, now_ns)
        effects += self.parts.circle.resume(now_ns)
        effects += self._farewell(now_ns)
        # Whoever hears that we have left may end us: our last words have to be out by then.
        return self.parts.uplink.pass_on(effects, now_ns) + self._news()

    def check_invariants(self) -> None:
        """Raise InvariantViolated if the state is one that must not exist."""
        self.parts.circle.check_invariants()
        self.parts.holdings.check_invariants()
        self.parts.watches.check_invariants()
        self.parts.durable.check_invariants()

    def _make(self, now_ns: int) -> Parts:
        record = sign_address(self._key, self._addresses, self.wall.read(now_ns))
        return Parts(
            *(self._key, record, self._spaces, self._bootstrap),
            *(self._rng, self.config, self.client, self.wall),
            founders=self._founders,
        )

    def _handle(self, event: Input, now_ns: int) -> list[Effect]:
        parts = self.parts
        match event:
            case MessageReceived(peer, message):
                return self._message(peer, message, now_ns)
            case TimerFired(key):
                return self._timer(key, now_ns)
            case Verified():
                return parts.checks.verified(event, now_ns)
            case LinkOpened(peer, purpose):
                return self._opened(peer, purpose, now_ns)
            case LinkClosed(peer, purpose):
                return self._lost(peer, purpose, now_ns)
            case LinkFailed(peer, purpose, _, unsent):
                return self._lost(peer, purpose, now_ns) + self._unsent(peer, unsent, now_ns)
            case SendQueueHigh(peer):
                parts.uplink.queue_changed(peer, high=True)
            case SendQueueLow(peer):
                parts.uplink.queue_changed(peer, high=False)
            case CommandIssued(command, token):
                return self._command(command, token, now_ns)
            case Started(addresses):
                self._addresses = tuple(dict.fromkeys((*addresses, *self._addresses)))
                self.parts = self._make(now_ns)
                return [
                    SetTimer(BEAT, self._rng.randrange(self.parts.beat_ns)),
                    *self._begin(now_ns),
                ]
        return []

    def _begin(self, now_ns: int) -> list[Effect]:
        parts = self.parts
        if self.client:
            return parts.hosting.beat(now_ns)
        return parts.circle.start(now_ns)

    # Links

    def _opened(self, peer: NodeId, purpose: str, now_ns: int) -> list[Effect]:
        parts = self.parts
        match purpose:
            case "edge":
                return parts.circle.link_opened(peer, now_ns)
            case "client":
                return parts.hosting.opened(peer, now_ns)
            case "guest":
                return parts.clients.opened(peer, now_ns)
            case "user":
                return parts.users.opened(peer, now_ns)
        return parts.visits.opened(peer, now_ns)

    def _lost(self, peer: NodeId, purpose: str, now_ns: int) -> list[Effect]:
        parts = self.parts
        parts.uplink.queue_changed(peer, high=False)
        match purpose:
            case "edge":
                return parts.circle.link_lost(peer, now_ns)
            case "client":
                parts.standing.edge_lost(0, now_ns)  # it is all that we know of the network
                return parts.hosting.lost(peer, now_ns)
            case "guest":
                return parts.clients.lost(peer, now_ns)
            case "user":
                return parts.users.lost(peer, now_ns)
        return parts.visits.lost(peer, now_ns)

    def _unsent(self, peer: NodeId, messages: Sequence[Any], now_ns: int) -> list[Effect]:
        """What never left. Bubbles are rerouted with their edge, which remembers what has left as
        well; answers look for another way."""
        effects: list[Effect] = []
        for message in messages:
            if isinstance(message, Match):
                effects += self.parts.routes.unsent(peer, message, now_ns)
        return effects

    # Time

    def _timer(self, key: Hashable, now_ns: int) -> list[Effect]:
        match key:
            case "beat":
                effects = self._beat(now_ns)
                return [SetTimer(BEAT, self.parts.beat_ns), *effects]
            case "uplink":
                return []  # handle() lets go what may leave
            case ("search", bytes(id)):
                return self.parts.searches.due(id, now_ns)
        raise UsageError(f"no timer {key!r}: {BEAT}, {UPLINK}, {SEARCH} are ours")

    def _beat(self, now_ns: int) -> list[Effect]:
        parts = self.parts
        if self._left:
            return []
        parts.beat(now_ns)
        effects = parts.hosting.beat(now_ns) if self.client else self._keep_place(now_ns)
        if self.joined:
            parts.bubbles.beat(parts.measurement.extras, now_ns)
            effects += parts.publications.beat(now_ns)
            effects += parts.standing.beat(now_ns)
            effects += parts.keep_durable(now_ns)
        return effects

    def _keep_place(self, now_ns: int) -> list[Effect]:
        parts, beat_ns = self.parts, self.parts.beat_ns
        congested = parts.uplink.congested(now_ns)
        if self.config.upload_bytes_s is not None:
            parts.circle.wanted = parts.capacity.beat(
                parts.uplink.used(beat_ns), beat_ns, congested=congested
            )
        effects = parts.circle.beat(now_ns)
        for column, rate in parts.traffic.beat(beat_ns).items():
            parts.measurement.put(column, rate)
        edges = parts.circle.edges
        share = parts.measurement.share(len(edges))
        effects += [Send(share.ping(edge.name), (edge.peer,)) for edge in edges]
        return effects

    def _farewell(self, now_ns: int) -> list[Effect]:
        """While we leave: see to what we leave behind."""
        parts = self.parts
        if not parts.circle.going or self._leaving:
            return []
        parts.choose_heirs()
        if not parts.circle.empty:
            return []
        self._leaving = True
        return parts.hand_over(now_ns)

    def _news(self) -> list[Effect]:
        if self.parts.gone and not self._left and self.parts.uplink.idle:
            self._left = True
            return [Notify(Left())]
        if not self._joined and self.joined:
            self._joined = True
            return [Notify(Joined())]
        return []

    # Peers

    def _message(self, peer: NodeId, message: Any, now_ns: int) -> list[Effect]:
        parts = self.parts
        match message:
            case Ping():
                return self._ping(peer, message, now_ns)
            case BubbleCast(edge=None):
                if peer not in parts.clients:
                    return [Rejected(peer, "no-client")]
                return parts.casts.received(peer, None, message, now_ns)
            case BubbleCast(edge=EdgeName() as name):
                edge = parts.circle.edge(peer, name, now_ns)
                if edge is None:
                    return parts.circle.no_edge(peer, name)
                return parts.casts.received(peer, edge, message, now_ns)
            case Match(bubble, items):
                if bubble == NO_BUBBLE:
                    return parts.standing.told(peer, items, now_ns)
                return parts.routes.received(peer, message, now_ns)
            case MasterHello(bootstrap=told) | SlaveHello(bootstrap=told):
                effects = parts.circle.message(peer, message, now_ns)
                name = EdgeName(message.sender, message.receiver, type(message) is MasterHello)
                if parts.circle.edge(peer, name, now_ns) is not None:  # we have let it in
                    parts.neighbours[peer] = now_ns
                    parts.measurement.told(told)
                return effects
        if isinstance(message, CLIENT_MESSAGES):
            return self._client_message(peer, message, now_ns)
        if isinstance(message, USER_MESSAGES):
            return parts.users.message(peer, message, now_ns)
        return parts.circle.message(peer, message, now_ns)

    def _ping(self, peer: NodeId, ping: Ping, now_ns: int) -> list[Effect]:
        circle, neighbours = self.parts.circle, self.parts.neighbours
        if ping.edge is None:
            # What a leaver hands over, once; not what anybody invents.
            if neighbours.pop(peer, None) is None:
                return [Rejected(peer, "no-neighbour")]
        elif circle.edge(peer, ping.edge, now_ns) is None:
            return circle.no_edge(peer, ping.edge)
        elif not self.parts.pings.allow((peer, ping.edge), now_ns):
            return [Rejected(peer, "rate-limited")]
        else:
            neighbours[peer] = now_ns
        if self.parts.measurement.received(ping, circle.degree):
            return []
        return [Rejected(peer, "implausible-ping")]

    def _client_message(self, peer: NodeId, message: Any, now_ns: int) -> list[Effect]:
        parts = self.parts
        if isinstance(message, ClientHello):
            return parts.clients.hello(peer, message, now_ns)
        if not self.client:
            return [Rejected(peer, "not-asked")]
        match message:
            case ClientOk():
                return parts.hosting.accepted(peer, message)
            case ClientRedirect():
                return parts.hosting.redirected(peer, message, now_ns)
        return parts.hosting.denied(peer)

    # Applications

    def _command(self, command: Any, token: Hashable, now_ns: int) -> list[Effect]:
        parts = self.parts
        match command:
            case PutDocument():
                return parts.publications.put(command, token, now_ns)
            case FindDocuments():
                return parts.searches.begin(command, token, now_ns)
            case StopSearch():
                return parts.searches.stop(token)
            case WatchDocuments():
                return parts.standing.begin(command, token, now_ns)
            case Unwatch():
                return parts.standing.end(token, now_ns)
            case OpenSpace(space):
                parts.add_space(space)
                return []
            case Contribute(column, None):
                parts.measurement.withdraw(column)
                return []
            case Contribute(column, float(value)):
                parts.measurement.put(column, value)
                return []
            case ListenUser(type, accept):
                parts.users.listen(type, accept)
                return []
            case ConnectUser(contact, type):
                return parts.users.connect(contact, type, token, now_ns)
            case SendUser(peer, number, content):
                return parts.users.send(peer, number, content)
            case CloseUser(peer, number):
                return parts.users.close(peer, number)
            case Meet(contacts):
                for contact in contacts:
                    parts.circle.acquaintances.saw(contact)
                return []
            case Leave():
                parts.choose_heirs()
                farewell = [*parts.clients.leave(), *parts.hosting.leave()]
                return farewell + parts.circle.leave(now_ns)
        raise UsageError(f"{command!r} is no command of search")


# The parts of a search node, and how they hang together.


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
