"""The muscles of one simulated node in one incarnation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from shoal.base.ids import NodeId
from shoal.kernel.contact import Contact
from shoal.kernel.disk import DiskRequest
from shoal.kernel.effects import CheckAccess, Load, Notify, Send, Store, Verify
from shoal.kernel.host import Host, HostLimits
from shoal.kernel.inputs import AccessChecked, Input, Verified
from shoal.kernel.machine import Machine
from shoal.kernel.records import Record
from shoal.kernel.wall import ReadsWall
from shoal.sim.network import LinkEnd, close_end
from shoal.sim.reading import Unread
from shoal.sim.scheduler import Action
from shoal.sim.trace import BATCH_ROWS

if TYPE_CHECKING:
    from shoal.sim.simulation import SimNode, Simulation


class SimHost(Host):
    """A Host whose effects happen under virtual time."""

    # Every event is at another node: what it touches there should lie together.
    __slots__ = (
        "_disk_busy",
        "_disk_queue",
        "_free_ns",
        "_in_service",
        "_scheduler",
        "_timer_token",
        "_timers",
        "_trace",
        "alive",
        "clock",
        "ends",
        "index",
        "listeners",
        "serving",
        "sim_node",
        "simulation",
    )

    def __init__(
        self,
        simulation: Simulation,
        sim_node: SimNode,
        machines: Sequence[Machine],
        limits: HostLimits,
    ) -> None:
        super().__init__(sim_node.id, machines, limits)
        self.simulation = simulation
        self.sim_node = sim_node
        self.index = sim_node.index
        self.clock = sim_node.clock
        self.listeners = sim_node.listeners
        self.alive = True
        self.serving = False
        """Messages queue behind the node's one core."""
        self.ends: dict[NodeId, LinkEnd] = {}
        self._scheduler = simulation.scheduler
        self._trace = simulation.trace
        self._timers: dict[tuple[int, Hashable], int] = {}
        self._timer_token = 0
        self._free_ns = 0  # when the core has served what it has
        self._in_service = 0
        self._disk_queue: list[DiskRequest] = []
        self._disk_busy = False
        if isinstance(sim_node.disk, ReadsWall):
            self._walls.append(sim_node.disk.wall)
        for wall in self._walls:
            wall.offset_ns = sim_node.wall_offset_ns

    # Time

    def now_ns(self) -> int:
        clock = self.clock
        return self._scheduler.now_ns if clock is None else clock.read(self._scheduler.now_ns)

    def set_timer(self, slot: int, key: Hashable, delay_ns: int) -> None:
        clock = self.clock
        if clock is not None:
            delay_ns = clock.true_ns(delay_ns)
        self._timer_token += 1
        self._timers[slot, key] = self._timer_token
        self._scheduler.after(delay_ns, self._fire, (slot, key, self._timer_token))

    def cancel_timer(self, slot: int, key: Hashable) -> None:
        self._timers.pop((slot, key), None)

    def _fire(self, timer: tuple[int, Hashable, int]) -> None:
        slot, key, token = timer
        if self.alive and self._timers.get((slot, key)) == token:
            del self._timers[slot, key]
            self.timer_fired(slot, key)

    # Links

    def dial(self, contact: Contact) -> None:
        self.simulation.dial(self, contact.node)

    def hang_up(self, peer: NodeId) -> None:
        end = self.ends.get(peer)
        if end is not None:
            close_end(self.simulation, end, "closed")

    def send(self, slot: int, effect: Send) -> None:
        simulation = self.simulation
        message = effect.message
        if simulation.slow_path:
            simulation.transmit(self, slot, effect)
            return
        ends, after = self.ends, self._scheduler.after
        for peer in effect.peers:
            end = ends.get(peer)
            if end is None:
                self.no_link(peer, message)
            else:
                after(end.delay_ns, end.give, message)

    def serve(self, end: LinkEnd, message: Any) -> None:
        """Queue behind the node's one core."""
        self._free_ns = max(self._free_ns, self._scheduler.now_ns) + self.sim_node.service_ns
        self._in_service += 1
        self._scheduler.at(self._free_ns, self._served, (end, message))

    def after_service(self, action: Action, argument: Any) -> None:
        """Let something happen once the core has served what it has."""
        self._scheduler.at(self._free_ns, action, argument)

    def service_changed(self) -> None:
        """Messages take another time from now on; those that queue are served first."""
        self.serving = self.sim_node.service_ns > 0 or self._in_service > 0

    def _served(self, work: tuple[LinkEnd, Any]) -> None:
        end, message = work
        self._in_service -= 1
        self.service_changed()
        if self.alive and end.open:
            self.received(end.peer, message)

    def pause_reading(self, peer: NodeId, *, paused: bool) -> None:
        end = self.ends.get(peer)
        if end is None:
            return
        if not paused:
            if end.unread is not None:
                end.unread.resume()
        elif end.unread is None:
            end.unread = Unread(end)
        else:
            end.unread.paused = True

    # Slow work

    def verify(self, slot: int, effect: Verify) -> None:
        valid = self.simulation.is_valid(effect)
        result = (slot, Verified(effect.token, valid))
        self._scheduler.after(self.simulation.verify_ns, self._result, result)

    def check_access(self, slot: int, effect: CheckAccess) -> None:
        self._scheduler.after(self.simulation.access.answer_ns, self._ask_access, (slot, effect))

    def _ask_access(self, question: tuple[int, CheckAccess]) -> None:
        slot, (stream, who) = question[0], (question[1].stream, question[1].who)
        self.simulation.access.check(
            stream, who, lambda verdict: self._result((slot, AccessChecked(stream, who, verdict)))
        )

    def store(self, slot: int, effect: Store) -> None:
        self._ask_disk((slot, effect))

    def load(self, slot: int, effect: Load) -> None:
        self._ask_disk((slot, effect))

    def _ask_disk(self, request: DiskRequest) -> None:
        """What is asked for while a batch is under way makes the next one, as at the runtime."""
        self._disk_queue.append(request)
        if not self._disk_busy:
            self._begin_batch()

    def _begin_batch(self) -> None:
        batch, self._disk_queue = self._disk_queue, []
        self._disk_busy = bool(batch)
        if batch:
            self._scheduler.after(self.sim_node.disk_ns, self._end_batch, batch)

    def _end_batch(self, batch: list[DiskRequest]) -> None:
        if not self.alive:
            return  # it was under way when the node died
        results = self.sim_node.disk.work(batch, self.now_ns())
        self._begin_batch()
        for (slot, _), result in zip(batch, results, strict=True):
            if self.alive:
                self.feed(slot, result)

    def _result(self, result: tuple[int, Input]) -> None:
        if self.alive:
            slot, event = result
            self.feed(slot, event)

    # Observers

    def notify(self, slot: int, effect: Notify) -> None:
        for listener in self.listeners:
            listener(effect.event)

    def record(self, slot: int, record: Record) -> None:
        rows = self._trace.batch  # as its add, which five calls a delivery would show
        rows.append((self._scheduler.now_ns, self.node, record))
        if len(rows) >= BATCH_ROWS:
            self._trace.flush()
