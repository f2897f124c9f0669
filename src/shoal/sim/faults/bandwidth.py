"""Uplinks that are narrow."""

from __future__ import annotations

from shoal.base.units import KIB, S_NS
from shoal.sim.faults.base import LinkFault, Positive
from shoal.sim.host import SimHost
from shoal.sim.network import Frame, LinkEnd, Shaper
from shoal.sim.simulation import Simulation

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
