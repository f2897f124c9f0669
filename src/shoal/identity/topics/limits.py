"""How large topics and events may be, with reasons."""

from __future__ import annotations

from shoal.base.units import KIB

PAYLOAD_BYTES_MAX = 512 * KIB  # as for streams: one event must not stall a link for long
NAME_BYTES_MAX = 1 * KIB  # of a topic, and of a sub-topic under `#`: a title, not a text
VERSION_BYTES_MAX = 64  # of a protocol: /pulsarcast/1.0.0 has 17
SUB_TOPICS_MAX = 256  # the thesis knows no limit: more than that need a level of their own
PEERS_MAX = 1024  # a list in a topic descriptor: whoever needs more lets anyone publish, or request

# The largest event. The largest topic (256 names of 1 KiB, 2,048 peers) has 405 KiB: it fits into
# an event of its meta topic.
BLOCK_BYTES_MAX = PAYLOAD_BYTES_MAX + 4 * KIB
DEPTH_MAX = 8  # a descriptor nests four levels deep
