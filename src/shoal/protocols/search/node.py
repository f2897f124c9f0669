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
from random import Random
from typing import Any

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId
from shoal.identity import PrivateKey
from shoal.kernel.contact import Contact
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
from shoal.kernel.wall import WallClock
from shoal.protocols.search.addresses import sign_address
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
from shoal.protocols.search.document_space import DocumentSpace
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
)
from shoal.protocols.search.parts import Parts
from shoal.protocols.search.rendezvous import NO_BUBBLE
from shoal.protocols.search.searches import SEARCH
from shoal.protocols.search.spaces import Spaces
from shoal.protocols.search.topology.circle import EDGE_MESSAGES
from shoal.protocols.search.uplink import UPLINK
from shoal.protocols.search.users import USER_MESSAGES

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
