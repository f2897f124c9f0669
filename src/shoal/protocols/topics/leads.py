"""Head records of others, for whoever waits until an event that they published for it is safe.

An event in the DHT is found by those who do not know its CID only if a head record leads to it. Our
own record we put at once; a publisher that we asked puts its own some seconds after the event. So
it is looked for until it leads there, and put again from here, to learn how many nodes hold it.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from shoal.identity.topics.canonical import encode_descriptor
from shoal.identity.topics.cid import Cid
from shoal.kernel.effects import Effect, Notify, SetTimer
from shoal.protocols.topics.commands import EventStored
from shoal.protocols.topics.head_records import heads_of
from shoal.protocols.topics.held import HeldTopics
from shoal.protocols.topics.log import Entry
from shoal.protocols.topics.state import TopicState

LEAD = "lead"  # the timer of the next look


class _Waiter(msgspec.Struct):
    topic: Cid
    entry: Entry
    replicas: int
    token: Hashable
    until_ns: int


class Leads:
    """Who waits for records of others."""

    def __init__(self, held: HeldTopics) -> None:
        self._held = held
        self._waiters: list[_Waiter] = []

    def wait(
        self, state: TopicState, entry: Entry, replicas: int, token: Hashable, now_ns: int
    ) -> list[Effect]:
        """Tell when so many nodes hold an event, and a record that leads to it."""
        first = not self._waits(state)
        until_ns = now_ns + self._held.config.request_patience_ns
        self._waiters.append(_Waiter(state.id, entry, replicas, token, until_ns))
        effects = self.found(state)
        return [*effects, *self.look(state, now_ns)] if first else effects

    def look(self, state: TopicState, now_ns: int) -> list[Effect]:
        """Ask for records as long as somebody waits for one, or for its replicas: it may be
        replaced meanwhile, and nobody takes an old one."""
        effects: list[Effect] = []
        for waiter in [one for one in self._waiters if now_ns >= one.until_ns]:
            self._waiters.remove(waiter)
            effects.append(Notify(EventStored(waiter.entry.id, 0, waiter.token)))
        if not self._waits(state):
            return effects
        timer = SetTimer((LEAD, state.id), self._held.config.sync_retry_ns)
        return [*effects, timer, *self._held.watch(state, now_ns)]

    def found(self, state: TopicState) -> list[Effect]:
        """Records were looked for; they may be newer."""
        storing = self._held.storing
        effects: list[Effect] = []
        if state.may_publish:
            return effects  # our own leads there
        for (key, _), record in state.records.items():
            if storing.awaits(Cid(key)):
                effects += storing.replace(Cid(key), record)
            heads = heads_of(record)[2]
            ours = [one for one in self._waiters if one.topic == state.id]
            led = [one for one in ours if state.log.leads_to(heads, one.entry.id)]
            for waiter in led:
                self._waiters.remove(waiter)
                id = waiter.entry.id
                blocks = {id: encode_descriptor(waiter.entry.event), Cid(key): record}
                effects += storing.wait(id, blocks, waiter.replicas, waiter.token)
        return effects

    def _waits(self, state: TopicState) -> bool:
        """Whether somebody waits for a record, or for its replicas."""
        if any(one.topic == state.id for one in self._waiters):
            return True
        keys = [key for key, _ in state.records]
        return not state.may_publish and any(self._held.storing.awaits(Cid(key)) for key in keys)
