"""A simulated network: nodes, links, faults and checkers under one virtual clock."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Any

from shoal.base.errors import ShoalError, UsageError
from shoal.base.ids import NodeId, StreamId, short_node_id
from shoal.base.units import MS_NS, S_NS, US_NS, ns_of_seconds, seconds
from shoal.identity import verify_signed
from shoal.kernel.access import Permission, Tell, Verdict
from shoal.kernel.effects import Send, Verify
from shoal.kernel.host import HostLimits
from shoal.kernel.inputs import AccessChanged
from shoal.kernel.machine import Codec
from shoal.sim.checkers import Checker
from shoal.sim.delays import DelayModel
from shoal.sim.host import MakeMachines, SimHost, SimNode
from shoal.sim.links import Frame, LinkEnd, Shaper, join_ends
from shoal.sim.scheduler import Scheduler
from shoal.sim.trace import Trace

START_NS = 1_767_225_600 * S_NS  # 2026-01-01: machines see Unix time
SIGNATURES_MAX = 100_000  # checks remembered: far more than are under way, a few dozen MB
VERIFY_NS = 40 * US_NS  # one signature check on one core
HANDSHAKE_ROUND_TRIPS = 2  # TCP, then upgrade and mutual challenge in one
REFUSED_ROUND_TRIPS = 1
DIAL_TIMEOUT_NS = 3 * S_NS
PROGRESS_EVENTS = 20_000


class SimulationFailure(ShoalError):
    """A checker or a machine found something wrong; says how to see it again."""


class Simulation:
    """One run, wholly determined by its seed and what is built into it."""

    def __init__(
        self,
        seed: int,
        delays: DelayModel,
        *,
        codecs: Sequence[Codec] = (),
        wire: bool = False,
        checkers: Sequence[Checker] = (),
        limits: HostLimits | None = None,
        verify_ns: int = VERIFY_NS,
        replay: str = "",
    ) -> None:
        self.seed = seed
        self.delays = delays
        self.scheduler = Scheduler(START_NS)
        self.trace = Trace()
        self.nodes: dict[NodeId, SimNode] = {}
        self.checkers = list(checkers)
        self.limits = limits or HostLimits()
        self.verify_ns = verify_ns
        self.access = SimAccess(self)
        """Who may do what, for machines that ask."""
        self.progress: Callable[[Simulation], None] | None = None
        self._replay = replay
        self._wire = wire
        self._codecs = {kind: codec for codec in codecs for kind in codec.messages}
        self._shapers: list[Shaper] = []
        self._ordered_until_ns = 0  # the last arrival that later messages must not overtake
        self._faults = count(1)
        self._signatures: dict[tuple[NodeId, bytes], bool] = {}
        self.slow_path = wire

    # Building

    def add_node(self, id: NodeId, make: MakeMachines, role: str = "node") -> SimNode:
        """A node that can be started; `make` builds its machines, anew for every incarnation.
        Faults pick their victims by role."""
        if id in self.nodes:
            raise UsageError(f"node {short_node_id(id)} exists already")
        node = SimNode(self, id, len(self.nodes), make, role)
        self.nodes[id] = node
        return node

    def with_role(self, role: str) -> list[SimNode]:
        """Nodes of one role, in order of their making."""
        return [node for node in self.nodes.values() if node.role == role]

    def random(self, *names: object) -> Random:
        """The generator of a part of this simulation."""
        return stable_random(self.seed, *names)

    def fault_random(self, kind: str) -> Random:
        """A generator for one fault: two of a kind must not draw the same numbers."""
        return self.random(kind, next(self._faults))

    def add_shaper(self, shaper: Shaper) -> None:
        """From now on, messages go through this fault too; order-keeping ones come first."""
        self._shapers.append(shaper)
        self._shapers.sort(key=lambda s: not s.keeps_order)
        self.slow_path = True

    def remove_shaper(self, shaper: Shaper) -> None:
        """The fault heals; what it delayed is still not overtaken."""
        self._shapers.remove(shaper)
        self.scheduler.at(self._ordered_until_ns, self._choose_path)

    def _choose_path(self, _: None) -> None:
        late = self._ordered_until_ns > self.scheduler.now_ns
        self.slow_path = self._wire or bool(self._shapers) or late

    # Running

    @property
    def time_s(self) -> float:
        """Simulated seconds since the start."""
        return seconds(self.scheduler.now_ns - START_NS)

    def at_s(self, when_s: float, action: Callable[[], None]) -> None:
        """Do something at a simulated time."""
        self.scheduler.at(START_NS + ns_of_seconds(when_s), lambda _: action())

    def run_for(self, duration_s: float) -> None:
        """Let simulated time pass."""
        self.run_until_s(self.time_s + duration_s)

    def run_until_s(self, end_s: float) -> None:
        """Let simulated time pass up to a moment."""
        end_ns = START_NS + ns_of_seconds(end_s)
        try:
            while not self.scheduler.run_until(end_ns, PROGRESS_EVENTS):
                if self.progress is not None:
                    self.progress(self)
        except Exception as error:
            raise self.failure(error) from error
        finally:
            self.trace.flush()

    def check_quiet(self) -> None:
        """Faults have healed and time has passed: what must be true now?"""
        for checker in self.checkers:
            try:
                checker.quiet(self)
            except Exception as error:
                raise self.failure(error) from error

    def failure(self, error: Exception) -> SimulationFailure:
        """An error with all that is needed to see it again."""
        replay = f"\nreplay: {self._replay}" if self._replay else ""
        return SimulationFailure(
            f"seed {self.seed}, t = {self.time_s:.6f} s: {type(error).__name__}: {error}{replay}"
        )

    # What hosts ask of the world

    def reachable(self, a: NodeId, b: NodeId) -> bool:
        """Whether anything from a would get through to b."""
        return not any(shaper.cuts(a, b) for shaper in self._shapers)

    def dial(self, host: SimHost, peer: NodeId) -> None:
        target = self.nodes.get(peer)
        if target is None:
            self.scheduler.after(DIAL_TIMEOUT_NS, self._dial_failed, (host, peer, "no-such-host"))
            return
        there_ns = self.delays.one_way_ns(host.index, target.index)
        round_trip_ns = there_ns + self.delays.one_way_ns(target.index, host.index)
        if not self.reachable(host.node, peer):
            self.scheduler.after(DIAL_TIMEOUT_NS, self._dial_failed, (host, peer, "timeout"))
        elif target.host is None:
            wait_ns = max(MS_NS, REFUSED_ROUND_TRIPS * round_trip_ns)
            self.scheduler.after(wait_ns, self._dial_failed, (host, peer, "refused"))
        else:
            wait_ns = HANDSHAKE_ROUND_TRIPS * round_trip_ns
            self.scheduler.after(wait_ns, self._connected, (host, target.host))

    def _connected(self, pair: tuple[SimHost, SimHost]) -> None:
        dialler, target = pair
        if not dialler.alive or target.node in dialler.ends:
            return  # the other side dialled too: one connection is enough
        if not target.alive or not self.reachable(dialler.node, target.node):
            dialler.dial_failed(target.node, "lost")
            return
        stale = target.ends.get(dialler.node)
        if stale is not None:
            # The dialler has closed that link, or died since; the news is still on its way.
            stale.broke("replaced")
        join_ends(self, dialler, target)
        dialler.link_opened(target.node)
        if dialler.node in target.ends:
            target.link_opened(dialler.node)

    def _dial_failed(self, failed: tuple[SimHost, NodeId, str]) -> None:
        host, peer, reason = failed
        if host.alive:
            host.dial_failed(peer, reason)

    def transmit(self, host: SimHost, slot: int, effect: Send) -> None:
        """Send through faults, and through the codec in wire mode; encoded once for all peers."""
        message = effect.message
        codec = self._codecs.get(type(message))
        if codec is None and effect.peers == (host.node,):
            host.no_link(host.node, message)  # between its machines, and never on a wire
            return
        if codec is None:
            raise UsageError(f"no codec for {type(message).__name__}: pass it in codecs=")
        encoded = codec.encode(message)
        frame = Frame(slot, message, len(encoded))
        for peer in effect.peers:
            end = host.ends.get(peer)
            if end is None:
                host.no_link(peer, message)
                continue
            take, payload = end.give, message
            if self._wire:
                take, payload = end.partner.arrive_frame, (type(message), encoded)
            for arrival_ns in self._arrivals(end, frame):
                self.scheduler.at(arrival_ns, take, payload)

    def _arrivals(self, end: LinkEnd, frame: Frame) -> list[int]:
        arrivals_ns = [self.scheduler.now_ns + end.delay_ns]
        ordered = [shaper for shaper in self._shapers if shaper.keeps_order]
        for shaper in ordered:
            arrivals_ns = shaper.shape(end, frame, arrivals_ns)
        if arrivals_ns:
            end.last_arrival_ns = max(*arrivals_ns, end.last_arrival_ns)
            self._ordered_until_ns = max(self._ordered_until_ns, end.last_arrival_ns)
            arrivals_ns = [end.last_arrival_ns]
        for shaper in self._shapers[len(ordered) :]:
            arrivals_ns = shaper.shape(end, frame, arrivals_ns)
        return arrivals_ns

    def decode(self, kind: type, frame: bytes) -> Any:
        """What a receiver reads out of a frame."""
        return self._codecs[kind].decode(frame)

    def is_valid(self, effect: Verify) -> bool:
        """Each signature is really checked, once: the result is a fact for everybody."""
        key = (effect.signer, effect.signed)
        known = self._signatures.get(key)
        if known is None:
            if len(self._signatures) >= SIGNATURES_MAX:
                del self._signatures[next(iter(self._signatures))]
            known = self._signatures[key] = verify_signed(*key)
        return known


# The registry of a simulated network: what everybody may do, told late, and away at times.


FOREVER_NS = 2**63 - 1
UNREACHABLE = "the simulated chain is out of reach"


class SimAccess:
    """The access port of all nodes. Nobody may do anything until it is granted.

    A change counts at once for whoever asks, and is told `poll_ns` later to those who asked
    before. During an outage nothing is answered and nothing told; what was, counts for
    `staleness_ns` after the last time that the chain was there.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.answer_ns = 5 * MS_NS
        self.poll_ns = 250 * MS_NS
        self.staleness_ns = 120 * S_NS
        self._simulation = simulation
        self._ends_ns: dict[tuple[StreamId, NodeId, Permission], int] = {}
        self._away = False
        self._untold: list[AccessChanged] = []

    def grant(
        self, stream: StreamId, who: NodeId, kinds: Permission, until_ns: int = FOREVER_NS
    ) -> None:
        """Give permissions until a time."""
        for kind in kinds:
            self._ends_ns[stream, who, kind] = until_ns
        self._change(AccessChanged(stream, who))

    def revoke(self, stream: StreamId, who: NodeId, kinds: Permission) -> None:
        """Take permissions away."""
        self.grant(stream, who, kinds, until_ns=0)

    def go_away(self) -> None:
        """The chain is out of reach from now on."""
        self._away = True

    def come_back(self) -> None:
        """The chain is there again; what changed meanwhile is told."""
        self._away = False
        self._simulation.scheduler.after(self.poll_ns, self._tell)

    def check(self, stream: StreamId, who: NodeId, tell: Tell) -> None:
        now_ns = self._simulation.scheduler.now_ns
        if self._away:
            tell(Verdict(0, now_ns, UNREACHABLE))
            return
        permissions, until_ns = 0, now_ns + self.staleness_ns
        for kind in Permission:
            end_ns = self._ends_ns.get((stream, who, kind), 0)
            if now_ns < end_ns:
                permissions |= kind
                until_ns = min(until_ns, end_ns)
        tell(Verdict(permissions, until_ns))

    def _change(self, change: AccessChanged) -> None:
        self._untold.append(change)
        self._simulation.scheduler.after(self.poll_ns, self._tell)

    def _tell(self, _: None) -> None:
        if self._away:
            return
        changes, self._untold = self._untold, []
        for node in self._simulation.nodes.values():
            for change in changes:
                if node.host is not None:
                    node.host.access_changed(change)


# Randomness from names: each part of a simulation draws from a generator of its own.


def stable_seed(seed: int, *names: object) -> int:
    """A number that depends on seed and names only: not on Python's hash seed, nor on what
    other parts of the simulation drew before."""
    text = "\x1f".join([str(seed), *map(str, names)])  # no name contains it
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest())


def stable_random(seed: int, *names: object) -> Random:
    """A generator for one part of a simulation."""
    return Random(stable_seed(seed, *names))
