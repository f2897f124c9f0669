"""The rules that every driver keeps, in one place.

A Host holds the machines of one node in one incarnation. A driver (the simulator, the asyncio
runtime) subclasses it, supplies the muscles (dial, transmit, timers, disk, threads), and tells it
what happened. The Host sees to the contract: inputs one at a time, effects in order after
`handle` returned, nothing re-entered, links claimed and shared, unclaimed links parked.

A new incarnation is a new Host; a driver drops whatever is still on its way to an old one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, ClassVar

import msgspec

from shoal.base.errors import UsageError
from shoal.base.ids import Contact, NodeId
from shoal.base.units import S_NS
from shoal.kernel.effects import (
    CancelTimer,
    CheckAccess,
    CloseLink,
    Effect,
    Load,
    Notify,
    OpenLink,
    PauseReading,
    ResumeReading,
    Send,
    SetTimer,
    Store,
    Verify,
)
from shoal.kernel.inputs import (
    AccessChanged,
    CommandIssued,
    Input,
    LinkOpened,
    MessageReceived,
    SendQueueHigh,
    SendQueueLow,
    Started,
    TimerFired,
)
from shoal.kernel.link_table import Claim, LinkTable, Told, Unsent
from shoal.kernel.machine import Machine
from shoal.kernel.records import RECORD_TYPES, LinkDown, LinkUp, Record, Rejected, Undeliverable
from shoal.kernel.wall_clock import ReadsWall

HOST = -1  # the timer slot of the host itself


class HostLimits(msgspec.Struct, frozen=True):
    """Bounds of one node, with their reasons."""

    parked_ns: int = 10 * S_NS
    """An unclaimed link waits this long for a claim: several instruction round trips."""

    parked_links_max: int = 256
    """Unclaimed links at once: whoever makes up keys has links, and each holds a socket. As many
    as may shake hands at once; of more, the one that has waited longest goes."""

    soft_links_max: int = 256
    """Soft claims (the DHT's contacts) may hold this many sockets open, as they see fit."""


@cache
def _routes(accepted: tuple[tuple[type, ...], ...]) -> dict[type, int]:
    """Which machine of a node takes which messages."""
    routes: dict[type, int] = {}
    for slot, kinds in enumerate(accepted):
        for kind in kinds:
            if kind in routes:
                raise UsageError(f"two machines of a node accept {kind.__name__}: pick one")
            routes[kind] = slot
    return routes


class Host(ABC):
    """Machines of one node, fed one input at a time."""

    __slots__ = (
        "_asking",
        "_busy",
        "_execute",
        "_inbox",
        "_pausing",
        "_routes",
        "_soft",
        "_walls",
        "limits",
        "links",
        "machines",
        "node",
        "watch",
    )

    def __init__(
        self, node: NodeId, machines: Sequence[Machine], limits: HostLimits | None = None
    ) -> None:
        self.node = node
        self.machines = tuple(machines)
        self.limits = limits or HostLimits()
        self.links = LinkTable(self.limits.soft_links_max)
        self._soft = self.links.soft
        self.watch: Callable[[Input, Sequence[Effect]], None] | None = None
        self._inbox: deque[tuple[int, Input]] = deque()
        self._busy = False
        self._asking: dict[int, None] = {}  # machines that hold verdicts
        self._pausing: dict[NodeId, dict[int, None]] = {}  # machines that have a link not read
        self._execute = self._effects
        self._routes = _routes(tuple([tuple(machine.accepts) for machine in self.machines]))
        self._walls = [machine.wall for machine in self.machines if isinstance(machine, ReadsWall)]

    _effects: ClassVar[dict[type[Effect], Callable[[Any, int, Any], None]]]

    def __init_subclass__(cls) -> None:
        """One table per driver, not per node: with thousands of nodes in a process, tables of
        their own would not stay in the processor's cache. Routes are shared for the same reason."""
        cls._effects = {
            OpenLink: cls._open_link,
            CloseLink: cls._close_link,
            Send: cls._send,
            SetTimer: cls._set_timer,
            CancelTimer: lambda self, slot, effect: self.cancel_timer(slot, effect.key),
            Store: cls.store,
            Load: cls.load,
            Verify: cls.verify,
            CheckAccess: cls._check_access,
            Notify: cls.notify,
            PauseReading: cls._pause,
            ResumeReading: cls._resume,
            **dict.fromkeys(RECORD_TYPES, cls.record),
        }

    # What a driver tells

    def start(self, addresses: tuple[str, ...] = ()) -> None:
        """Begin this incarnation: every machine starts before any hears of another's effects."""
        self._feed_all([(slot, Started(addresses)) for slot in range(len(self.machines))])

    def command(self, machine: Machine, command: Any, token: Hashable = None) -> None:
        """The local application wants something of one machine."""
        self.feed(self.machines.index(machine), CommandIssued(command, token))

    def received(self, peer: NodeId, message: Any) -> None:
        """A decoded message came in over the link to peer."""
        slot = self._routes.get(type(message))
        if slot is None:
            self.rejected(peer, "no-such-role")
            return
        self.feed(slot, MessageReceived(peer, message))

    def rejected(self, peer: NodeId, reason: str) -> None:
        """Bytes came in that are no message: counted, nothing else suffers."""
        self.record(HOST, Rejected(peer, reason))

    def link_opened(self, peer: NodeId) -> None:
        """A connection is up and its peer has proven who it is."""
        self.record(HOST, LinkUp(peer))
        told = self.links.opened(peer)
        if not told:
            self._park(peer)
        self._feed_all(told)

    def link_closed(self, peer: NodeId, reason: str, unsent: Unsent = ()) -> None:
        """A connection that was up is gone; `unsent` is what the driver still held for it and
        gives back to the machines that sent it."""
        self._pausing.pop(peer, None)
        self.record(HOST, LinkDown(peer, reason))
        self._feed_all(self.links.closed(peer, reason, unsent))

    def dial_failed(self, peer: NodeId, reason: str) -> None:
        """A dial gave up."""
        self._feed_all(self.links.failed(peer, reason))

    def queue_changed(self, peer: NodeId, *, high: bool) -> None:
        """What waits to be sent to a peer passed a mark."""
        event = SendQueueHigh(peer) if high else SendQueueLow(peer)
        for slot in self.links.claimants(peer):
            self.feed(slot, event)

    def wall_stepped(self, offset_ns: int, now_ns: int) -> None:
        """From now on the time of day is so far ahead of `now_ns`."""
        for wall in self._walls:
            wall.set(offset_ns, now_ns)

    def access_changed(self, event: AccessChanged) -> None:
        """What somebody may do is different, perhaps: told to those who have asked."""
        self._feed_all([(slot, event) for slot in self._asking])

    def drop_link(self, peer: NodeId, reason: str) -> None:
        """End a link that nobody wants, or that has lost its claims."""
        self.hang_up(peer)
        self.link_closed(peer, reason)

    def no_link(self, peer: NodeId, message: Any) -> None:
        """A message has no way out: it is for this node itself, or for nobody."""
        if peer == self.node:
            self.received(peer, message)
        else:
            self.record(HOST, Undeliverable(peer))

    def timer_fired(self, slot: int, key: Hashable) -> None:
        """A timer ran out that was neither cancelled nor set again."""
        if slot != HOST:
            self.feed(slot, TimerFired(key))
            return
        peer: Any = key
        if self.links.is_up(peer) and not self.links.is_claimed(peer):
            self.drop_link(peer, "unclaimed")

    def feed(self, slot: int, event: Input) -> None:
        """Hand one input to one machine; inputs that its effects cause wait their turn."""
        if self._busy or self._inbox:
            self._feed_all([(slot, event)])
            return
        self._busy = True
        try:
            # As _step, which is called in all other cases: this one comes four times a delivery.
            effects = self.machines[slot].handle(event, self.now_ns())
            execute = self._execute
            for effect in effects:
                execute[type(effect)](self, slot, effect)
            if self.watch is not None:
                self.watch(event, effects)
            if self._inbox:
                self._take_turns()
        finally:
            self._busy = False

    # Rules

    def _step(self, slot: int, event: Input) -> None:
        effects = self.machines[slot].handle(event, self.now_ns())
        execute = self._execute
        for effect in effects:
            execute[type(effect)](self, slot, effect)
        if self.watch is not None:
            self.watch(event, effects)

    def _feed_all(self, told: Told) -> None:
        self._inbox.extend(told)
        if not self._busy:
            self._busy = True
            try:
                self._take_turns()
            finally:
                self._busy = False

    def _take_turns(self) -> None:
        inbox = self._inbox
        while inbox:
            slot, event = inbox.popleft()
            # The claim may have been given back while its LinkOpened waited here.
            if type(event) is not LinkOpened or self._is_news(slot, event):
                self._step(slot, event)

    def _is_news(self, slot: int, event: LinkOpened) -> bool:
        peer = event.peer
        return peer == self.node or self.links.tell(peer, Claim(slot, event.purpose))

    def _open_link(self, slot: int, effect: OpenLink) -> None:
        peer = effect.contact.node
        if peer == self.node:
            # One process may be node and tracker at once: its link to itself needs no wire.
            self.feed(slot, LinkOpened(peer, effect.purpose))
            return
        dial, told = self.links.claim(peer, Claim(slot, effect.purpose), effect.soft)
        self.cancel_timer(HOST, peer)
        self._feed_all(told)
        if dial:
            self.dial(effect.contact)
        self._evict()

    def _close_link(self, slot: int, effect: CloseLink) -> None:
        if self.links.release(effect.peer, Claim(slot, effect.purpose)):
            self._park(effect.peer)
        self._evict()

    def _park(self, peer: NodeId) -> None:
        self.set_timer(HOST, peer, self.limits.parked_ns)
        if len(self.links.parked) > self.limits.parked_links_max:
            oldest = next(iter(self.links.parked))
            self.cancel_timer(HOST, oldest)
            self.drop_link(oldest, "crowded-out")

    def _evict(self) -> None:
        for peer in self.links.excess_soft():
            told = self.links.evict(peer)
            if self.links.is_up(peer):
                self.drop_link(peer, "evicted")
            self._feed_all(told)

    def _send(self, slot: int, effect: Send) -> None:
        if self._soft:
            self.links.use(effect.peers)
        self.send(slot, effect)

    def _pause(self, slot: int, effect: PauseReading) -> None:
        peer = effect.peer
        if not self.links.is_up(peer):
            return  # the next link to it begins anew
        pausing = self._pausing.setdefault(peer, {})
        pausing[slot] = None
        if len(pausing) == 1:
            self.pause_reading(peer, paused=True)

    def _resume(self, slot: int, effect: ResumeReading) -> None:
        """All machines share the link: it is read again when none of them has it paused."""
        peer = effect.peer
        pausing = self._pausing.get(peer)
        if pausing is None or slot not in pausing:
            return
        del pausing[slot]
        if not pausing:
            del self._pausing[peer]
            self.pause_reading(peer, paused=False)

    def _check_access(self, slot: int, effect: CheckAccess) -> None:
        self._asking[slot] = None
        self.check_access(slot, effect)

    def _set_timer(self, slot: int, effect: SetTimer) -> None:
        if effect.delay_ns < 0:
            raise UsageError(f"timer {effect.key!r} lies {-effect.delay_ns} ns in the past")
        self.set_timer(slot, effect.key, effect.delay_ns)

    # Muscles

    @abstractmethod
    def now_ns(self) -> int:
        """Monotonic time. It begins near the Unix time; the driver says by wall_stepped, before
        the next input, when the two differ."""

    @abstractmethod
    def dial(self, contact: Contact) -> None:
        """Connect; report link_opened or dial_failed."""

    @abstractmethod
    def hang_up(self, peer: NodeId) -> None:
        """Flush, then close; the remote end learns it, this end knows."""

    @abstractmethod
    def send(self, slot: int, effect: Send) -> None:
        """Put a message on the links of its peers; call no_link for a peer without one."""

    @abstractmethod
    def set_timer(self, slot: int, key: Hashable, delay_ns: int) -> None:
        """Call timer_fired once after delay_ns, unless cancelled or set again."""

    @abstractmethod
    def cancel_timer(self, slot: int, key: Hashable) -> None:
        """Forget a timer, if there is one."""

    @abstractmethod
    def store(self, slot: int, effect: Store) -> None:
        """Feed Stored when the value is durable."""

    @abstractmethod
    def load(self, slot: int, effect: Load) -> None:
        """Feed Loaded."""

    @abstractmethod
    def verify(self, slot: int, effect: Verify) -> None:
        """Feed Verified, in order per machine."""

    @abstractmethod
    def check_access(self, slot: int, effect: CheckAccess) -> None:
        """Feed AccessChecked."""

    @abstractmethod
    def notify(self, slot: int, effect: Notify) -> None:
        """Hand an event to the local application."""

    @abstractmethod
    def pause_reading(self, peer: NodeId, *, paused: bool) -> None:
        """Stop or resume taking messages from a peer."""

    @abstractmethod
    def record(self, slot: int, record: Record) -> None:
        """Keep a record."""
