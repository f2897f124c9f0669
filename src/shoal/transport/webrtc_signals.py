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

import re
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


# Session descriptions (SDP, RFC 8866) of connections that have one data channel. Pure.
#
# What goes to a peer is taken out of our engine's text, and what comes from a peer is put into a
# text of ours: nothing that a peer says is parsed as SDP.


SCTP_MESSAGE_BYTES_MAX = 256 * 1024  # what engines promise each other; ours are far shorter

_OFFER_SETUP, _ANSWER_SETUP = "actpass", "active"

_TEXT = """v=0
o=- 1 2 IN IP4 127.0.0.1
s=-
t=0 0
a=group:BUNDLE 0
m=application 9 UDP/DTLS/SCTP webrtc-datachannel
c=IN IP4 0.0.0.0
a=ice-ufrag:{user}
a=ice-pwd:{password}
a=ice-options:trickle
a=fingerprint:sha-256 {fingerprint}
a=setup:{setup}
a=mid:0
a=sctp-port:5000
a=max-message-size:{size}
"""

_USER = re.compile(r"^a=ice-ufrag:(\S+)", re.MULTILINE)
_PASSWORD = re.compile(r"^a=ice-pwd:(\S+)", re.MULTILINE)
_FINGERPRINT = re.compile(r"^a=fingerprint:sha-256 ([0-9A-Fa-f:]{95})", re.MULTILINE)
_CANDIDATE = re.compile(
    r"candidate:(\S+) 1 udp (\d+) (\S+) (\d+) typ (host|srflx|prflx|relay)", re.IGNORECASE
)


def read_description(text: str) -> Description:
    """What a peer must know of our own text; ValueError if it has no such thing."""
    user, password = _USER.search(text), _PASSWORD.search(text)
    fingerprint = _FINGERPRINT.search(text)
    if user is None or password is None or fingerprint is None:
        raise ValueError(f"no credentials or no SHA-256 fingerprint in {text!r}")
    digest = bytes.fromhex(fingerprint[1].replace(":", ""))
    return Description(user[1], password[1], digest)


def write_description(description: Description, *, offer: bool) -> str:
    """The text for our engine of what a peer said of itself."""
    text = _TEXT.format(
        user=description.user,
        password=description.password,
        fingerprint=description.fingerprint.hex(":").upper(),
        setup=_OFFER_SETUP if offer else _ANSWER_SETUP,
        size=SCTP_MESSAGE_BYTES_MAX,
    )
    return text.replace("\n", "\r\n")


def read_candidate(text: str) -> Candidate | None:
    """A candidate of ours; None for one that is of no use to a peer: not over UDP, or hidden
    behind a name."""
    found = _CANDIDATE.match(text)
    if found is None or not re.fullmatch(r"[0-9a-fA-F.:]+", found[3]):
        return None
    foundation, priority, ip, port, kind = found.groups()
    return Candidate(foundation, int(priority), ip, int(port), kind.lower())  # type: ignore[arg-type]


def write_candidate(candidate: Candidate) -> str:
    """The text for our engine of a peer's candidate."""
    return (
        f"candidate:{candidate.foundation} 1 udp {candidate.priority} "
        f"{candidate.ip} {candidate.port} typ {candidate.kind}"
    )
