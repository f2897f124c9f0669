"""Faults, each its own small class, combinable in a scenario.

[[faults]]
kind = "loss"
probability = 0.01
start_s = 10
end_s = 20
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta

from shoal.base.errors import ConfigError
from shoal.base.ids import NodeId
from shoal.base.settings_errors import explain, instead_of
from shoal.base.units import KIB, MS_NS, S_NS, ns_of_ms, ns_of_seconds
from shoal.kernel.records import FaultInjected
from shoal.sim.host import SimHost, SimNode
from shoal.sim.links import Frame, LinkEnd, Shaper
from shoal.sim.simulation import Simulation

Probability = Annotated[float, Meta(ge=0, le=1)]
LARGE = 1e9  # beyond any use; keeps out inf, which TOML can write
NotNegative = Annotated[float, Meta(ge=0, le=LARGE)]
Positive = Annotated[float, Meta(gt=0, le=LARGE)]


class Fault(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True
):
    """Something that goes wrong, from start_s to end_s (none: to the end of the run)."""

    start_s: Annotated[float, Meta(ge=0)] = 0.0
    end_s: float | None = None

    def __post_init__(self) -> None:
        if self.end_s is not None and self.end_s <= self.start_s:
            raise ConfigError(
                f"end_s = {self.end_s:g}: end_s must come after start_s = {self.start_s:g}"
            )

    def install(self, simulation: Simulation) -> None:
        """Schedule this fault."""
        raise TypeError(f"{type(self).__name__} says nothing of what it does")

    def announce(self, simulation: Simulation, what: str) -> None:
        """Leave a record: a trace without its faults explains nothing."""
        name = str(self.__struct_config__.tag)
        node = next(iter(simulation.nodes))
        simulation.trace.add(simulation.scheduler.now_ns, node, FaultInjected(name, what))


class LinkFault(Fault, frozen=True, kw_only=True):
    """A fault of every link, as long as it lasts."""

    def shaper(self, simulation: Simulation) -> Shaper:
        """What becomes of messages under this fault."""
        raise TypeError(f"{type(self).__name__} does not say what becomes of messages")

    def install(self, simulation: Simulation) -> None:
        shaper = self.shaper(simulation)

        def begin() -> None:
            simulation.add_shaper(shaper)
            self.announce(simulation, "begins")

        def end() -> None:
            simulation.remove_shaper(shaper)
            self.announce(simulation, "ends")

        simulation.at_s(self.start_s, begin)
        if self.end_s is not None:
            simulation.at_s(self.end_s, end)


def pick(nodes: Sequence[SimNode], fraction: float, rng: Random) -> list[SimNode]:
    """A random part of some nodes, in their order; at least one, if it is not none of them."""
    count = max(round(len(nodes) * fraction), min(len(nodes), math.ceil(fraction)))
    return sorted(rng.sample(list(nodes), count), key=lambda node: node.index)


# Messages that vanish.


class Loss(LinkFault, frozen=True, kw_only=True, tag="loss"):
    """Loses each message with this probability: harsher than TCP, which would only delay it."""

    probability: Probability

    def shaper(self, simulation: Simulation) -> Shaper:
        return _Loss(self.probability, simulation.fault_random("loss"))


class _Loss(Shaper):
    def __init__(self, probability: float, rng: Random) -> None:
        self._probability = probability
        self._rng = rng

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        return [t for t in arrivals_ns if self._rng.random() >= self._probability]


# Delay that varies.


class Jitter(LinkFault, frozen=True, kw_only=True, tag="jitter"):
    """Adds a delay to each message, exponential with this mean; order is kept."""

    mean_ms: NotNegative

    def shaper(self, simulation: Simulation) -> Shaper:
        return _Jitter(self.mean_ms * MS_NS, simulation.fault_random("jitter"))


class _Jitter(Shaper):
    def __init__(self, mean_ns: float, rng: Random) -> None:
        self._mean_ns = mean_ns
        self._rng = rng

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        draw = self._rng.random
        # 1 - u is in (0, 1]: the logarithm exists.
        return [t + round(self._mean_ns * -math.log(1.0 - draw())) for t in arrivals_ns]


# Messages that arrive twice.


class Duplication(LinkFault, frozen=True, kw_only=True, tag="duplication"):
    """Repeats each message with this probability, so much later."""

    probability: Probability
    later_ms: NotNegative = 10.0

    def shaper(self, simulation: Simulation) -> Shaper:
        later_ns = ns_of_ms(self.later_ms)
        return _Duplication(self.probability, later_ns, simulation.fault_random("duplication"))


class _Duplication(Shaper):
    keeps_order = False

    def __init__(self, probability: float, later_ns: int, rng: Random) -> None:
        self._probability = probability
        self._later_ns = later_ns
        self._rng = rng

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        again = [t + self._later_ns for t in arrivals_ns if self._rng.random() < self._probability]
        return arrivals_ns + again


# Messages that overtake each other.


class Reordering(LinkFault, frozen=True, kw_only=True, tag="reordering"):
    """Holds each message back with this probability, so that later ones pass it."""

    probability: Probability
    held_ms: Positive = 50.0

    def shaper(self, simulation: Simulation) -> Shaper:
        held_ns = ns_of_ms(self.held_ms)
        return _Reordering(self.probability, held_ns, simulation.fault_random("reordering"))


class _Reordering(Shaper):
    keeps_order = False

    def __init__(self, probability: float, held_ns: int, rng: Random) -> None:
        self._probability = probability
        self._held_ns = held_ns
        self._rng = rng

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        return [
            t + (self._held_ns if self._rng.random() < self._probability else 0)
            for t in arrivals_ns
        ]


# Uplinks that are narrow.


OVERHEAD_BYTES = 60  # IP, TCP and WebSocket headers of a small message


class Bandwidth(LinkFault, frozen=True, kw_only=True, tag="bandwidth"):
    """Every node sends through one uplink of this rate, shared by its links.

    What waits for one peer is bounded: above half the bound machines hear SendQueueHigh, below a
    quarter SendQueueLow, and at the bound the link is given up, as a real node would do: what
    waits comes back with LinkFailed. (The uplink takes its time over those bytes all the same.)
    """

    mbit_s: Positive
    queue_kib: Positive = 1024.0

    def shaper(self, simulation: Simulation) -> Shaper:
        return _Uplinks(simulation, self.mbit_s * 1e6 / 8, round(self.queue_kib * KIB))


class _Uplinks(Shaper):
    def __init__(self, simulation: Simulation, bytes_s: float, queue_bytes: int) -> None:
        self._simulation = simulation
        self._bytes_s = bytes_s
        self._queue_bytes = queue_bytes
        self._free_ns: dict[SimHost, int] = {}
        self._queued: dict[LinkEnd, int] = {}
        self._high: dict[LinkEnd, None] = {}

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        scheduler = self._simulation.scheduler
        size = frame.size_bytes + OVERHEAD_BYTES
        queued = self._queued.get(end, 0) + size
        end.waiting[frame] = None
        if queued > self._queue_bytes:
            end.abandon("too-slow")
            return []
        start_ns = max(scheduler.now_ns, self._free_ns.get(end.host, 0))
        sent_ns = start_ns + round(size / self._bytes_s * S_NS)
        self._free_ns[end.host] = sent_ns
        self._queued[end] = queued
        if queued > self._queue_bytes // 2 and end not in self._high:
            self._high[end] = None
            end.mark_queue(high=True)
        scheduler.at(sent_ns, self._sent, (end, frame))
        waited_ns = sent_ns - scheduler.now_ns
        return [t + waited_ns for t in arrivals_ns]

    def _sent(self, work: tuple[LinkEnd, Frame]) -> None:
        end, frame = work
        end.waiting.pop(frame, None)
        left = self._queued[end] - frame.size_bytes - OVERHEAD_BYTES
        if left:
            self._queued[end] = left
        else:
            del self._queued[end]
        if end in self._high and left < self._queue_bytes // 4:
            del self._high[end]
            end.mark_queue(high=False)


# Networks that fall in two.


class Partition(Fault, frozen=True, kw_only=True, tag="partition"):
    """Cuts some nodes off from the rest: given regions, or a random fraction.

    Messages across the cut are lost, and so, after detect_s, are the links; dials time out.
    """

    end_s: NotNegative
    regions: tuple[str, ...] = ()
    fraction: Annotated[float, Meta(gt=0, lt=1)] | None = None
    role: str = "node"
    detect_s: NotNegative = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.regions) == (self.fraction is not None):
            raise ConfigError(
                f"regions = {list(self.regions)}, fraction = {self.fraction}: "
                "give either regions or a fraction"
            )

    def install(self, simulation: Simulation) -> None:
        simulation.at_s(self.start_s, lambda: self._begin(simulation))

    def _begin(self, simulation: Simulation) -> None:
        nodes = simulation.with_role(self.role)
        if self.fraction is not None:
            away = pick(nodes, self.fraction, simulation.fault_random("partition"))
        else:
            away = [node for node in nodes if node.region in self.regions]
            if not away:
                raise ConfigError(f"{self!r}: no {self.role} is in these regions")
        cut = _Cut(simulation, dict.fromkeys(node.id for node in away))
        simulation.add_shaper(cut)
        self.announce(simulation, f"{len(away)} nodes cut off")
        detect_ns = ns_of_seconds(self.detect_s)
        simulation.scheduler.after(detect_ns, cut.time_out)

        def heal() -> None:
            cut.heal()
            self.announce(simulation, "heals")

        simulation.at_s(self.end_s, heal)


class _Cut(Shaper):
    def __init__(self, simulation: Simulation, away: dict[NodeId, None]) -> None:
        self._simulation = simulation
        self._away = away
        self._healed = False

    def cuts(self, a: NodeId, b: NodeId) -> bool:
        return (a in self._away) != (b in self._away)

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        return [] if self.cuts(end.host.node, end.peer) else arrivals_ns

    def time_out(self, _: None) -> None:
        """Both sides give up on the links across."""
        if not self._healed:
            for end in self._across():
                end.broke("timeout")

    def heal(self) -> None:
        """Messages pass again, and so does the news of links closed meanwhile."""
        self._healed = True
        self._simulation.remove_shaper(self)
        for end in self._across():
            if not end.partner.open:
                end.closed_by_peer("closed")

    def _across(self) -> list[LinkEnd]:
        running = [node.host for node in self._simulation.nodes.values() if node.host is not None]
        ends = [end for host in running for end in host.ends.values()]
        return [end for end in ends if self.cuts(end.host.node, end.peer)]


# Nodes that die, and come back.


class Crash(Fault, frozen=True, kw_only=True, tag="crash"):
    """At start_s a random fraction of the running nodes of a role dies at once, at least one of
    them; at end_s, if given, they start again, with their disks or without.

    detect_s is how long peers take to notice: 0 for a dead process, whose kernel closes its
    sockets; seconds for a dead machine.
    """

    fraction: Probability
    role: str = "node"
    detect_s: NotNegative = 0.0
    lose_disk: bool = False

    def install(self, simulation: Simulation) -> None:
        simulation.at_s(self.start_s, lambda: self._begin(simulation))

    def _begin(self, simulation: Simulation) -> None:
        running = [n for n in simulation.with_role(self.role) if n.host is not None]
        victims = pick(running, self.fraction, simulation.fault_random("crash"))
        for node in victims:
            node.crash(ns_of_seconds(self.detect_s), lose_disk=self.lose_disk)
        self.announce(simulation, f"{len(victims)} nodes")
        if self.end_s is not None:
            simulation.at_s(self.end_s, lambda: self._restart(simulation, victims))

    def _restart(self, simulation: Simulation, victims: list[SimNode]) -> None:
        for node in victims:
            if node.host is None:
                node.start()
        self.announce(simulation, f"{len(victims)} nodes start again")


# Nodes that come and go all the time.


MINUTE_S = 60.0
PER_MINUTE_MAX = 10.0  # each node ten times: none of them would ever have settled


class Churn(Fault, frozen=True, kw_only=True, tag="churn"):
    """From start_s on nodes of a role die, one at a time and at random moments, and each starts
    again after a while, with its disk. At end_s all who are away then start at once.

    `per_minute` is the part of all nodes that dies in a minute; the last one that runs does not.
    How long a node is away is exponential around away_s; detect_s is that of a crash.
    """

    per_minute: Annotated[float, Meta(gt=0, le=PER_MINUTE_MAX)]
    away_s: Positive = 30.0
    role: str = "node"
    detect_s: NotNegative = 0.0

    def install(self, simulation: Simulation) -> None:
        simulation.at_s(self.start_s, lambda: _Churning(self, simulation).begin())


class _Churning:
    """Who is away, and what comes next."""

    def __init__(self, fault: Churn, simulation: Simulation) -> None:
        self._fault = fault
        self._simulation = simulation
        self._rng = simulation.fault_random("churn")
        self._nodes = simulation.with_role(fault.role)
        self._away: dict[SimNode, int] = {}  # and its incarnation that died
        self._deaths = 0

    def begin(self) -> None:
        self._fault.announce(self._simulation, f"{self._fault.per_minute:g} of all a minute")
        if self._fault.end_s is not None:
            self._simulation.at_s(self._fault.end_s, self._end)
        if self._nodes:
            self._plan_next()

    def _plan_next(self) -> None:
        per_s = self._fault.per_minute * len(self._nodes) / MINUTE_S
        next_s = self._simulation.time_s + self._rng.expovariate(per_s)
        if self._fault.end_s is None or next_s < self._fault.end_s:
            self._simulation.at_s(next_s, self._die)

    def _die(self) -> None:
        self._plan_next()
        running = [node for node in self._nodes if node.host is not None]
        if len(running) < 2:
            return
        node = self._rng.choice(running)
        node.crash(ns_of_seconds(self._fault.detect_s))
        self._deaths += 1
        self._away[node] = node.incarnation
        back_s = self._simulation.time_s + self._rng.expovariate(1 / self._fault.away_s)
        self._simulation.at_s(back_s, partial(self._return, node, node.incarnation))

    def _return(self, node: SimNode, died: int) -> None:
        # Another fault, or the end of this one, may have started it meanwhile.
        if self._away.get(node) == died:
            del self._away[node]
            if node.host is None:
                node.start()

    def _end(self) -> None:
        for node, died in list(self._away.items()):
            self._return(node, died)
        self._fault.announce(self._simulation, f"{self._deaths} deaths")


# Nodes that take their time.


class ServiceTime(Fault, frozen=True, kw_only=True, tag="service_time"):
    """Every message costs its receiver this long on its one core; others queue behind it."""

    per_message_ms: NotNegative
    role: str = "node"

    def install(self, simulation: Simulation) -> None:
        simulation.at_s(self.start_s, lambda: self._set(simulation, ns_of_ms(self.per_message_ms)))
        if self.end_s is not None:
            simulation.at_s(self.end_s, lambda: self._set(simulation, 0))

    def _set(self, simulation: Simulation, service_ns: int) -> None:
        for node in simulation.with_role(self.role):
            node.service_ns = service_ns  # also for its next incarnation
            if node.host is not None:
                node.host.service_changed()
        self.announce(simulation, f"{service_ns} ns per message")


# Clocks that are wrong.


PPM_MAX = 500_000  # half speed: beyond it a clock is not slow but broken


class ClockDrift(Fault, frozen=True, kw_only=True, tag="clock_drift"):
    """Each node's time of day is off by up to offset_ms; its clocks run up to ppm fast or slow."""

    offset_ms: NotNegative = 0.0
    ppm: Annotated[float, Meta(ge=0, le=PPM_MAX)] = 0.0
    role: str = "node"

    def install(self, simulation: Simulation) -> None:
        if self.end_s is not None:
            simulation.at_s(self.end_s, lambda: self._mend(simulation))
        simulation.at_s(self.start_s, lambda: self._begin(simulation))

    def _begin(self, simulation: Simulation) -> None:
        rng = simulation.fault_random("clock_drift")
        for node in simulation.with_role(self.role):
            offset_ns = round(rng.uniform(-self.offset_ms, self.offset_ms) * MS_NS)
            ppm = rng.uniform(-self.ppm, self.ppm)
            node.set_clock(offset_ns, ppm)
        self.announce(simulation, f"up to {self.offset_ms} ms and {self.ppm} ppm")

    def _mend(self, simulation: Simulation) -> None:
        """Rates, and times of day, are right from now on."""
        for node in simulation.with_role(self.role):
            node.set_clock(0, 0.0)
        self.announce(simulation, "ends")


# System clocks that are set.


class ClockStep(Fault, frozen=True, kw_only=True, tag="clock_step"):
    """The time of day of some nodes is set by step_s, ahead or back, and right again at the end.
    What measures durations is not touched."""

    step_s: Annotated[float, Meta(ge=-LARGE, le=LARGE)]
    fraction: Probability = 1.0
    role: str = "node"

    def install(self, simulation: Simulation) -> None:
        simulation.at_s(self.start_s, lambda: self._begin(simulation))

    def _begin(self, simulation: Simulation) -> None:
        step_ns = round(self.step_s * S_NS)
        rng = simulation.fault_random("clock_step")
        nodes = pick(simulation.with_role(self.role), self.fraction, rng)
        for node in nodes:
            node.step_wall(step_ns)
        self.announce(simulation, f"{len(nodes)} nodes by {self.step_s} s")

        def end() -> None:
            for node in nodes:
                node.step_wall(-step_ns)
            self.announce(simulation, "ends")

        if self.end_s is not None:
            simulation.at_s(self.end_s, end)


# Faults, each its own small class, combinable in a scenario.
#
# [[faults]]
# kind = "loss"
# probability = 0.01
# start_s = 10
# end_s = 20


AnyFault = (
    Bandwidth
    | Churn
    | ClockDrift
    | ClockStep
    | Crash
    | Duplication
    | Jitter
    | Loss
    | Partition
    | Reordering
    | ServiceTime
)

_BY_KIND: dict[Any, type[Fault]] = {
    fault.__struct_config__.tag: fault for fault in get_args(AnyFault)
}


def parse_fault(table: Any) -> Fault:
    """One [[faults]] table of a scenario; ConfigError says what is wrong."""
    if not isinstance(table, dict):
        raise ConfigError(f"{table!r}: write a [[faults]] table")
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in _BY_KIND:
        remedy = instead_of(str(kind), _BY_KIND)
        raise ConfigError(f"kind = {kind!r}: no such fault: {remedy}")
    try:
        return msgspec.convert(table, _BY_KIND[kind], strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(explain(error, table, _BY_KIND[kind])) from error
