"""Session descriptions (SDP, RFC 8866) of connections that have one data channel. Pure.

What goes to a peer is taken out of our engine's text, and what comes from a peer is put into a
text of ours: nothing that a peer says is parsed as SDP.
"""

from __future__ import annotations

import re

from shoal.transport.signalling import Candidate, Description

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
