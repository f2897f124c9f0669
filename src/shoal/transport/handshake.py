"""The link handshake: a mutual signed challenge. Pure: bytes in, bytes out.

    dialler                       acceptor
       | Hello ---------> <--------- Hello |     who, which versions, a nonce, an ephemeral key
       | Proof ---------> <--------- Proof |     a signature over both Hellos
       | frames                     frames |

Theory of operation. A proof signs (tag, side, both Hellos as sent, channel binding, the id that
the signer talks to). Hence nobody can use one elsewhere: another tag keeps it from being a stream
message, the side from being sent back to its maker, the nonces from being used twice, the id from
being shown to somebody else. Whoever merely passes Hellos and Proofs on gets two ends that are
authenticated to each other, and no part in what they say:

- under TLS the binding is the digest of the server's certificate, so that both ends know that the
  encrypted channel ends where the proofs were made. The certificate's key must be this node's
  alone: whoever shares it can sit in between.
- on a plain channel the binding is empty, and the signed ephemeral keys agree on one MAC key for
  each direction (framing.py).

Versions. Each side names the oldest and newest version that it speaks; the highest common one is
taken. Both ranges are signed, so nobody can talk two peers down. A later version may append
fields to Hello: a reader ignores what follows those that it knows. The session record is such a
field: it says which run of the node this is (identity/session.py).
"""

from __future__ import annotations

import enum
import hashlib
from typing import Annotated, Literal, get_args

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta

from shoal.base.errors import MalformedMessage, RemoteError, UsageError
from shoal.base.ids import NodeId, short_node_id
from shoal.identity import SIGNATURE_BYTES, PublicKey, verify
from shoal.identity.session_record import NO_SESSION, SessionRecord
from shoal.transport.port import Credentials, PeerInfo

LINK_TAG = "shoal/link/1"

HELLO_BYTES_MAX = 4096  # every field at its bound fits
NONCE_BYTES = 32
EPHEMERAL_BYTES = 32
MAC_KEY_BYTES = 32
VERSION_MAX = 65535
FEATURES_MAX = 32
ROLES_MAX = 16

Side = Literal["dialler", "acceptor"]

Reason = Literal["malformed", "oversized", "self", "signature", "version", "wrong-peer"]
# The latter come from transports.
REFUSALS = (
    *get_args(Reason),
    *("busy", "closed", "foreign-host", "foreign-page", "same-address", "timeout"),
)

Name = Annotated[str, Meta(pattern=r"^[a-z0-9._/-]{1,32}\Z")]
Version = Annotated[int, Meta(ge=1, le=VERSION_MAX)]


class HandshakeFailed(RemoteError):
    """The peer did not prove who it is, or cannot talk to us."""

    def __init__(self, reason: Reason, detail: str) -> None:
        """The reason is one of REFUSALS, to be counted; the detail is for people."""
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="shoal", gc=False):
    """What a side says of itself, before it proves any of it."""

    version_newest: Version
    version_oldest: Version
    features: Annotated[tuple[Name, ...], Meta(max_length=FEATURES_MAX)]
    roles: Annotated[tuple[Name, ...], Meta(max_length=ROLES_MAX)]
    public_key: Annotated[bytes, Meta(min_length=33, max_length=33)]
    nonce: Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
    ephemeral: Annotated[bytes, Meta(min_length=EPHEMERAL_BYTES, max_length=EPHEMERAL_BYTES)]


class SessionHello(Hello, frozen=True, array_like=True, tag="shoal", gc=False):
    """The same with the field that was appended; a node without a session does not send it."""

    session: SessionRecord = NO_SESSION


class Transcript(msgspec.Struct, frozen=True, array_like=True, tag=LINK_TAG, gc=False):
    """What a proof signs, and what the keys are derived from."""

    side: str
    dialler_hello: bytes
    acceptor_hello: bytes
    binding: bytes
    talks_to: bytes


class Session(msgspec.Struct, frozen=True):
    """The fruit of a handshake; the MAC keys are there on a plain channel only."""

    peer: PeerInfo
    send_key: bytes | None
    receive_key: bytes | None


class State(enum.Enum):
    """What a handshake waits for."""

    HELLO = "hello"
    PROOF = "proof"
    DONE = "done"
    FAILED = "failed"


_encoder = msgspec.msgpack.Encoder()
_hello_decoder = msgspec.msgpack.Decoder(SessionHello)


class Handshake:
    """One side of one handshake. Send `hello`, feed what comes in to `receive`, until `session`."""

    def __init__(
        self,
        credentials: Credentials,
        expects: NodeId | None = None,
        binding: bytes = b"",
        *,
        side: Side | None = None,
    ) -> None:
        """A dialler names the peer that it expects; an acceptor need not, and expects anyone then.
        Without a side, it follows from that.

        The binding identifies an encrypted channel, alike on both sides; it is empty on a plain
        one.
        """
        self.side: Side = side or ("acceptor" if expects is None else "dialler")
        self.state = State.HELLO
        self.session: Session | None = None
        self._credentials = credentials
        self._expects = expects
        self._binding = binding
        oldest, newest = credentials.versions
        nonce = credentials.entropy.token(NONCE_BYTES)
        self._ephemeral = X25519PrivateKey.from_private_bytes(
            credentials.entropy.token(EPHEMERAL_BYTES)
        )
        self._hello = SessionHello(
            version_newest=newest,
            version_oldest=oldest,
            features=credentials.features,
            roles=credentials.roles,
            public_key=credentials.key.public.to_bytes(),
            nonce=nonce,
            ephemeral=self._ephemeral.public_key().public_bytes_raw(),
            session=credentials.session,
        )
        self.hello = _encode_hello(self._hello)
        try:
            _decode_hello(self.hello)
        except HandshakeFailed as error:
            raise UsageError(f"these credentials fit no handshake: {error}") from error

    def receive(self, message: bytes) -> bytes | None:
        """Take the peer's next message; the bytes to send in return, if any, or HandshakeFailed."""
        try:
            if self.state is State.HELLO:
                proof = self._receive_hello(message)
                self.state = State.PROOF
                return proof
            if self.state is State.PROOF:
                self.session = self._receive_proof(message)
                self.state = State.DONE
                return None
        except HandshakeFailed:
            self.state = State.FAILED
            raise
        raise UsageError(f"this handshake is over ({self.state.value}): feed the link instead")

    def _receive_hello(self, message: bytes) -> bytes:
        hello = _decode_hello(message)
        self._version = _common_version(self._hello, hello)
        if hello.public_key == self._hello.public_key:
            # A mirror in the way, or a contact list that leads back to us.
            raise HandshakeFailed("self", "the peer has our own key")
        try:
            node = PublicKey.from_bytes(hello.public_key).address
        except MalformedMessage as error:
            raise HandshakeFailed("malformed", str(error)) from error
        if self._expects is not None and node != self._expects:
            raise HandshakeFailed(
                "wrong-peer",
                f"{short_node_id(node)} is there, {short_node_id(self._expects)} was expected",
            )
        self._peer_hello, self._peer_hello_bytes, self._peer = hello, message, node
        return self._credentials.key.sign(self._signed_by(self.side, talks_to=node))

    def _receive_proof(self, message: bytes) -> Session:
        if len(message) != SIGNATURE_BYTES:
            raise HandshakeFailed(
                "malformed", f"a proof has {SIGNATURE_BYTES} bytes, not {len(message)}"
            )
        other: Side = "dialler" if self.side == "acceptor" else "acceptor"
        signed = self._signed_by(other, talks_to=self._credentials.key.address)
        if not verify(self._peer, signed, message):
            raise HandshakeFailed(
                "signature",
                f"{short_node_id(self._peer)} did not sign this handshake over this channel",
            )
        dialler_key, acceptor_key = (None, None) if self._binding else self._mac_keys()
        mine, theirs = (
            (dialler_key, acceptor_key) if self.side == "dialler" else (acceptor_key, dialler_key)
        )
        return Session(self._peer_info(), send_key=mine, receive_key=theirs)

    def _peer_info(self) -> PeerInfo:
        features = set(self._hello.features) & set(self._peer_hello.features)
        return PeerInfo(
            node=self._peer,
            version=self._version,
            roles=self._peer_hello.roles,
            features=tuple(sorted(features)),
            session=self._peer_hello.session,
        )

    def _signed_by(self, side: str, talks_to: bytes) -> bytes:
        mine, theirs = self.hello, self._peer_hello_bytes
        dialler, acceptor = (mine, theirs) if self.side == "dialler" else (theirs, mine)
        return _encoder.encode(Transcript(side, dialler, acceptor, self._binding, talks_to))

    def _mac_keys(self) -> tuple[bytes, bytes]:
        """One key for each direction, the dialler's first."""
        try:
            shared = self._ephemeral.exchange(
                X25519PublicKey.from_public_bytes(self._peer_hello.ephemeral)
            )
        except ValueError as error:  # a point of low order: the result would be no secret
            raise HandshakeFailed("malformed", "the ephemeral key is no key") from error
        transcript = hashlib.sha256(self._signed_by("both", talks_to=b"")).digest()
        keys = HKDF(SHA256(), 2 * MAC_KEY_BYTES, salt=transcript, info=b"shoal/link/1 mac").derive(
            shared
        )
        return keys[:MAC_KEY_BYTES], keys[MAC_KEY_BYTES:]


def _encode_hello(hello: SessionHello) -> bytes:
    if hello.session.number:
        return _encoder.encode(hello)
    fields = {name: getattr(hello, name) for name in Hello.__struct_fields__}
    return _encoder.encode(Hello(**fields))


def _decode_hello(message: bytes) -> SessionHello:
    if len(message) > HELLO_BYTES_MAX:
        raise HandshakeFailed("oversized", f"a Hello of {len(message)} bytes")
    try:
        hello = _hello_decoder.decode(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HandshakeFailed("malformed", f"no Hello: {error}") from error
    if hello.version_oldest > hello.version_newest:
        raise HandshakeFailed(
            "malformed", f"versions {hello.version_oldest} to {hello.version_newest}"
        )
    return hello


def _common_version(mine: Hello, theirs: Hello) -> int:
    """The highest version that both speak."""
    version = min(mine.version_newest, theirs.version_newest)
    if version < max(mine.version_oldest, theirs.version_oldest):
        raise HandshakeFailed(
            "version",
            f"we speak {mine.version_oldest} to {mine.version_newest},"
            f" the peer {theirs.version_oldest} to {theirs.version_newest}",
        )
    return version
