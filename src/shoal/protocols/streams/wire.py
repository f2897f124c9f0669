"""Bytes of the streams protocol: msgpack arrays, the message's number first."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.base.errors import MalformedMessage, OversizedMessage
from shoal.kernel.machine import HISTORY, STREAM_KEYS, STREAMS
from shoal.protocols.streams.config import (
    FRAME_BYTES_MAX,
    HISTORY_FRAME_BYTES_MAX,
    KEYS_FRAME_BYTES_MAX,
)
from shoal.protocols.streams.history.messages import (
    ANSWERS,
    QUESTIONS,
    SYNC_MESSAGES,
    AskHeads,
    AskMessages,
    AskRows,
    AskStreams,
    Counted,
    CountKept,
    Keep,
    Kept,
    LogRows,
    ReadHeads,
    ReadLast,
    ReadLog,
    ReadRange,
    Refused,
    Rows,
    SyncRefused,
    TellHeads,
    TellMessages,
    TellRows,
    TellStreams,
)
from shoal.protocols.streams.history.messages import Heads as HistoryHeads
from shoal.protocols.streams.messages import (
    CLOCK_MESSAGES,
    KEY_MESSAGES,
    NODE_MESSAGES,
    READER_MESSAGES,
    SIGNAL_MESSAGES,
    STORAGE_MESSAGES,
    TRACKER_MESSAGES,
    Announce,
    AskTime,
    Close,
    Expect,
    Feed,
    Fill,
    FillDone,
    FindHolders,
    FindStorage,
    Flood,
    Heads,
    Instruction,
    Join,
    JoinRefused,
    KeepStreams,
    KeyAnswer,
    KeyHolders,
    KeyRequest,
    Leave,
    Left,
    Open,
    Ping,
    Pong,
    Probe,
    Probed,
    Report,
    Signal,
    Signalled,
    Status,
    StorageNodes,
    TellTime,
    Want,
)

AnyMessage = (
    Flood
    | Open
    | Close
    | Heads
    | Fill
    | FillDone
    | Feed
    | Announce
    | Want
    | Ping
    | Pong
    | Join
    | Leave
    | Status
    | Report
    | Probed
    | Instruction
    | Probe
    | Left
    | JoinRefused
    | Signal
    | Signalled
    | FindStorage
    | StorageNodes
    | FindHolders
    | KeyHolders
    | Expect
    | KeepStreams
    | AskTime
    | TellTime
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


class StreamsCodec:
    """The codec port of the streams protocol."""

    number = STREAMS
    messages: tuple[type, ...] = (
        *NODE_MESSAGES,
        *TRACKER_MESSAGES,
        *SIGNAL_MESSAGES,
        *READER_MESSAGES,
        *STORAGE_MESSAGES,
        *KEY_MESSAGES,
        *CLOCK_MESSAGES,
    )

    def encode(self, message: Any) -> bytes:
        """The bytes of one message."""
        return _encoder.encode(message)

    def decode(self, frame: bytes) -> AnyMessage:
        """The message, or a RemoteError."""
        if len(frame) > FRAME_BYTES_MAX:
            raise OversizedMessage(f"{len(frame)} bytes, the limit is {FRAME_BYTES_MAX}")
        try:
            return _decoder.decode(frame)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessage(str(error)) from error


# Bytes of the history protocol: msgpack arrays, the message's number first.


HistoryMessage = (
    ReadRange
    | ReadLast
    | ReadLog
    | ReadHeads
    | Keep
    | CountKept
    | Rows
    | LogRows
    | HistoryHeads
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
_decoder_history: msgspec.msgpack.Decoder[HistoryMessage] = msgspec.msgpack.Decoder(HistoryMessage)


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
            return _decoder_history.decode(frame)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessage(str(error)) from error


# Bytes of the key exchange: msgpack arrays, the message's number first.


KeysMessage = KeyRequest | KeyAnswer
_decoder_keys: msgspec.msgpack.Decoder[KeysMessage] = msgspec.msgpack.Decoder(KeysMessage)


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
            return _decoder_keys.decode(frame)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessage(str(error)) from error
