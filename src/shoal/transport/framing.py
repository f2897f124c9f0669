"""How payloads travel: what one loop turn gathers becomes one message. Pure.

    message = [MAC (16)] frame*          no MAC under TLS
    frame   = protocol (1) | length (4, big-endian) | payload

The MAC is the tag of ChaCha20-Poly1305 with nothing to encrypt, over the frames; its nonce is a
message counter, which is not sent. It takes a fifth of what keyed BLAKE2b takes for a batch, on
any processor. Each direction has its own key and counter, so a message that was changed, made up,
left out, repeated, moved, or sent back to its author does not fit, and the link ends there.

One pass over the bytes on each side, beside the hash: a message is joined once, with room in
front for the header of the carrier, which then need not copy it.
"""

from __future__ import annotations

import struct
from collections import deque

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from shoal.base.errors import MalformedMessage, OversizedMessage, RemoteError
from shoal.base.units import KIB
from shoal.transport.port import Frame

BATCH_BYTES_MAX = 64 * KIB
"""Frames of one message, unless a single one is longer: enough to make the cost per message
vanish, little enough for a reader to hold. Part of the protocol, as readers must accept it."""

HEAD_ROOM_BYTES = 14  # the longest header of a WebSocket frame (RFC 6455, 5.2)
MAC_BYTES = 16
CONTROL = 0  # the protocol number of the link itself

_FRAME_HEADER = struct.Struct(">BI")
FRAME_HEADER_BYTES = _FRAME_HEADER.size
_NONCE = struct.Struct(">IQ")  # the upper part is never needed

_HEAD_PLAIN = bytes(HEAD_ROOM_BYTES)
_HEAD_WITH_MAC = bytes(HEAD_ROOM_BYTES + MAC_BYTES)


class ForgedMessage(RemoteError):
    """A message that the peer did not send, or not here and now."""


def message_bytes_max(frame_bytes_max: int) -> int:
    """The longest message that a peer with this limit may be sent."""
    return MAC_BYTES + max(BATCH_BYTES_MAX, FRAME_HEADER_BYTES + frame_bytes_max)


class FrameWriter:
    """Gathers frames, and turns them into messages, in order."""

    __slots__ = ("_batch", "_batch_bytes", "_count", "_full", "_head", "_mac", "queued_bytes")

    def __init__(self, key: bytes | None) -> None:
        """With a key every message is authenticated."""
        self._mac = None if key is None else ChaCha20Poly1305(key)
        self._head = _HEAD_PLAIN if key is None else _HEAD_WITH_MAC
        self._count = 0
        self._full: deque[tuple[list[bytes], int]] = deque()
        self._batch = [self._head]
        self._batch_bytes = 0
        self.queued_bytes = 0

    def add(self, protocol: int, payload: bytes) -> int:
        """Put one frame behind the others; the bytes that wait now."""
        length = len(payload)
        size = FRAME_HEADER_BYTES + length
        batch_bytes = self._batch_bytes + size
        if batch_bytes > BATCH_BYTES_MAX and self._batch_bytes:
            self._full.append((self._batch, self._batch_bytes))
            self._batch = [self._head]
            batch_bytes = size
        self._batch_bytes = batch_bytes
        self._batch += (_FRAME_HEADER.pack(protocol, length), payload)
        queued_bytes = self.queued_bytes = self.queued_bytes + size
        return queued_bytes

    def next_message(self) -> bytearray | None:
        """The next message, from HEAD_ROOM_BYTES on; None if there is nothing to send."""
        if self._full:
            batch, size = self._full.popleft()
        else:
            batch, size = self._batch, self._batch_bytes
            if not size:
                return None
            self._batch, self._batch_bytes = [self._head], 0
        self.queued_bytes -= size
        message = bytearray().join(batch)
        if self._mac is not None:
            frames = memoryview(message)[HEAD_ROOM_BYTES + MAC_BYTES :]
            tag = self._mac.encrypt(_NONCE.pack(0, self._count), b"", frames)
            message[HEAD_ROOM_BYTES : HEAD_ROOM_BYTES + MAC_BYTES] = tag
            self._count += 1
        return message

    def frames(self) -> list[Frame]:
        """What was added and is in no message yet, in order."""
        batches = [batch for batch, _ in self._full] + [self._batch]
        # Behind the head, headers and payloads take turns.
        return [
            (_FRAME_HEADER.unpack(header)[0], payload)
            for batch in batches
            for header, payload in zip(batch[1::2], batch[2::2], strict=True)
        ]


class FrameReader:
    """Turns messages back into frames; the first RemoteError ends the link."""

    __slots__ = ("_count", "_frame_bytes_max", "_mac", "_message_bytes_max")

    def __init__(self, key: bytes | None, frame_bytes_max: int) -> None:
        """The key is the peer's for writing."""
        self._mac = None if key is None else ChaCha20Poly1305(key)
        self._count = 0
        self._frame_bytes_max = frame_bytes_max
        self._message_bytes_max = message_bytes_max(frame_bytes_max)

    def read(self, message: bytes) -> list[Frame]:
        """The frames of one message; ForgedMessage, MalformedMessage or OversizedMessage."""
        size = len(message)
        if size > self._message_bytes_max:
            raise OversizedMessage(f"a message of {size} bytes: {self._message_bytes_max} at most")
        position = 0
        if self._mac is not None:
            content = memoryview(message)
            try:
                nonce = _NONCE.pack(0, self._count)
                self._mac.decrypt(nonce, content[:MAC_BYTES], content[MAC_BYTES:])
            except InvalidTag:
                raise ForgedMessage(
                    f"message {self._count} was not sent like this by the peer"
                ) from None
            self._count += 1
            position = MAC_BYTES
        frames: list[Frame] = []
        unpack, frame_bytes_max = _FRAME_HEADER.unpack_from, self._frame_bytes_max
        if size - position > BATCH_BYTES_MAX:
            # One long payload, not a megabyte of empty ones: those would cost us twenty.
            _, length = unpack(message, position)
            if position + FRAME_HEADER_BYTES + length != size:
                raise MalformedMessage("a message above the bound of a batch is not one payload")
        try:
            while position < size:
                protocol, length = unpack(message, position)
                if length > frame_bytes_max:
                    raise OversizedMessage(
                        f"a payload of {length} bytes: {frame_bytes_max} at most"
                    )
                position += FRAME_HEADER_BYTES
                end = position + length
                frames.append((protocol, message[position:end]))
                position = end
        except struct.error:
            raise MalformedMessage("a message ends within the header of a frame") from None
        if position != size:
            raise MalformedMessage("a message ends within a payload")
        return frames
