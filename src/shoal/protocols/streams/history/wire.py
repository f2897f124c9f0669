"""Bytes of the history protocol: msgpack arrays, the message's number first."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.base.errors import MalformedMessage, OversizedMessage
from shoal.kernel.codec import HISTORY
from shoal.protocols.streams.history.config import HISTORY_FRAME_BYTES_MAX
from shoal.protocols.streams.history.messages import (
    ANSWERS,
    QUESTIONS,
    Counted,
    CountKept,
    Heads,
    Keep,
    Kept,
    LogRows,
    ReadHeads,
    ReadLast,
    ReadLog,
    ReadRange,
    Refused,
    Rows,
)
from shoal.protocols.streams.history.sync_messages import (
    SYNC_MESSAGES,
    AskHeads,
    AskMessages,
    AskRows,
    AskStreams,
    SyncRefused,
    TellHeads,
    TellMessages,
    TellRows,
    TellStreams,
)

HistoryMessage = (
    ReadRange
    | ReadLast
    | ReadLog
    | ReadHeads
    | Keep
    | CountKept
    | Rows
    | LogRows
    | Heads
    | Kept
    | Counted
    | Refused
    | AskHeads
    | TellHeads
    | AskRows
    | TellRows
    | AskMessages
    | TellMessages
    | AskStreams
    | TellStreams
    | SyncRefused
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[HistoryMessage] = msgspec.msgpack.Decoder(HistoryMessage)


class HistoryCodec:
    """The codec port of the history protocol."""

    number = HISTORY
    messages: tuple[type, ...] = QUESTIONS + ANSWERS + SYNC_MESSAGES

    def encode(self, message: Any) -> bytes:
        """The bytes of one message."""
        return _encoder.encode(message)

    def decode(self, frame: bytes) -> HistoryMessage:
        """The message, or a RemoteError."""
        if len(frame) > HISTORY_FRAME_BYTES_MAX:
            raise OversizedMessage(f"{len(frame)} bytes, the limit is {HISTORY_FRAME_BYTES_MAX}")
        try:
            return _decoder.decode(frame)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessage(str(error)) from error
