"""What a node does unasked: join, refresh buckets, republish and expire values.

Joining is a lookup of our own place that begins at the bootstrap contacts, then one in every
bucket farther away. The lookup of our own place is repeated as the refresh of the last bucket, and
asks the bootstrap contacts again: so two halves of a network that had lost each other meet. A node
that is among its own bootstrap contacts does not wait for the others: one of them is the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

from shoal.base.ids import Contact, NodeId
from shoal.kernel.effects import Effect, Notify, SetTimer
from shoal.protocols.dht.commands import DhtReady
from shoal.protocols.dht.config import MINUTE_NS, DhtConfig
from shoal.protocols.dht.key_space import sibling
from shoal.protocols.dht.lookup import Lookups, Result
from shoal.protocols.dht.messages import Ping
from shoal.protocols.dht.put_and_get import Puts
from shoal.protocols.dht.request_tracker import Calls
from shoal.protocols.dht.routing_table import RoutingTable
from shoal.protocols.dht.survey import Density
from shoal.protocols.dht.value_store import ValueStore

JOIN, TICK = "join", "tick"  # timers
REFRESHES_MAX = 4  # buckets that one tick refreshes
JOIN_RETRIES_DOUBLED = 4  # a bootstrap that is down for long is tried every 80 s


class Upkeep:
    """The node's own initiative."""

    def __init__(
        self,
        bootstrap: Sequence[Contact],
        table: RoutingTable,
        lookups: Lookups,
        puts: Puts,
        values: ValueStore,
        density: Density,
        calls: Calls,
        rng: Random,
        config: DhtConfig,
    ) -> None:
        self.ready = False
        self._is_entrance = any(one.node == table.node for one in bootstrap)
        """Others enter through this node: it works alone, too, and goes on looking for the rest."""
        self._alone = False
        self._bootstrap = tuple([one for one in bootstrap if one.node != table.node])
        self.lost = Lost(self._bootstrap, table, rng)
        self._table = table
        self._lookups = lookups
        self._puts = puts
        self._values = values
        self._density = density
        self._calls = calls
        self._rng = rng
        self._config = config
        self._attempts = 0
        self._measure_ns = 0

    def start(self, now_ns: int) -> list[Effect]:
        """The node begins."""
        return [SetTimer(TICK, self._jittered(self._config.tick_ns)), *self.join(now_ns)]

    def meet(self, bootstrap: Sequence[Contact], now_ns: int) -> list[Effect]:
        """Other bootstrap contacts from now on: look through them at once."""
        self._is_entrance = any(one.node == self._table.node for one in bootstrap)
        self._bootstrap = tuple([one for one in bootstrap if one.node != self._table.node])
        self.lost.bootstrap = self._bootstrap
        return self.join(now_ns)

    def join(self, now_ns: int) -> list[Effect]:
        """Find our neighbours; without bootstrap contacts others have to find us."""
        if not self._bootstrap:
            return self._joined()
        return self._lookups.start(
            "join", self._table.id, self._at_home, now_ns, seeds=self._bootstrap
        )

    def tick(self, now_ns: int) -> list[Effect]:
        """Look for something to do."""
        effects: list[Effect] = [SetTimer(TICK, self._config.tick_ns)]
        self._values.expire(now_ns)
        for held in self._values.due(now_ns, self._config.republish_batch):
            self._values.postpone(held, self.due_ns(now_ns))
            life_ns = held.expires_ns - now_ns
            release = partial(self._values.release, held.slot)
            effects += self._puts.again(held.key, held.value, life_ns, release, now_ns)
        if self.ready:
            for index in self._to_refresh(now_ns)[:REFRESHES_MAX]:
                effects += self._refresh(index, now_ns)
            effects += self._try_lost(now_ns)
        return effects

    def _try_lost(self, now_ns: int) -> list[Effect]:
        contact = self.lost.draw()
        if contact is None:
            return []
        return self._calls.ask(contact, Ping, (), lambda answer, now_ns: [], now_ns)

    def _to_refresh(self, now_ns: int) -> list[int]:
        """Stale buckets; or the widest, if the size of the network has to be measured anew."""
        if self._density.outgrown and now_ns >= self._measure_ns:
            self._measure_ns = now_ns + MINUTE_NS
            self._density.forget()
            return list(range(len(self._table.buckets)))
        return self._table.stale(now_ns)

    def due_ns(self, now_ns: int) -> int:
        """When a value that was stored now is to be republished here: at other times elsewhere, so
        that one of its holders does it and the others see it."""
        return now_ns + self._jittered(self._config.republish_ns)

    def _at_home(self, result: Result, now_ns: int) -> list[Effect]:
        distances = result.nodes.distances()
        if not distances:
            doubled = min(self._attempts, JOIN_RETRIES_DOUBLED)
            self._attempts += 1
            again = SetTimer(JOIN, self._jittered(self._config.join_retry_ns << doubled))
            if not self._is_entrance:
                return [again]
            self._alone = not self.ready or self._alone
            return [*self._joined(), again]
        self._attempts = 0
        self._density.measured(distances)
        effects: list[Effect] = []
        if not self.ready or self._alone:
            self._alone = False
            for index in range(len(self._table.buckets) - 1):
                effects += self._refresh(index, now_ns)
        return [*self._joined(), *effects]

    def _joined(self) -> list[Effect]:
        if self.ready:
            return []
        self.ready = self._puts.at_home = True
        return [Notify(DhtReady(len(self._table)))]

    def _refresh(self, index: int, now_ns: int) -> list[Effect]:
        if index == len(self._table.buckets) - 1:
            self._table.looked(self._table.id, now_ns)
            return self.join(now_ns)
        target = sibling(self._table.id, index, self._rng)
        self._table.looked(target, now_ns)
        return self._lookups.start("refresh", target, self._refreshed, now_ns)

    def _refreshed(self, result: Result, now_ns: int) -> list[Effect]:
        self._density.measured(result.nodes.distances())
        return []

    def _jittered(self, interval_ns: int) -> int:
        """Between one and one and a half times as long: a thousand nodes do the same."""
        return interval_ns + int(self._rng.random() * interval_ns / 2)


# Contacts that were lost, and are tried again from time to time.
#
# A network that was cut in two forgets the other half: whoever does not answer leaves the table.
# When it is whole again nobody would know. So every node goes on to ping some that it lost, and the
# bootstrap contacts, one at each tick: with many nodes, one of them soon finds the other half.


LOST_MAX = 64  # the oldest are forgotten: they are dead, as a rule


class Lost:
    """Whom to try again."""

    def __init__(self, bootstrap: Sequence[Contact], table: RoutingTable, rng: Random) -> None:
        self.bootstrap = bootstrap
        self._table = table
        self._rng = rng
        self._contacts: dict[NodeId, Contact] = {}

    def add(self, contact: Contact) -> None:
        """A contact left the table."""
        self._contacts.pop(contact.node, None)
        self._contacts[contact.node] = contact
        if len(self._contacts) > LOST_MAX:
            del self._contacts[next(iter(self._contacts))]

    def found(self, node: NodeId) -> None:
        """A contact answered."""
        self._contacts.pop(node, None)

    def draw(self) -> Contact | None:
        """One that is not in the table, bootstrap contacts included."""
        away = [one for one in self.bootstrap if one.node not in self._table]
        away += [one for node, one in self._contacts.items() if node not in self._table]
        return self._rng.choice(away) if away else None
