"""Lookups under way: asks whom a Lookup names, checks the values it is given, and ends it.

A few run at once, the others wait for their turn. Each has a deadline, and ends then with what it
has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from shoal.base.ids import NodeId
from shoal.base.units import US_NS
from shoal.kernel.contact import Contact
from shoal.kernel.effects import CancelTimer, Effect, SetTimer
from shoal.kernel.records import LookupDone, Rejected
from shoal.protocols.dht.calls import Calls
from shoal.protocols.dht.checking import Checking, Judged
from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.ids import DhtId, wire_of_id
from shoal.protocols.dht.lookup import Lookup
from shoal.protocols.dht.messages import FindNode, FindValue
from shoal.protocols.dht.surveys import Surveys
from shoal.protocols.dht.table import RoutingTable

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
