"""Signals: what two nodes tell each other through a third, before there is a link between them.

WebRTC needs it: both sides must know of each other's ICE credentials, certificate and candidate
addresses before the first packet goes. Whoever passes signals on (streams: the tracker of a pair)
may lose or change them: the handshake of the link is bound to the certificates (webrtc.py), so
that this costs the link and nothing else.

    Ring      call me: said by the larger id, which never offers
    Offer     how I am reached; said by the smaller id, on its own or when rung
    Answer    how I am reached, in return
    More      further candidates, as they are found
    End       this call comes to nothing

A session description is never taken from a peer as text, but in these few fields, and written
anew (session_description.py): what else the text could ask of our WebRTC engine is not sayable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

from shoal.base.errors import MalformedMessage
from shoal.base.ids import NodeId

SIGNAL_BYTES_MAX = 4096
"""A description and all of its candidates fit."""

CALL_BYTES = 8
CANDIDATES_MAX = 16
"""Of one message: a machine with more addresses says them in several."""

Receive = Callable[[NodeId, bytes], None]


class Signalling(Protocol):
    """Whoever passes signals on. Some may be lost, and none comes twice."""

    receive: Receive
    """Set by the transport: called with who says it, and what."""

    def send(self, peer: NodeId, signal: bytes) -> bool:
        """Pass a signal on; False if there is no way to this peer."""
        ...


CallId = Annotated[bytes, Meta(min_length=CALL_BYTES, max_length=CALL_BYTES)]
IceText = Annotated[str, Meta(pattern=r"^[A-Za-z0-9+/]{4,256}\Z")]


class Candidate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An address at which a side may be reached over UDP (RFC 8839, 5.1)."""

    foundation: Annotated[str, Meta(pattern=r"^[A-Za-z0-9+/]{1,32}\Z")]
    priority: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
    ip: Annotated[str, Meta(pattern=r"^[0-9a-fA-F.:]{2,45}\Z")]
    port: Annotated[int, Meta(ge=1, le=65535)]
    kind: Literal["host", "srflx", "prflx", "relay"]


Candidates = Annotated[tuple[Candidate, ...], Meta(max_length=CANDIDATES_MAX)]


class Description(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a side is known by: ICE credentials, and the SHA-256 of its certificate."""

    user: IceText
    password: IceText
    fingerprint: Annotated[bytes, Meta(min_length=32, max_length=32)]


class Ring(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Make me an offer: I want to talk to you, and have the larger id."""

    call: CallId


class Offer(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Connect to me."""

    call: CallId
    rung: bool
    """It answers a Ring; else the sender itself wants to talk."""
    description: Description
    candidates: Candidates


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """I do, and am reached like this."""

    call: CallId
    description: Description
    candidates: Candidates


class More(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """I am also reached here."""

    call: CallId
    candidates: Candidates


class End(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    """I do not go on with this call."""

    call: CallId


SignalMessage = Ring | Offer | Answer | More | End

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[SignalMessage] = msgspec.msgpack.Decoder(SignalMessage)


def encode_signal(message: SignalMessage) -> bytes:
    """The bytes of a signal."""
    return _encoder.encode(message)


def decode_signal(signal: bytes) -> SignalMessage:
    """The signal, or MalformedMessage."""
    if len(signal) > SIGNAL_BYTES_MAX:
        raise MalformedMessage(f"a signal of {len(signal)} bytes: {SIGNAL_BYTES_MAX} at most")
    try:
        return _decoder.decode(signal)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"no signal: {error}") from error
