"""Which trackers a stream goes to, in which order: the same for every node with the same file.

Rendezvous hashing: each stream ranks all trackers by a hash of both names. It has what a ring with
virtual points has (streams spread evenly; a tracker that comes or goes moves only its own), and
more: the streams of a dead tracker spread over all the others instead of falling to one successor,
and there is no ring to build or to tune. It costs one hash per tracker when a stream is joined.

Trackers that the owner of a stream pinned come first, in the owner's order. The others follow all
the same: a pin says where a stream is best served, and one whose pinned trackers are all dead would
be dead with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId, StreamId
from shoal.kernel.contact import Contact

PinsOf = Callable[[StreamId], Sequence[NodeId]]


def _no_pins(stream: StreamId) -> Sequence[NodeId]:
    return ()


class TrackerRing:
    """All trackers of a network, put in order for each stream."""

    def __init__(self, trackers: Sequence[Contact], pins_of: PinsOf = _no_pins) -> None:
        self.trackers: dict[NodeId, Contact] = {}
        self._pins_of = pins_of
        self.replace(trackers)

    def replace(self, trackers: Sequence[Contact]) -> None:
        """These are all trackers from now on."""
        found = {contact.node: contact for contact in trackers}
        if not trackers or len(found) < len(trackers):
            raise UsageError("a network needs trackers, and each of them once")
        self.trackers = found

    def order(self, stream: StreamId) -> tuple[Contact, ...]:
        """Every tracker, the one to go to first in front."""
        # One that the owner pinned and this network does not list cannot be dialled.
        pins = dict.fromkeys([node for node in self._pins_of(stream) if node in self.trackers])
        others = [node for node in self.trackers if node not in pins]
        others.sort(key=lambda node: (_weight(stream, node), node))
        return tuple([self.trackers[node] for node in (*pins, *others)])


def _weight(stream: StreamId, tracker: NodeId) -> bytes:
    return hashlib.blake2b(stream.encode(), digest_size=16, key=tracker).digest()
