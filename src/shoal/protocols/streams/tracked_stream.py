"""What a tracker knows of one stream."""

from __future__ import annotations

import msgspec

from shoal.base.ids import NodeId
from shoal.kernel.contact import Contact
from shoal.protocols.streams.link_delay import LinkDelay
from shoal.protocols.streams.takeover import Takeover
from shoal.protocols.streams.topology import Pair, TopologyPolicy


class Member(msgspec.Struct):
    """A node in one stream, as the tracker sees it."""

    contact: Contact
    version: tuple[int, int] = (0, 0)  # epoch and counter of the newest instruction sent to it
    acknowledged: bool = True
    handling_us: int = 0
    """How long a message stays there before it goes on."""


class TrackedStream(msgspec.Struct):
    """One stream's topology and members."""

    policy: TopologyPolicy
    since_ns: int
    takeover: Takeover | None = None
    """While its links are being learned from its members."""
    members: dict[NodeId, Member] = {}
    unanswered: dict[NodeId, int] = {}  # member -> when its instruction was sent, oldest first
    delays: dict[Pair, LinkDelay] = {}  # links that somebody measured
