"""Bytes of the DHT: msgpack arrays, the message's number first."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.base.errors import MalformedMessage, OversizedMessage
from shoal.kernel.machine import DHT
from shoal.protocols.dht.config import FRAME_BYTES_MAX
from shoal.protocols.dht.messages import ANSWERS, QUESTIONS, Answer, Question

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Question | Answer] = msgspec.msgpack.Decoder(Question | Answer)


class DhtCodec:
    """The codec port of the DHT."""

    number = DHT
    messages: tuple[type, ...] = QUESTIONS + ANSWERS

    def encode(self, message: Any) -> bytes:
        """The bytes of one message."""
        return _encoder.encode(message)

    def decode(self, frame: bytes) -> Question | Answer:
        """The message, or a RemoteError."""
        if len(frame) > FRAME_BYTES_MAX:
            raise OversizedMessage(f"{len(frame)} bytes, the limit is {FRAME_BYTES_MAX}")
        try:
            return _decoder.decode(frame)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessage(str(error)) from error
