"""The fake of the Host port: no world, a test says what happens and reads what was asked for.

What happens is told by the methods of Host (link_opened, dial_failed, received ...) and, for
time and slow work, by those below.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

from shoal.base.ids import Contact, NodeId
from shoal.kernel.access import EverythingAllowed
from shoal.kernel.effects import CheckAccess, Load, Notify, Send, Store, Verify
from shoal.kernel.host import Host, HostLimits
from shoal.kernel.inputs import AccessChecked, Loaded, Stored, Verified
from shoal.kernel.machine import Machine
from shoal.kernel.records import Record


class FakeHost(Host):
    """A Host that only remembers."""

    def __init__(
        self, node: NodeId, machines: Sequence[Machine], limits: HostLimits | None = None
    ) -> None:
        super().__init__(node, machines, limits)
        self.time_ns = 0
        self.dialled: list[Contact] = []
        self.hung_up: list[NodeId] = []
        self.sent: list[tuple[NodeId, Any]] = []
        self.notified: list[Any] = []
        self.records: list[Record] = []
        self.paused: dict[NodeId, None] = {}
        self.timers: dict[tuple[int, Hashable], int] = {}
        """When each one fires, in the order in which they were set."""
        self.disk: dict[tuple[int, bytes], bytes | None] = {}
        self.access = EverythingAllowed()
        self.slow_work: deque[tuple[int, Store | Load | Verify | CheckAccess]] = deque()
        """What machines wait for, oldest first."""

    # What a test lets happen

    def advance(self, duration_ns: int) -> None:
        """Let time pass; timers fire when they are due, of two at once the one set first."""
        end_ns = self.time_ns + duration_ns
        while True:
            due = [(due_ns, timer) for timer, due_ns in self.timers.items() if due_ns <= end_ns]
            if not due:
                break
            self.time_ns, (slot, key) = min(due, key=lambda entry: entry[0])
            del self.timers[slot, key]
            self.timer_fired(slot, key)
        self.time_ns = end_ns

    def finish_one(self, *, valid: bool = True) -> None:
        """Finish the oldest slow work."""
        slot, work = self.slow_work.popleft()
        if isinstance(work, Verify):
            self.feed(slot, Verified(work.token, valid))
        elif isinstance(work, Store):
            self.disk[slot, work.key] = work.value
            self.feed(slot, Stored(work.token))
        elif isinstance(work, CheckAccess):
            stream, who = work.stream, work.who
            self.access.check(
                stream, who, lambda verdict: self.feed(slot, AccessChecked(stream, who, verdict))
            )
        else:
            self.feed(slot, Loaded(work.token, self.disk.get((slot, work.key))))

    def finish_all(self, *, valid: bool = True) -> None:
        """Finish all slow work, also what comes up meanwhile."""
        while self.slow_work:
            self.finish_one(valid=valid)

    # Muscles

    def now_ns(self) -> int:
        return self.time_ns

    def dial(self, contact: Contact) -> None:
        self.dialled.append(contact)

    def hang_up(self, peer: NodeId) -> None:
        self.hung_up.append(peer)

    def send(self, slot: int, effect: Send) -> None:
        for peer in effect.peers:
            if self.links.is_up(peer):
                self.sent.append((peer, effect.message))
            else:
                self.no_link(peer, effect.message)

    def set_timer(self, slot: int, key: Hashable, delay_ns: int) -> None:
        self.timers.pop((slot, key), None)
        self.timers[slot, key] = self.time_ns + delay_ns

    def cancel_timer(self, slot: int, key: Hashable) -> None:
        self.timers.pop((slot, key), None)

    def store(self, slot: int, effect: Store) -> None:
        self.slow_work.append((slot, effect))

    def load(self, slot: int, effect: Load) -> None:
        self.slow_work.append((slot, effect))

    def verify(self, slot: int, effect: Verify) -> None:
        self.slow_work.append((slot, effect))

    def check_access(self, slot: int, effect: CheckAccess) -> None:
        self.slow_work.append((slot, effect))

    def notify(self, slot: int, effect: Notify) -> None:
        self.notified.append(effect.event)

    def pause_reading(self, peer: NodeId, *, paused: bool) -> None:
        if paused:
            self.paused[peer] = None
        else:
            self.paused.pop(peer, None)

    def record(self, slot: int, record: Record) -> None:
        self.records.append(record)
