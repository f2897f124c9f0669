"""A node's own messages: numbered, chained, signed."""

from __future__ import annotations

from collections.abc import Callable

from shoal.base.errors import UsageError
from shoal.base.ids import PARTITIONS_MAX, MessageId, NodeId, StreamId
from shoal.base.units import MS_NS
from shoal.protocols.streams.config import CONTENT_BYTES_MAX
from shoal.protocols.streams.messages import Body, Position, VerifiedMessage
from shoal.protocols.streams.wire import encode_body

Sign = Callable[[bytes], bytes]


class Publisher:
    """One chain per stream and partition. The chain's id is new with every incarnation, so that
    a node that lost its memory cannot contradict what it published before."""

    def __init__(self, node: NodeId, chain: str, sign: Sign) -> None:
        self._node = node
        self._chain = chain
        self._sign = sign
        self._last: dict[tuple[StreamId, int], Position] = {}

    def make(
        self, stream: StreamId, partition: int, content_type: int, content: bytes, now_ns: int
    ) -> VerifiedMessage:
        """The next message of its chain; its timestamp never falls behind the one before."""
        if not 0 <= partition < PARTITIONS_MAX:
            raise UsageError(f"partition {partition}: choose one of 0..{PARTITIONS_MAX - 1}")
        if not 0 <= content_type <= 255:
            raise UsageError(f"content type {content_type}: it is one byte, 0..255")
        if len(content) > CONTENT_BYTES_MAX:
            raise UsageError(
                f"{len(content)} bytes of content: the limit is {CONTENT_BYTES_MAX}, split it"
            )
        last = self._last.get((stream, partition))
        here = Position(now_ns // MS_NS, 0)
        if last is not None and last.timestamp_ms >= here.timestamp_ms:
            here = Position(last.timestamp_ms, last.sequence + 1)
        self._last[stream, partition] = here
        id = MessageId(stream, partition, here.timestamp_ms, here.sequence, self._node, self._chain)
        body = encode_body(Body(id, last, content_type, content))
        return VerifiedMessage(id, last, content_type, content, self._sign(body) + body)
