"""The muscles of one simulated node in one incarnation."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from shoal.base.errors import UsageError
from shoal.base.ids import Contact, NodeId, short_node_id
from shoal.base.units import US_NS
from shoal.kernel.disk import Disk, DiskRequest, MemoryDisk
from shoal.kernel.effects import CheckAccess, Effect, Load, Notify, Send, Store, Verify
from shoal.kernel.host import Host, HostLimits
from shoal.kernel.inputs import AccessChecked, Input, Verified
from shoal.kernel.machine import Machine
from shoal.kernel.records import Record
from shoal.kernel.wall_clock import ReadsWall
from shoal.sim.links import LinkEnd, Unread, close_end
from shoal.sim.scheduler import Action
from shoal.sim.trace import BATCH_ROWS

if TYPE_CHECKING:
    from shoal.sim.simulation import Simulation

DISK_NS = 100 * US_NS  # one small durable write on a solid-state disk

CRASH_DETECT_NS = 0  # a dead process: its kernel closes the sockets at once

MakeMachines = Callable[["SimNode"], Sequence[Machine]]


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


# A node's monotonic clock, when it is not the simulation's own.


PPM = 1_000_000


class DriftingClock:
    """Goes on from what it showed, fast or slow by `ppm`."""

    def __init__(self, since_ns: int, shown_ns: int, ppm: float) -> None:
        self._since_ns = since_ns
        self._shown_ns = shown_ns
        self.ppm = ppm

    def read(self, true_ns: int) -> int:
        """What it shows."""
        elapsed_ns = true_ns - self._since_ns
        return self._shown_ns + elapsed_ns + round(elapsed_ns * self.ppm / PPM)

    def true_ns(self, delay_ns: int) -> int:
        """How long a delay measured by this clock really takes."""
        return round(delay_ns / (1 + self.ppm / PPM))


class SimNode:
    """A node that outlives its incarnations: identity, place, disk, clocks."""

    def __init__(
        self, simulation: Simulation, id: NodeId, index: int, make: MakeMachines, role: str
    ) -> None:
        self.id = id
        self.role = role
        self.index = index
        self.incarnation = 0
        self.disk: Disk = MemoryDisk()
        """Outlives crashes. Another one, a store in a folder say, may take its place before the
        first start; whoever made it closes it."""
        self.disk_ns = DISK_NS
        self.clock: DriftingClock | None = None
        """What its monotonic clock shows; None: the simulation's time."""
        self.wall_offset_ns = 0
        """By how much its time of day is ahead of that."""
        self.service_ns = 0
        self.host: SimHost | None = None
        self.listeners: list[Callable[[Any], None]] = []
        self._simulation = simulation
        self._make = make

    @property
    def region(self) -> str:
        return self._simulation.delays.region(self.index)

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The machines of the running incarnation."""
        return self._running().machines

    def start(self) -> None:
        """Begin an incarnation."""
        if self.host is not None:
            raise UsageError(f"node {short_node_id(self.id)} runs already")
        self.incarnation += 1
        simulation = self._simulation
        if self.wall_offset_ns:  # a process takes the time at its start from the system clock
            now_ns = simulation.scheduler.now_ns
            shown_ns = self._shown_ns() + self.wall_offset_ns
            ppm = 0.0 if self.clock is None else self.clock.ppm
            self.clock, self.wall_offset_ns = DriftingClock(now_ns, shown_ns, ppm), 0
        self.host = SimHost(simulation, self, self._make(self), simulation.limits)
        self.host.service_changed()
        if simulation.checkers:
            self.host.watch = self._watch
        self.host.start()

    def crash(self, detect_ns: int = CRASH_DETECT_NS, *, lose_disk: bool = False) -> None:
        """End the incarnation without a word; peers notice after detect_ns."""
        host = self._running()
        host.alive = False
        self.host = None
        if lose_disk:
            self.disk.clear()
        for end in list(host.ends.values()):
            close_end(self._simulation, end, "crashed", detect_ns)

    def command(self, slot: int, command: Any, token: Any = None) -> None:
        """The application on this node wants something of a machine."""
        host = self._running()
        host.command(host.machines[slot], command, token)

    def set_clock(self, offset_ns: int, ppm: float) -> None:
        """From now on this node's time of day is off by so much, and both its clocks drift."""
        now_ns, shown_ns = self._simulation.scheduler.now_ns, self._shown_ns()
        self.clock = DriftingClock(now_ns, shown_ns, ppm)
        if self.host is not None:
            self.host.clock = self.clock
        self.step_wall(now_ns + offset_ns - shown_ns - self.wall_offset_ns)

    def step_wall(self, step_ns: int) -> None:
        """Set this node's system clock, ahead or back: its monotonic clock does not notice."""
        self.wall_offset_ns += step_ns
        if self.host is not None:
            self.host.wall_stepped(self.wall_offset_ns, self.host.now_ns())

    def _shown_ns(self) -> int:
        now_ns = self._simulation.scheduler.now_ns
        return now_ns if self.clock is None else self.clock.read(now_ns)

    def _running(self) -> SimHost:
        if self.host is None:
            raise UsageError(f"node {short_node_id(self.id)} does not run: start it")
        return self.host

    def _watch(self, event: Input, effects: Sequence[Effect]) -> None:
        for checker in self._simulation.checkers:
            checker.step(self, event, effects)
