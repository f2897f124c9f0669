"""What the processes of a run tell each other. Small, since each of them loads it."""

from __future__ import annotations

from typing import Literal

import msgspec

from shoal_lab.testbed.namespaces import Kernel, LinkCounts
from shoal_lab.testbed.packet_forwarder import Forwarded

WEBSOCKET: Literal["websocket"] = "websocket"
WEBRTC: Literal["webrtc"] = "webrtc"
Transport = Literal["websocket", "webrtc"]


class UnderlayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the processes of a run need to know. Hosts are the nodes by their number,
    and the tracker as the last."""

    seed: int
    transport: Transport
    """Of the links between nodes."""
    loss: float
    """Probability that a link loses a packet."""
    degree: int
    redundant_feeds: int | None
    """As JoinStream has it."""
    delays_ns: tuple[tuple[int, ...], ...]
    """One way from host to host."""
    offsets_ns: tuple[tuple[int, ...], ...]
    """When each node publishes, from the first message on."""
    size_bytes: int
    join_ns: int
    """Between one node that has joined and the next."""
    settle_ns: int
    end_ns: int
    """From the first message on: when everything is to have arrived."""

    @property
    def hosts(self) -> int:
        """Nodes and tracker."""
        return len(self.delays_ns)

    @property
    def tracker(self) -> int:
        """The number of the tracker's host."""
        return self.hosts - 1


class HostReport(msgspec.Struct, frozen=True):
    """What a host has to say at the end."""

    started_ns: int
    neighbours: tuple[bytes, ...]
    kernel: Kernel
    late_us: tuple[int, ...]
    """How much later than planned it published each of its messages: it had to wait for a
    processor then, and so had what it did for others."""
    records: msgspec.Raw
    """A list of [time, record]: decoded by whoever wants them."""


class UnderlayReport(msgspec.Struct, frozen=True):
    """The end of a run."""

    hosts: tuple[HostReport, ...]
    links: LinkCounts
    forwarded: Forwarded
    overflowed: int
    """Packets that the queue before the forwarder had no room for: loss that nobody asked for."""
