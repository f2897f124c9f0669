"""One search for the nodes nearest to a place, over paths that share no node.

Each path asks the nearest nodes it knows for nearer ones. A node belongs to the path that heard of
it first and is asked by no other, so whoever lies misleads one path. A path ends when the k nearest
nodes that answered are nearer than all that it has left to ask. Only who answered counts: names are
free, and an answer full of nodes that do not exist discredits whoever gave it.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.base.ids import Contact, NodeId
from shoal.base.units import US_NS
from shoal.kernel.effects import CancelTimer, Effect, SetTimer
from shoal.kernel.records import LookupDone, Rejected
from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.key_space import SPACE, DhtId, id_of_node, wire_of_id
from shoal.protocols.dht.messages import FindNode, FindValue
from shoal.protocols.dht.request_tracker import Calls
from shoal.protocols.dht.routing_table import RoutingTable
from shoal.protocols.dht.validators import Checking, Judged

if TYPE_CHECKING:
    from shoal.protocols.dht.survey import Surveys

NEW, ASKED, SLOW, ANSWERED, FAILED = range(5)
DEAD_NAMES_MAX = 5  # more than that, and more than live ones: honest tables are not that stale


class _Known(msgspec.Struct):
    contact: Contact
    distance: int
    hops: int
    path: int
    source: NodeId | None
    """Who named it; nobody, if we knew it ourselves."""
    state: int = NEW


class Lookup:
    """What one search knows. Asks nobody by itself: see lookups.py."""

    def __init__(
        self,
        target: DhtId,
        me: NodeId,
        seeds: Sequence[Contact],
        config: DhtConfig,
        key: bytes | None = None,
        far: Sequence[Contact] = (),
    ) -> None:
        """The last path begins at nodes that are not near: if those are all liars, it is not
        misled."""
        self.target = target
        self.key = key
        self.asked = 0
        self.failures = 0
        self.stopped = False
        self.empty: list[Contact] = []
        """Nodes that answered without a value."""
        self.value_hops = 0
        """How far away the first value was."""
        self._config = config
        self._known: dict[NodeId, _Known] = {}
        self._me = me
        self._paths: list[list[tuple[int, NodeId]]] = [[] for _ in range(config.paths)]
        self._under_way = [0] * config.paths
        self._answered: list[tuple[int, NodeId]] = []
        self._named: Counter[NodeId] = Counter()  # dead names less live ones, by who gave them
        near_paths = config.paths - 1 if far and config.paths > 1 else config.paths
        for number, contact in enumerate(seeds):
            self._learn(contact, number % near_paths, 1, None)
        for contact in far:
            self._learn(contact, config.paths - 1, 1, None)

    def next(self) -> list[Contact]:
        """Whom to ask now."""
        if self.stopped:
            return []
        chosen = []
        bound = self._bound()
        for path, candidates in enumerate(self._paths):
            for distance, node in candidates:
                if self._under_way[path] >= self._config.alpha or distance >= bound:
                    break
                known = self._known[node]
                if known.state == NEW and self.asked < self._config.asked_max:
                    known.state = ASKED
                    self.asked += 1
                    self._under_way[path] += 1
                    chosen.append(known.contact)
        return chosen

    def answered(self, node: NodeId, contacts: Iterable[Contact]) -> None:
        """A node answered, and named others."""
        known = self._done(node, ANSWERED)
        insort(self._answered, (known.distance, node))
        if known.source is not None:
            self._named[known.source] -= 1
        if known.hops < self._config.hops_max:
            for contact in contacts:
                self._learn(contact, known.path, known.hops + 1, node)

    def slow(self, node: NodeId) -> None:
        """A node has not answered yet: its path goes on, and its answer counts when it comes."""
        known = self._known[node]
        if known.state == ASKED:
            known.state = SLOW
            self._under_way[known.path] -= 1

    def failed(self, node: NodeId) -> None:
        """A node did not answer."""
        known = self._done(node, FAILED)
        self.failures += 1
        if known.source is not None:
            self._named[known.source] += 1
            if self._named[known.source] > DEAD_NAMES_MAX:
                self._disbelieve(known.source)

    def finished(self, *, patient: bool = False) -> bool:
        """Whether no answer that is still to come can change the result; ask after `next`. Slow
        nodes are waited for as long as nobody else has answered, and by who is patient: that nobody
        has a value is true only if all were heard."""
        if self.stopped:
            return True
        patient = patient or not self._answered
        bound, awaited = self._bound(), (ASKED, SLOW) if patient else (ASKED,)
        return not any(
            known.state in awaited and known.distance < bound for known in self._known.values()
        )

    @property
    def surveyed(self) -> int | None:
        """Up to which distance from the target everybody was asked whom anybody named; None if the
        search was cut short, or it may be us who are cut off: as many were silent as answered."""
        bound, left = self._bound(), (NEW, ASKED)
        silent = self.failures + sum(known.state == SLOW for known in self._known.values())
        if self.stopped or (bound == SPACE and silent >= len(self._answered)):
            return None
        if any(k.state in left and k.distance < bound for k in self._known.values()):
            return None
        return min(bound, SPACE - 1)

    def closest(self, count: int) -> list[Contact]:
        """The nearest nodes that answered, nearest first."""
        return [self._known[node].contact for _, node in self._answered[:count]]

    def distances(self) -> list[int]:
        """How far the nodes that answered are, nearest first."""
        return [distance for distance, _ in self._answered]

    def hops(self, node: NodeId) -> int:
        """Over how many nodes, itself included, a node was found."""
        return self._known[node].hops

    @property
    def reach(self) -> int:
        """Hops to the value, or else to the nearest node."""
        return self.value_hops or (self.hops(self._answered[0][1]) if self._answered else 0)

    def _bound(self) -> int:
        """Nodes that are farther away are of no use."""
        k = self._config.k
        return SPACE if len(self._answered) < k else self._answered[k - 1][0]

    def _learn(self, contact: Contact, path: int, hops: int, source: NodeId | None) -> None:
        node = contact.node
        if node == self._me or node in self._known or not contact.addresses:
            return
        distance = id_of_node(node) ^ self.target
        if distance >= self._bound():
            return
        self._known[node] = _Known(contact, distance, hops, path, source)
        insort(self._paths[path], (distance, node))

    def _done(self, node: NodeId, state: int) -> _Known:
        known = self._known[node]
        self._under_way[known.path] -= known.state == ASKED
        known.state = state
        return known

    def _disbelieve(self, source: NodeId) -> None:
        for known in self._known.values():
            if known.source == source and known.state == NEW:
                known.state = FAILED

    def check_invariants(self) -> None:
        """Raise InvariantViolated if a path asks too many, or counts wrongly."""
        for path, under_way in enumerate(self._under_way):
            asked = [k for k in self._known.values() if k.path == path and k.state == ASKED]
            if len(asked) != under_way or under_way > self._config.alpha:
                raise InvariantViolated(f"path {path} asks {len(asked)} nodes, counts {under_way}")
        if self._answered != sorted(self._answered) or self.asked > self._config.asked_max:
            raise InvariantViolated(f"{self.asked} were asked, {len(self._answered)} answered")
        names = [node for path in self._paths for _, node in path]
        if len(names) != len(set(names)):
            raise InvariantViolated("two paths share a node")


# Lookups under way: asks whom a Lookup names, checks the values it is given, and ends it.
#
# A few run at once, the others wait for their turn. Each has a deadline, and ends then with what it
# has.


LOOKUP = "lookup"  # timers are (LOOKUP, number)
FAR = 5  # nodes from all over the table, at which the last path begins

Found = dict[NodeId | None, tuple[Judged, bytes]]
"""The newest value of each signer; of a content-addressed key, the one value."""


class Result(msgspec.Struct, frozen=True):
    """What a lookup came to."""

    nodes: Lookup
    found: Found


Done = Callable[[Result, int], list[Effect]]


class _Running(msgspec.Struct):
    number: int
    kind: str
    target: DhtId
    key: bytes | None
    seeds: Sequence[Contact]
    done: Done
    patient: bool = False
    lookup: Lookup | None = None
    found: Found = {}
    checks: int = 0
    begun_ns: int = 0
    ended: bool = False


class Lookups:
    """Runs lookups."""

    def __init__(
        self,
        table: RoutingTable,
        calls: Calls,
        checking: Checking,
        surveys: Surveys,
        config: DhtConfig,
    ) -> None:
        self._table = table
        self._surveys = surveys
        self._calls = calls
        self._checking = checking
        self._config = config
        self._number = 0
        self._running: dict[int, _Running] = {}
        self._waiting: deque[_Running] = deque()

    def start(
        self,
        kind: str,
        target: DhtId,
        done: Done,
        now_ns: int,
        *,
        key: bytes | None = None,
        seeds: Sequence[Contact] = (),
        patient: bool = False,
    ) -> list[Effect]:
        """Look for the nodes nearest to a place, and for a key's values if one is given. Begins at
        the routing table, and at the seeds. Who is patient waits for slow nodes, too, as does who
        finds nothing."""
        self._number += 1
        running = _Running(self._number, kind, target, key, seeds, done, patient)
        if len(self._waiting) >= self._config.waiting_max:
            nobody = Lookup(target, self._table.node, (), self._config)
            return done(Result(nobody, {}), now_ns)
        self._waiting.append(running)
        return self._begin(now_ns)

    def deadline(self, number: int, now_ns: int) -> list[Effect]:
        """A lookup has had its time."""
        running = self._running[number]
        return self._end(running, now_ns)

    def _begin(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        while self._waiting and len(self._running) < self._config.lookups_max:
            running = self._waiting.popleft()
            target = running.target
            known = self._table.closest(target, len(self._table), failing=True)
            near, rest = known[: self._config.k], known[self._config.k :]
            far = [*rest[:: -(-len(rest) // FAR) or 1], *running.seeds]
            self._table.looked(target, now_ns)
            running.lookup = Lookup(
                target, self._table.node, near, self._config, running.key, far=far
            )
            running.begun_ns = now_ns
            self._running[running.number] = running
            key = (LOOKUP, running.number)
            effects.append(SetTimer(key, self._config.lookup_timeout_ns))
            effects += self._advance(running, now_ns)
        return effects

    def _advance(self, running: _Running, now_ns: int) -> list[Effect]:
        lookup = running.lookup
        if running.ended or lookup is None:
            return []
        effects: list[Effect] = []
        target = wire_of_id(running.target)
        while chosen := lookup.next():
            for contact in chosen:
                if self._calls.is_slow(contact.node):
                    lookup.slow(contact.node)  # its path asks another one besides
                effects += self._ask(running, contact, target, now_ns)
        patient = running.patient or (running.key is not None and not running.found)
        if lookup.finished(patient=patient) and not (running.checks and not lookup.stopped):
            effects += self._end(running, now_ns)
        return effects

    def _ask(self, running: _Running, contact: Contact, target: bytes, now_ns: int) -> list[Effect]:
        then = partial(self._answered, running, contact)
        go_on = partial(self._go_on, running, contact)
        if running.key is None:
            return self._calls.ask(contact, FindNode, (target,), then, now_ns, go_on)
        fields = (target, running.key)
        return self._calls.ask(contact, FindValue, fields, then, now_ns, go_on)

    def _go_on(self, running: _Running, contact: Contact, now_ns: int) -> list[Effect]:
        if running.ended or running.lookup is None:
            return []
        running.lookup.slow(contact.node)
        return self._advance(running, now_ns)

    def _answered(
        self, running: _Running, contact: Contact, answer: Any, now_ns: int
    ) -> list[Effect]:
        lookup = running.lookup
        if running.ended or lookup is None:
            return []
        if answer is None:
            lookup.failed(contact.node)
            return self._advance(running, now_ns)
        lookup.answered(contact.node, answer.contacts)
        effects: list[Effect] = []
        if running.key is not None:
            if not answer.values:
                lookup.empty.append(contact)
            for value in answer.values:
                if not self._checking.busy:
                    running.checks += 1
                    then = partial(self._checked, running, contact.node, value)
                    effects += self._checking.check(running.key, value, then, now_ns)
        return [*effects, *self._advance(running, now_ns)]

    def _checked(
        self, running: _Running, peer: NodeId, value: bytes, judged: Judged | None, now_ns: int
    ) -> list[Effect]:
        running.checks -= 1
        lookup = running.lookup
        if judged is None:
            return [Rejected(peer, "bad-value"), *self._advance(running, now_ns)]
        if running.ended or lookup is None:
            return []
        known = running.found.get(judged.signer)
        if known is None or known[0].number < judged.number:
            running.found[judged.signer] = (judged, value)
        lookup.value_hops = lookup.value_hops or lookup.hops(peer)
        # There is one value whose hash is the key. Of records, another node may have a newer one.
        lookup.stopped = lookup.stopped or judged.signer is None
        return self._advance(running, now_ns)

    def _end(self, running: _Running, now_ns: int) -> list[Effect]:
        lookup = running.lookup
        assert lookup is not None
        running.ended = True
        del self._running[running.number]
        self._surveys.ended(lookup, now_ns)
        success = bool(lookup.distances()) if running.key is None else bool(running.found)
        duration_us = (now_ns - running.begun_ns) // US_NS
        record = LookupDone(
            running.kind, lookup.reach, lookup.asked, lookup.failures, duration_us, success
        )
        return [
            CancelTimer((LOOKUP, running.number)),
            record,
            *running.done(Result(lookup, running.found), now_ns),
            *self._begin(now_ns),
        ]

    def check_invariants(self) -> None:
        """Raise InvariantViolated if a lookup is not as it must be."""
        for running in self._running.values():
            assert running.lookup is not None
            running.lookup.check_invariants()
