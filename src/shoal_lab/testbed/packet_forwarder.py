"""Holds every packet for as long as its way takes: a user-space link between regions.

The kernel that connects the hosts routes whatever comes from one of them into a TUN device. Here
it is read, held for the delay between sender and receiver, and written back; the kernel then hands
it on to the receiver. A packet is never dropped or overtaken here: between two hosts the delay is
always the same.

A plain loop around select(), and no event loop: epoll waits for whole milliseconds, select for
microseconds.
"""

from __future__ import annotations

import heapq
import os
import select
from array import array
from collections.abc import Callable, Mapping
from time import monotonic_ns

import msgspec

from shoal.base.units import US_NS, seconds

PACKET_BYTES_MAX = 2048  # above the MTU of the links, 1,500
READS_MAX = 64  # packets taken in one turn: those that are due must not wait for all that come
ADDRESSES = slice(12, 20)  # of an IPv4 packet: sender's, then receiver's


class DelayLine:
    """Packets on their way, by when they arrive."""

    def __init__(self, delays_ns: Mapping[bytes, int]) -> None:
        """The delay for each pair of addresses, as the eight bytes of a packet that hold them."""
        self._delays_ns = delays_ns
        self._held: list[tuple[int, int, bytes]] = []
        self._count = 0
        self.unknown = 0
        self.late_us = array("I")

    def hold(self, packet: bytes, now_ns: int) -> None:
        """Take a packet that was just sent."""
        delay_ns = self._delays_ns.get(packet[ADDRESSES])
        if delay_ns is None:  # multicast, IPv6: no host has asked for it
            self.unknown += 1
            return
        # The count keeps the order of what arrives at the same time.
        self._count += 1
        heapq.heappush(self._held, (now_ns + delay_ns, self._count, packet))

    def wait_ns(self, now_ns: int) -> int | None:
        """Until the next packet arrives; None if there is none."""
        return max(0, self._held[0][0] - now_ns) if self._held else None

    def take(self, now_ns: int) -> bytes | None:
        """The next packet that has arrived by now; None if there is none."""
        if not self._held or self._held[0][0] > now_ns:
            return None
        due_ns, _, packet = heapq.heappop(self._held)
        self.late_us.append((now_ns - due_ns) // US_NS)
        return packet

    def report(self) -> Forwarded:
        """What was done."""
        late = sorted(self.late_us)
        if not late:
            return Forwarded(0, self.unknown, (0.0, 0.0, 0.0))
        p99 = late[min(len(late) - 1, len(late) * 99 // 100)]
        told = (sum(late) / len(late), float(p99), float(late[-1]))
        return Forwarded(len(late), self.unknown, told)


def forward(tun: int, line: DelayLine, stop: int, clock: Callable[[], int] = monotonic_ns) -> None:
    """Forward packets until there is something to read from `stop`."""
    os.set_blocking(tun, False)
    while True:
        wait_ns = line.wait_ns(clock())
        timeout_s = None if wait_ns is None else seconds(wait_ns)
        readable, _, _ = select.select([tun, stop], [], [], timeout_s)
        if stop in readable:
            return
        if tun in readable:
            for _ in range(READS_MAX):
                try:
                    packet = os.read(tun, PACKET_BYTES_MAX)
                except BlockingIOError:
                    break
                line.hold(packet, clock())
        while (arrived := line.take(clock())) is not None:
            os.write(tun, arrived)


class Forwarded(msgspec.Struct, frozen=True):
    """What the forwarder did."""

    packets: int
    unknown: int
    """Not from host to host: dropped."""
    late_us: tuple[float, float, float]
    """How much later than they should packets left: mean, 99th percentile, most."""
