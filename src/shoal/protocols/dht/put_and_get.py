"""Storing: find the k nearest nodes, give them the value, and count who took it.

Whoever is among the nearest itself knows the others, and where a lookup ended a moment ago they
are known, too (see surveys.py): there the value is given at once. A node that does not answer, or
has no room, is made up for by the next nearest. Where the neighbourhood is crowded, a lookup is
made in any case, and the places beside it get the value as well (see density.py).

Values wait for their turn: those who get them allow each peer a rate, and a host has only so many
links for the DHT. Those whose place has to be looked up wait apart, and hold up nobody else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import msgspec

from shoal.base.containers import RateLimit
from shoal.base.ids import Contact, NodeId
from shoal.base.units import MS_NS, S_NS
from shoal.kernel.effects import Effect, SetTimer
from shoal.protocols.dht.config import STORE_TOKEN_BYTES, DhtConfig
from shoal.protocols.dht.key_space import id_of_key, id_of_node
from shoal.protocols.dht.lookup import Found, Lookups, Result
from shoal.protocols.dht.messages import StoreValue, ValueStored
from shoal.protocols.dht.request_tracker import Calls
from shoal.protocols.dht.routing_table import RoutingTable
from shoal.protocols.dht.survey import Density, Surveys
from shoal.protocols.dht.value_store import ValueStore

FINAL = ("invalid", "older")  # another node would say the same
PUTS = "puts"  # the timer of values that wait for their turn
BUSY_NS = 50 * MS_NS  # too many peers are being asked: look again then

Reply = Callable[[int, bool], list[Effect]]
"""Told how many hold the value, and whether that is all: once, or each time that one more does."""


class _Put(msgspec.Struct):
    kind: str
    key: bytes
    value: bytes
    life_ns: int
    replicas: int
    reply: Reply | None
    progress: bool
    """Each one more is told."""
    begun_ns: int
    lookups: int = 0
    under_way: int = 0
    held: int = 0
    near: Sequence[Contact] = ()
    crowded: bool = False
    given: dict[NodeId, bool] = {}
    """Whether one more got it in a node's place."""


def store_tokens(value: bytes) -> int:
    """How many questions the storing of a value counts for."""
    return 1 + len(value) // STORE_TOKEN_BYTES


class Puts:
    """Stores under way."""

    def __init__(
        self,
        table: RoutingTable,
        surveys: Surveys,
        lookups: Lookups,
        calls: Calls,
        density: Density,
        rng: Random,
        config: DhtConfig,
    ) -> None:
        self.at_home = False
        """Whether our own neighbourhood was looked up."""
        self._table = table
        self._surveys = surveys
        self._lookups = lookups
        self._calls = calls
        self._density = density
        self._rng = rng
        self._config = config
        self._unsure: deque[_Put] = deque()
        self._ready: deque[_Put] = deque()
        self._looking = 0
        self._beginning = False
        self._pace = RateLimit(config.burst // 2, config.refill_ns * 5 // 4, keys_max=1)

    def put(
        self,
        key: bytes,
        value: bytes,
        life_ns: int,
        replicas: int,
        reply: Reply,
        progress: bool,
        now_ns: int,
    ) -> list[Effect]:
        """Give a value to the nearest nodes; tell when so many have it, and until then each time
        that one more does, if progress is wanted."""
        put = _Put("put", key, value, life_ns, replicas, reply, progress, now_ns)
        return self._queue(put, now_ns)

    def again(
        self, key: bytes, value: bytes, life_ns: int, release: Callable[[], None], now_ns: int
    ) -> list[Effect]:
        """Republish. If k others have it who are nearer than we are, and are no crowd, ours is
        released: otherwise all who ever were among the nearest would go on republishing."""
        put = _Put("republish", key, value, life_ns, self._config.k, None, False, now_ns)
        near = self._table.closer(id_of_key(key)) < self._config.k

        def told(held: int, over: bool) -> list[Effect]:
            if held >= self._config.k and not near and not put.crowded:
                release()
            return []

        put.reply = told
        return self._queue(put, now_ns)

    def copy(self, contact: Contact, key: bytes, value: bytes, now_ns: int) -> list[Effect]:
        """Leave a copy on the path of a lookup; whether it is taken does not matter."""
        fields = (key, value, self._config.cache_ns // S_NS, True)
        return self._calls.ask(contact, StoreValue, fields, lambda answer, now_ns: [], now_ns)

    def begin(self, now_ns: int) -> list[Effect]:
        """Begin with those whose turn it is."""
        if self._beginning:
            return []  # a lookup ended at once: whoever began it goes on
        self._beginning = True
        effects = [*self._look_up(now_ns), *self._give_ready(now_ns)]
        self._beginning = False
        return effects

    def _look_up(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        while self._unsure and self._looking < self._config.put_lookups_max:
            put = self._unsure.popleft()
            if self._is_known(put, now_ns):  # by now
                self._ready.append(put)
                continue
            self._looking += 1
            put.lookups = 1
            done = partial(self._found, put, True)
            effects += self._lookups.start(put.kind, id_of_key(put.key), done, now_ns)
        return effects

    def _give_ready(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        while self._ready:
            tokens = store_tokens(self._ready[0].value)
            if self._calls.peers >= self._config.put_peers_max:
                return [*effects, SetTimer(PUTS, BUSY_NS)]
            if not self._pace.allow(PUTS, now_ns, tokens):
                return [*effects, SetTimer(PUTS, tokens * self._config.refill_ns)]
            put = self._ready.popleft()
            effects += self._give(put, put.near, now_ns)
        return effects

    def _queue(self, put: _Put, now_ns: int) -> list[Effect]:
        if len(self._unsure) + len(self._ready) >= self._config.waiting_max:
            return [] if put.reply is None else put.reply(0, True)
        (self._ready if self._is_known(put, now_ns) else self._unsure).append(put)
        return self.begin(now_ns)

    def _is_known(self, put: _Put, now_ns: int) -> bool:
        """Whether the nearest nodes need not be looked up. If fewer than k are nearer than we are,
        then the buckets around the target are not full: nobody was left out."""
        target, k = id_of_key(put.key), self._config.k
        near: list[Contact] | None = self._table.closest(target, 2 * k)
        if not self.at_home or len(near or ()) < k or self._table.closer(target) >= k:
            near = self._surveys.nearest(target, now_ns)
        if near is None:
            return False
        put.near = near
        return not self._density.crowded([id_of_node(one.node) ^ target for one in near])

    def _found(self, put: _Put, first: bool, result: Result, now_ns: int) -> list[Effect]:
        put.lookups -= 1
        effects: list[Effect] = []
        near = result.nodes.closest(self._config.asked_max)
        if not first:
            return self._give(put, near, now_ns)
        self._looking -= 1
        put.crowded = self._density.crowded(result.nodes.distances())
        if put.crowded:
            for place in self._density.beside(id_of_key(put.key), self._rng):
                put.lookups += 1
                done = partial(self._found, put, False)
                effects += self._lookups.start(f"{put.kind}-beside", place, done, now_ns)
        put.near = near
        self._ready.append(put)
        return [*effects, *self.begin(now_ns)]

    def _give(self, put: _Put, near: Sequence[Contact], now_ns: int) -> list[Effect]:
        left = deque([contact for contact in near if contact.node not in put.given])
        effects: list[Effect] = []
        for _ in range(self._config.k):
            effects += self._give_next(put, left, now_ns)
        return [*effects, *self._tell(put)]

    def _give_next(self, put: _Put, left: deque[Contact], now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        while left:
            contact = left.popleft()
            if contact.node in put.given:
                continue
            slow = self._calls.is_slow(contact.node)
            put.given[contact.node] = slow
            put.under_way += 1
            life_s = max(0, put.life_ns - (now_ns - put.begun_ns)) // S_NS
            fields = (put.key, put.value, life_s, False)
            then = partial(self._answered, put, left, contact.node)
            go_on = partial(self._replace, put, left, contact.node)
            effects += self._calls.ask(contact, StoreValue, fields, then, now_ns, go_on)
            if not slow:
                break
        return effects

    def _replace(self, put: _Put, left: deque[Contact], node: NodeId, now_ns: int) -> list[Effect]:
        """A node is slow, or does not take it: one more gets it, once."""
        if put.given[node]:
            return []
        put.given[node] = True
        return self._give_next(put, left, now_ns)

    def _answered(
        self,
        put: _Put,
        left: deque[Contact],
        node: NodeId,
        answer: ValueStored | None,
        now_ns: int,
    ) -> list[Effect]:
        put.under_way -= 1
        effects: list[Effect] = []
        if answer is not None and not answer.refused:
            put.held += 1
            if put.progress and put.reply is not None and put.held < put.replicas:
                effects += put.reply(put.held, False)
        elif answer is None or answer.refused not in FINAL:
            effects += self._replace(put, left, node, now_ns)
        return [*effects, *self._tell(put)]

    def _tell(self, put: _Put) -> list[Effect]:
        over = not put.under_way and not put.lookups
        if put.reply is None or not (over or put.held >= put.replicas > 0):
            return []
        reply, put.reply = put.reply, None
        return reply(put.held, True)


# Fetching: look for a key's values where they should be, and beside it if that is crowded.
#
# A content-addressed value ends the search, and leaves a copy at the nearest node that was asked
# and did not have it. Of signed records all that are found are compared, and the newest of each
# signer is told.


GetReply = Callable[[tuple[bytes, ...], bool], list[Effect]]
"""Told what was found, and whether nobody else could be asked."""


class _Get(msgspec.Struct):
    key: bytes
    reply: GetReply
    found: Found
    patient: bool
    lookups: int = 1
    alone: bool = True


class Gets:
    """Fetches under way."""

    def __init__(
        self, values: ValueStore, lookups: Lookups, puts: Puts, density: Density, rng: Random
    ) -> None:
        self._values = values
        self._lookups = lookups
        self._puts = puts
        self._density = density
        self._rng = rng

    def get(
        self, key: bytes, reply: GetReply, now_ns: int, *, patient: bool = False
    ) -> list[Effect]:
        """Find what is kept under a key; reply once. Who is patient hears slow nodes, too."""
        held = self._values.get(key, now_ns)
        found = {one.judged.signer: (one.judged, one.value) for one in held}
        get = _Get(key, reply, found, patient)
        if None in get.found:
            return self._tell(get)
        done = partial(self._looked, get, True)
        return self._lookups.start("get", id_of_key(key), done, now_ns, key=key, patient=patient)

    def _looked(self, get: _Get, first: bool, result: Result, now_ns: int) -> list[Effect]:
        get.lookups -= 1
        get.alone = get.alone and not result.nodes.closest(1)
        told = None in get.found
        for signer, (judged, value) in result.found.items():
            known = get.found.get(signer)
            if known is None or known[0].number < judged.number:
                get.found[signer] = (judged, value)
        effects: list[Effect] = []
        if None in get.found:
            value = get.found[None][1]
            if None in result.found and result.nodes.empty:
                target = result.nodes.target
                nearest = min(result.nodes.empty, key=lambda one: id_of_node(one.node) ^ target)
                effects += self._puts.copy(nearest, get.key, value, now_ns)
        elif first and self._density.crowded(result.nodes.distances()):
            for place in self._density.beside(id_of_key(get.key), self._rng):
                get.lookups += 1
                done = partial(self._looked, get, False)
                effects += self._lookups.start(
                    "get-beside", place, done, now_ns, key=get.key, patient=get.patient
                )
        if not told and (None in get.found or not get.lookups):
            effects += self._tell(get)
        return effects

    def _tell(self, get: _Get) -> list[Effect]:
        found = sorted(get.found.values(), key=lambda one: (-one[0].number, one[0].signer or b""))
        return get.reply(tuple([value for _, value in found]), get.alone)
