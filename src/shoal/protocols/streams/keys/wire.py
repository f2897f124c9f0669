"""Bytes of the key exchange: msgpack arrays, the message's number first."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.base.errors import MalformedMessage, OversizedMessage
from shoal.kernel.codec import STREAM_KEYS
from shoal.protocols.streams.keys.config import KEYS_FRAME_BYTES_MAX
from shoal.protocols.streams.keys.messages import KeyAnswer, KeyRequest

KeysMessage = KeyRequest | KeyAnswer

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[KeysMessage] = msgspec.msgpack.Decoder(KeysMessage)


class KeysCodec:
    """The codec port of the key exchange."""

    number = STREAM_KEYS
    messages: tuple[type, ...] = (KeyRequest, KeyAnswer)

    def encode(self, message: Any) -> bytes:
        """The bytes of one message."""
        return _encoder.encode(message)

    def decode(self, frame: bytes) -> KeysMessage:
        """The message, or a RemoteError."""
        if len(frame) > KEYS_FRAME_BYTES_MAX:
            raise OversizedMessage(f"{len(frame)} bytes, the limit is {KEYS_FRAME_BYTES_MAX}")
        try:
            return _decoder.decode(frame)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessage(str(error)) from error
