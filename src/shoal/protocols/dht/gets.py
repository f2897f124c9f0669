"""Fetching: look for a key's values where they should be, and beside it if that is crowded.

A content-addressed value ends the search, and leaves a copy at the nearest node that was asked and
did not have it. Of signed records all that are found are compared, and the newest of each signer
is told.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import msgspec

from shoal.kernel.effects import Effect
from shoal.protocols.dht.density import Density
from shoal.protocols.dht.ids import id_of_key, id_of_node
from shoal.protocols.dht.lookups import Found, Lookups, Result
from shoal.protocols.dht.puts import Puts
from shoal.protocols.dht.values import ValueStore

Reply = Callable[[tuple[bytes, ...], bool], list[Effect]]
"""Told what was found, and whether nobody else could be asked."""


class _Get(msgspec.Struct):
    key: bytes
    reply: Reply
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

    def get(self, key: bytes, reply: Reply, now_ns: int, *, patient: bool = False) -> list[Effect]:
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
