"""Topics that are carried for others: how much memory they take, and whose they are.

A peer has a topic carried by joining with it. None has more than its share of the room, so that
few large topics, or many small ones, of one peer do not keep out those of others.
"""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.identity.topics.canonical import encode_descriptor
from shoal.identity.topics.cid import Cid
from shoal.identity.topics.descriptors import TopicDescriptor
from shoal.protocols.topics.config import CARRIED_BYTES_MAX, CARRIED_SHARES

# What a topic costs in memory besides the bytes of its descriptor, by tracemalloc: its log, its
# tree and the rest of its state; and each peer or sub-topic that it lists.
STATE_BYTES = 8_000
LISTED_BYTES = 150


def size_of(topic: TopicDescriptor) -> int:
    """About how much memory a topic takes without its events."""
    lists = (
        topic.sub_topics,
        topic.metadata.allowed_publishers.peers,
        topic.metadata.request_to_publish.peers,
    )
    return STATE_BYTES + len(encode_descriptor(topic)) + LISTED_BYTES * sum(map(len, lists))


class Carried:
    """Who had us carry what."""

    def __init__(self) -> None:
        self.bytes = 0
        self._topics: dict[Cid, tuple[NodeId, int]] = {}
        self._bytes_of: dict[NodeId, int] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def add(self, id: Cid, peer: NodeId, size: int) -> bool:
        """Whether there is room for a topic of this peer's; then it is taken."""
        used = self._bytes_of.get(peer, 0) + size
        if self.bytes + size > CARRIED_BYTES_MAX or used > CARRIED_BYTES_MAX // CARRIED_SHARES:
            return False
        self._topics[id] = (peer, size)
        self._bytes_of[peer] = used
        self.bytes += size
        return True

    def remove(self, id: Cid) -> None:
        """A topic is not carried any more, or not only carried."""
        peer, size = self._topics.pop(id, (None, 0))
        if peer is None:
            return
        self.bytes -= size
        self._bytes_of[peer] -= size
        if not self._bytes_of[peer]:
            del self._bytes_of[peer]
