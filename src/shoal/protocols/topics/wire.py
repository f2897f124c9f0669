"""The codec port of topics: one frame is one RPC."""

from __future__ import annotations

from typing import Any

from shoal.kernel.codec import TOPICS
from shoal.protocols.topics.messages import Rpc
from shoal.protocols.topics.rpc import decode_rpc, encode_rpc


class TopicsCodec:
    """Encodes trusted messages, decodes untrusted bytes."""

    number = TOPICS
    messages: tuple[type, ...] = (Rpc,)

    def encode(self, message: Any) -> bytes:
        """The bytes of one RPC."""
        return encode_rpc(message.messages)

    def decode(self, frame: bytes) -> Rpc:
        """The RPC, or a RemoteError."""
        return Rpc(decode_rpc(frame))
