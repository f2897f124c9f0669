"""A DHT under virtual time: nodes that join, leave, store, look up; and some that hide values."""

from __future__ import annotations

from heapq import nsmallest
from typing import Any, cast

from shoal.base.ids import Contact, NodeId, node_id
from shoal.kernel.effects import Effect, Send
from shoal.kernel.inputs import Input, MessageReceived
from shoal.kernel.records import LookupDone
from shoal.protocols.dht.commands import Get, GetDone, Put, PutDone
from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.key_space import DhtId, id_of_node, id_of_wire
from shoal.protocols.dht.machine import DhtNode
from shoal.protocols.dht.messages import FindNode, FindValue, Nodes, StoreValue, Values, ValueStored
from shoal.protocols.dht.validators import judge_any
from shoal.protocols.dht.wire import DhtCodec
from shoal.sim import RegionDelay, SimNode, Simulation, load_table
from shoal.sim.checkers import Checker
from shoal.sim.trace import Row

BOOTSTRAPS = 3
JOIN_INTERVAL_S = 0.05
KEYS_TRIED = 256  # by an attacker, for each of its nodes


class HidingNode(DhtNode):
    """Joins as others do, but knows nobody outside its club, holds nothing, and says it does."""

    club: tuple[Contact, ...] = ()

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        effects = super().handle(event, now_ns)
        if not isinstance(event, MessageReceived):
            return effects
        message, peer = event.message, event.peer
        match message:
            case FindNode():
                lie: Any = Nodes(message.request, self._nearest(message.target))
            case FindValue():
                lie = Values(message.request, (), self._nearest(message.target))
            case StoreValue():
                lie = ValueStored(message.request, "")
            case _:
                return effects
        kinds = (Nodes, Values, ValueStored)
        honest = [e for e in effects if not (isinstance(e, Send) and isinstance(e.message, kinds))]
        return [Send(lie, (peer,)), *honest]

    def _nearest(self, target: bytes) -> tuple[Contact, ...]:
        place = id_of_wire(target)
        near = nsmallest(self.config.k, self.club, key=lambda one: id_of_node(one.node) ^ place)
        return tuple(near)


class DhtNetwork:
    """Nodes of a DHT over the AWS delay table. Each has an address prefix of its own."""

    def __init__(
        self,
        seed: int,
        nodes: int,
        config: DhtConfig | None = None,
        *,
        hiding: int = 0,
        hidden: DhtId | None = None,
        checkers: tuple[Checker, ...] = (),
        wire: bool = False,
    ) -> None:
        """So many of the nodes hide values near a place, if one is named."""
        self.config = config or DhtConfig()
        self.simulation = Simulation(
            seed,
            RegionDelay(load_table("aws")),
            codecs=[DhtCodec()],
            checkers=checkers,
            wire=wire,
        )
        self.rng = self.simulation.random("dht network")
        self.honest: list[SimNode] = []
        self._lookups: list[LookupDone] = []
        self._answers: dict[int, Any] = {}
        self._asked_s: dict[int, float] = {}
        self._answered_s: dict[int, float] = {}
        self._tokens = 0
        self._hiding: dict[NodeId, None] = {}
        self._contacts: dict[NodeId, Contact] = {}
        self.simulation.trace.to(self._keep)
        for _ in range(nodes - hiding):
            self.honest.append(self._add(self._draw_id()))
        self.bootstrap = tuple([self._contacts[node.id] for node in self.honest[:BOOTSTRAPS]])
        liars = [self._add(self._draw_near(hidden), hides=True) for _ in range(hiding)]
        self._hiding = dict.fromkeys([node.id for node in liars])
        self._club = tuple([self._contacts[node.id] for node in liars])
        order = [*self.honest[BOOTSTRAPS:], *liars]
        self.rng.shuffle(order)
        for number, node in enumerate([*self.honest[:BOOTSTRAPS], *order]):
            self.simulation.at_s(number * JOIN_INTERVAL_S, node.start)
        self.joined_s = nodes * JOIN_INTERVAL_S + 30

    def machine(self, node: SimNode) -> DhtNode:
        """The DHT machine of a node that runs."""
        return cast(DhtNode, node.machines[0])

    def running(self) -> list[SimNode]:
        """Honest nodes that run."""
        return [node for node in self.honest if node.host is not None]

    def join(self) -> None:
        """Let all nodes join."""
        self.simulation.run_until_s(self.joined_s)

    def put(self, node: SimNode, key: bytes, value: bytes, replicas: int | None = None) -> int:
        """Store a value; gives the token of its answer."""
        return self._ask(node, Put(key, value, replicas))

    def get(self, node: SimNode, key: bytes) -> int:
        """Look for a value."""
        return self._ask(node, Get(key))

    def replicas(self, token: int) -> int:
        """How many nodes said that they hold what was put; 0 if there was no answer yet."""
        done = self._answers.get(token)
        return done.replicas if isinstance(done, PutDone) else 0

    def values(self, token: int) -> tuple[bytes, ...]:
        """What a get has found."""
        done = self._answers.get(token)
        return done.values if isinstance(done, GetDone) else ()

    def answered(self, token: int) -> bool:
        """Whether the asker was told anything."""
        return token in self._answers

    def took_s(self, token: int) -> float:
        """Simulated seconds until the asker was told."""
        return self._answered_s[token] - self._asked_s[token]

    def forget_lookups(self) -> list[LookupDone]:
        """Lookups of honest nodes that ended since this was last asked."""
        self.simulation.trace.flush()
        ended, self._lookups = self._lookups, []
        return ended

    def holders(self, key: bytes) -> list[SimNode]:
        """Honest nodes that hold a value."""
        now_ns = self.simulation.scheduler.now_ns
        return [n for n in self.running() if self.machine(n).values.get(key, now_ns)]

    def churn(self, part: float, interval_s: float, until_s: float) -> None:
        """From now on nodes die, and as many new ones come with ids of their own: such a part of
        them in every interval. Bootstrap nodes stay."""
        rate = part * len(self.honest) / interval_s
        when_s = self.simulation.time_s
        while (when_s := when_s + self.rng.expovariate(rate)) < until_s:
            self.simulation.at_s(when_s, self._replace_one)

    def _replace_one(self) -> None:
        victim = self.rng.choice([n for n in self.running() if n not in self.honest[:BOOTSTRAPS]])
        victim.crash()
        self.honest.remove(victim)
        newcomer = self._add(self._draw_id())
        self.honest.append(newcomer)
        newcomer.start()

    def _ask(self, node: SimNode, command: Any) -> int:
        self._tokens += 1
        self._asked_s[self._tokens] = self.simulation.time_s
        node.command(0, command, self._tokens)
        return self._tokens

    def _add(self, id: NodeId, *, hides: bool = False) -> SimNode:
        node = self.simulation.add_node(id, self._make, "hiding" if hides else "node")
        number = node.index
        address = f"ws://10.{number >> 8 & 255}.{number & 255}.1:4000"
        self._contacts[id] = Contact(id, (address,))
        node.listeners.append(self._told)
        return node

    def _make(self, node: SimNode) -> list[DhtNode]:
        kind = HidingNode if node.id in self._hiding else DhtNode
        machine = kind(
            node.id,
            self.bootstrap,
            judge_any,
            self.simulation.random("dht", node.index, node.incarnation),
            self.config,
            self._contacts[node.id].addresses,
        )
        if isinstance(machine, HidingNode):
            machine.club = self._club
        return [machine]

    def _told(self, event: Any) -> None:
        if isinstance(event, GetDone | PutDone):
            token = cast(int, event.token)
            self._answers[token] = event
            self._answered_s[token] = self.simulation.time_s

    def _keep(self, rows: list[Row]) -> None:
        self._lookups += [
            row[2] for row in rows if type(row[2]) is LookupDone and row[1] not in self._hiding
        ]

    def _draw_id(self) -> NodeId:
        return node_id(self.rng.randbytes(20))

    def _draw_near(self, place: DhtId | None) -> NodeId:
        if place is None:
            return self._draw_id()
        return min(
            [self._draw_id() for _ in range(KEYS_TRIED)], key=lambda id: id_of_node(id) ^ place
        )
