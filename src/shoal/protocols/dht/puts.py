"""Storing: find the k nearest nodes, give them the value, and count who took it.

A node that does not answer, or has no room, is made up for by the next nearest. Where the
neighbourhood is crowded, the places beside it get the value as well (see density.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import msgspec

from shoal.base.ids import NodeId
from shoal.base.units import S_NS
from shoal.kernel.contact import Contact
from shoal.kernel.effects import Effect
from shoal.protocols.dht.calls import Calls
from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.density import Density
from shoal.protocols.dht.ids import id_of_key, id_of_node
from shoal.protocols.dht.lookups import Lookups, Result
from shoal.protocols.dht.messages import StoreValue, ValueStored
from shoal.protocols.dht.table import RoutingTable

FINAL = ("invalid", "older")  # another node would say the same

Reply = Callable[[int], list[Effect]]
"""Told once, how many hold the value."""


class _Put(msgspec.Struct):
    key: bytes
    value: bytes
    life_ns: int
    replicas: int
    reply: Reply | None
    begun_ns: int
    lookups: int = 0
    under_way: int = 0
    held: int = 0
    given: dict[NodeId, None] = {}


class Puts:
    """Stores under way."""

    def __init__(
        self,
        table: RoutingTable,
        lookups: Lookups,
        calls: Calls,
        density: Density,
        rng: Random,
        config: DhtConfig,
    ) -> None:
        self._table = table
        self._lookups = lookups
        self._calls = calls
        self._density = density
        self._rng = rng
        self._config = config

    def put(
        self,
        kind: str,
        key: bytes,
        value: bytes,
        life_ns: int,
        now_ns: int,
        replicas: int = 0,
        reply: Reply | None = None,
    ) -> list[Effect]:
        """Find the nearest nodes and give them the value; tell when so many have it."""
        put = _Put(key, value, life_ns, replicas, reply, now_ns, lookups=1)
        done = partial(self._found, put, kind, True)
        return self._lookups.start(kind, id_of_key(key), done, now_ns)

    def again(self, key: bytes, value: bytes, life_ns: int, now_ns: int) -> list[Effect]:
        """Republish. Whoever is among the nearest itself knows the others, and need not look."""
        target = id_of_key(key)
        near = self._table.closest(target, self._config.k)
        distances = [id_of_node(contact.node) ^ target for contact in near]
        if self._table.closer(target) >= self._config.k or self._density.crowded(distances):
            return self.put("republish", key, value, life_ns, now_ns)
        return self._give(_Put(key, value, life_ns, 0, None, now_ns), near, now_ns)

    def copy(self, contact: Contact, key: bytes, value: bytes, now_ns: int) -> list[Effect]:
        """Leave a copy on the path of a lookup; whether it is taken does not matter."""
        fields = (key, value, self._config.cache_ns // S_NS, True)
        return self._calls.ask(contact, StoreValue, fields, lambda answer, now_ns: [], now_ns)

    def _found(
        self, put: _Put, kind: str, first: bool, result: Result, now_ns: int
    ) -> list[Effect]:
        put.lookups -= 1
        effects: list[Effect] = []
        if first and self._density.crowded(result.nodes.distances()):
            for place in self._density.beside(id_of_key(put.key), self._rng):
                put.lookups += 1
                done = partial(self._found, put, kind, False)
                effects += self._lookups.start(f"{kind}-beside", place, done, now_ns)
        near = result.nodes.closest(self._config.asked_max)
        return [*effects, *self._give(put, near, now_ns)]

    def _give(self, put: _Put, near: Sequence[Contact], now_ns: int) -> list[Effect]:
        left = deque([contact for contact in near if contact.node not in put.given])
        effects: list[Effect] = []
        for _ in range(self._config.k):
            effects += self._give_next(put, left, now_ns)
        return [*effects, *self._tell(put)]

    def _give_next(self, put: _Put, left: deque[Contact], now_ns: int) -> list[Effect]:
        while left:
            contact = left.popleft()
            if contact.node not in put.given:
                put.given[contact.node] = None
                put.under_way += 1
                life_s = max(0, put.life_ns - (now_ns - put.begun_ns)) // S_NS
                fields = (put.key, put.value, life_s, False)
                then = partial(self._answered, put, left)
                return self._calls.ask(contact, StoreValue, fields, then, now_ns)
        return []

    def _answered(
        self, put: _Put, left: deque[Contact], answer: ValueStored | None, now_ns: int
    ) -> list[Effect]:
        put.under_way -= 1
        effects: list[Effect] = []
        if answer is not None and not answer.refused:
            put.held += 1
        elif answer is None or answer.refused not in FINAL:
            effects += self._give_next(put, left, now_ns)
        return [*effects, *self._tell(put)]

    def _tell(self, put: _Put) -> list[Effect]:
        over = not put.under_way and not put.lookups
        if put.reply is None or not (over or put.held >= put.replicas > 0):
            return []
        reply, put.reply = put.reply, None
        return reply(put.held)
