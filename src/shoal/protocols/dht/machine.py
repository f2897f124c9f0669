"""The DHT machine: Kademlia for whatever the other machines of this node keep or look for.

Theory of operation. Everybody who asks or answers us and can be dialled is offered to the routing
table. `lookups.py` walks towards a place, over disjoint paths, by questions that `calls.py` keeps
track of; `puts.py` and `gets.py` store and fetch at that place; `upkeep.py` joins, refreshes and
republishes. Values are checked by the judge that the machine was given, before they are kept or
told. What a peer should not have sent is counted (Rejected) and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec

from shoal.base.containers import RateLimit
from shoal.base.errors import UsageError
from shoal.base.ids import Contact, NodeId
from shoal.base.units import S_NS
from shoal.kernel.effects import Effect, Notify, Send
from shoal.kernel.inputs import (
    CommandIssued,
    Input,
    LinkClosed,
    LinkFailed,
    LinkOpened,
    MessageReceived,
    Started,
    TimerFired,
    Verified,
)
from shoal.kernel.records import Rejected
from shoal.protocols.dht.commands import COMMANDS, Find, FindDone, Get, GetDone, Meet, Put, PutDone
from shoal.protocols.dht.config import KEY_BYTES_MAX, VALUE_BYTES_MAX, DhtConfig
from shoal.protocols.dht.key_space import SPACE, id_of_key, id_of_wire
from shoal.protocols.dht.lookup import LOOKUP, Lookups, Result
from shoal.protocols.dht.maintenance import JOIN, TICK, Upkeep
from shoal.protocols.dht.messages import (
    ANSWERS,
    QUESTIONS,
    FindNode,
    FindValue,
    Nodes,
    Ping,
    Pong,
    StoreValue,
    Values,
    ValueStored,
)
from shoal.protocols.dht.put_and_get import PUTS, Gets, Puts, store_tokens
from shoal.protocols.dht.request_tracker import CALLS, SLOW, Calls
from shoal.protocols.dht.routing_table import RoutingTable
from shoal.protocols.dht.survey import Density, Surveys
from shoal.protocols.dht.validators import Checking, Judge, Judged
from shoal.protocols.dht.value_store import ValueStore

Reply = Callable[[Any], list[Effect]]


class DhtNode:
    """One node of the DHT."""

    accepts = (*QUESTIONS, *ANSWERS, *COMMANDS)

    def __init__(
        self,
        node: NodeId,
        bootstrap: Sequence[Contact],
        judge: Judge,
        rng: Random,
        config: DhtConfig | None = None,
        addresses: tuple[str, ...] = (),
    ) -> None:
        """The addresses are told to others besides those that the driver listens on."""
        config = config or DhtConfig()
        self.node = node
        self.config = config
        self.table = RoutingTable(node, config)
        self.values = ValueStore(self.table.id, config)
        self.density = Density(self.table, config)
        self.surveys = Surveys(config)
        self.calls = Calls(config, self._heard, self._lost)
        self.calls.addresses = addresses
        self._checking = Checking(judge, config)
        self._lookups = Lookups(self.table, self.calls, self._checking, self.surveys, config)
        self._puts = Puts(
            self.table, self.surveys, self._lookups, self.calls, self.density, rng, config
        )
        self._gets = Gets(self.values, self._lookups, self._puts, self.density, rng)
        self._upkeep = Upkeep(
            bootstrap,
            self.table,
            self._lookups,
            self._puts,
            self.values,
            self.density,
            self.calls,
            rng,
            config,
        )
        self._rates = RateLimit(config.burst, config.refill_ns, config.peers_max)

    @property
    def ready(self) -> bool:
        """Whether this node has found its place."""
        return self._upkeep.ready

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """Take one fact."""
        match event:
            case MessageReceived(peer, message):
                return self._message(peer, message, now_ns)
            case LinkOpened(peer):
                return self.calls.link_opened(peer)
            case LinkClosed(peer) | LinkFailed(peer):
                return self.calls.link_lost(peer, now_ns)
            case TimerFired(key):
                return self._timer(key, now_ns)
            case Verified():
                return self._checking.verified(event, now_ns)
            case CommandIssued(command, token):
                return self._command(
                    command, lambda done: [Notify(_with_token(done, token))], now_ns
                )
            case Started(addresses):
                self.calls.addresses = tuple(dict.fromkeys((*addresses, *self.calls.addresses)))
                return self._upkeep.start(now_ns)
            case _:
                return []  # queues of links: answers are small, and values are paced by theirs

    def check_invariants(self) -> None:
        """Raise InvariantViolated if the state is one that must not exist."""
        self.table.check_invariants()
        self.values.check_invariants()
        self.surveys.check_invariants()
        self.calls.check_invariants()
        self._lookups.check_invariants()

    def _timer(self, key: Hashable, now_ns: int) -> list[Effect]:
        match key:
            case "calls":
                return self.calls.tick(now_ns)
            case "slow":
                return self.calls.slow_tick(now_ns)
            case "tick":
                return self._upkeep.tick(now_ns)
            case "join":
                return self._upkeep.join(now_ns)
            case "puts":
                return self._puts.begin(now_ns)
            case ("lookup", int(number)):
                return self._lookups.deadline(number, now_ns)
        ours = ", ".join((CALLS, SLOW, TICK, JOIN, PUTS, LOOKUP))
        raise UsageError(f"no timer {key!r}: {ours} are ours")

    # Peers

    def _message(self, peer: NodeId, message: Any, now_ns: int) -> list[Effect]:
        kind = type(message)
        if kind in ANSWERS:
            return self.calls.answered(peer, message, now_ns)
        if kind in COMMANDS:
            if peer != self.node:
                return [Rejected(peer, "not-ours")]
            token = message.token
            return self._command(
                message, lambda done: [Send(_with_token(done, token), (self.node,))], now_ns
            )
        tokens = store_tokens(message.value) if kind is StoreValue else 1
        if not self._rates.allow(peer, now_ns, tokens):
            return [Rejected(peer, "rate-limited")]
        contact = Contact(peer, message.sender)
        answer: list[Effect] = _ANSWERS[kind](self, contact, message, now_ns)
        return [*answer, *self.calls.claim(contact), *self._heard(contact, now_ns)]

    def _heard(self, contact: Contact, now_ns: int) -> list[Effect]:
        """A node lives; ask the one that would have to make room for it whether it does."""
        self.surveys.heard(contact)
        self._upkeep.lost.found(contact.node)
        oldest = self.table.seen(contact, now_ns)
        if oldest is None:
            return []
        return self.calls.ask(oldest, Ping, (), lambda answer, now_ns: [], now_ns)

    def _lost(self, node: NodeId) -> None:
        self.surveys.lost(node)
        gone = self.table.failed(node)
        if gone is not None:
            self._upkeep.lost.add(gone)

    def _on_ping(self, asker: Contact, message: Ping, now_ns: int) -> list[Effect]:
        return [Send(Pong(message.request), (asker.node,))]

    def _on_find_node(self, asker: Contact, message: FindNode, now_ns: int) -> list[Effect]:
        contacts = self._near(asker, message.target)
        return [Send(Nodes(message.request, contacts), (asker.node,))]

    def _on_find_value(self, asker: Contact, message: FindValue, now_ns: int) -> list[Effect]:
        values: list[bytes] = []
        room = VALUE_BYTES_MAX
        for held in self.values.get(message.key, now_ns):
            room -= len(held.value)
            if room >= 0:
                values.append(held.value)
        contacts = self._near(asker, message.target)
        return [Send(Values(message.request, tuple(values), contacts), (asker.node,))]

    def _near(self, asker: Contact, target: bytes) -> tuple[Contact, ...]:
        near = self.table.closest(id_of_wire(target), self.config.k + 1)
        return tuple([one for one in near if one.node != asker.node][: self.config.k])

    def _on_store(self, asker: Contact, message: StoreValue, now_ns: int) -> list[Effect]:
        if self._checking.busy:
            return [Send(ValueStored(message.request, "busy"), (asker.node,))]
        then = partial(self._store, asker.node, message)
        return self._checking.check(message.key, message.value, then, now_ns)

    def _store(
        self, peer: NodeId, message: StoreValue, judged: Judged | None, now_ns: int
    ) -> list[Effect]:
        if judged is None:
            refused = Send(ValueStored(message.request, "invalid"), (peer,))
            return [refused, Rejected(peer, "bad-value")]
        life_ns = message.life_s * S_NS
        if message.cached:
            beyond = max(0, self.table.closer(id_of_key(message.key)) - self.config.k)
            life_ns = min(life_ns, self.config.cache_ns >> min(beyond, 63))
        refused_for = self.values.put(
            message.key,
            message.value,
            judged,
            peer,
            life_ns,
            now_ns,
            cached=message.cached,
            due_ns=self._upkeep.due_ns(now_ns),
        )
        return [Send(ValueStored(message.request, refused_for), (peer,))]

    # Commands

    def _command(self, command: Any, reply: Reply, now_ns: int) -> list[Effect]:
        match command:
            case Find():
                return self._find(command, reply, now_ns)
            case Get(key):
                _check_key(key)

                def got(values: tuple[bytes, ...], alone: bool) -> list[Effect]:
                    return reply(GetDone(key, values, None, alone))

                return self._gets.get(key, got, now_ns, patient=command.patient)
            case Put():
                return self._put(command, reply, now_ns)
            case Meet(contacts):
                return self._upkeep.meet(contacts, now_ns)
        raise UsageError(f"{command!r} is no command of the DHT: Find, Get and Put are")

    def _find(self, command: Find, reply: Reply, now_ns: int) -> list[Effect]:
        if not 0 <= command.target < SPACE:
            raise UsageError(f"place {command.target} is outside of 256 bits: use id_of_node")
        k, target = self.config.k, command.target
        if command.local:
            return reply(FindDone(target, tuple(self.table.closest(target, k))))

        def done(result: Result, now_ns: int) -> list[Effect]:
            return reply(FindDone(target, tuple(result.nodes.closest(k))))

        return self._lookups.start("find", target, done, now_ns)

    def _put(self, command: Put, reply: Reply, now_ns: int) -> list[Effect]:
        key, value = command.key, command.value
        _check_key(key)
        if not 1 <= len(value) <= VALUE_BYTES_MAX:
            raise UsageError(f"a value has 1 to {VALUE_BYTES_MAX} bytes, not {len(value)}")
        replicas = self.config.k if command.replicas is None else command.replicas
        if not 1 <= replicas <= self.config.k:
            raise UsageError(f"{replicas} replicas: write 1 to {self.config.k}")

        def checked(judged: Judged | None, now_ns: int) -> list[Effect]:
            if judged is None:
                # A signature is checked off the machine: too late to raise.
                return reply(PutDone(key, 0))
            due_ns, life_ns = self._upkeep.due_ns(now_ns), self.config.value_ns
            self.values.put(key, value, judged, self.node, life_ns, now_ns, due_ns=due_ns)
            return self._puts.put(
                key,
                value,
                life_ns,
                replicas,
                lambda held, over: reply(PutDone(key, held, None, over)),
                command.progress,
                now_ns,
            )

        return self._checking.check(key, value, checked, now_ns)


def _with_token(done: Any, token: Hashable) -> Any:
    """The same answer, for whoever asked under a token."""
    return msgspec.structs.replace(done, token=token)


def _check_key(key: bytes) -> None:
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise UsageError(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {len(key)}: hash it")


_ANSWERS: dict[type, Callable[[DhtNode, Contact, Any, int], list[Effect]]] = {
    Ping: DhtNode._on_ping,
    FindNode: DhtNode._on_find_node,
    FindValue: DhtNode._on_find_value,
    StoreValue: DhtNode._on_store,
}
