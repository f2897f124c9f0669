"""Signed documents: what people put into the network to be found.

Its owner and its name make a document what it is; versions replace each other, and the newest wins
wherever two of them meet. An owner that signs two different documents as one version has
equivocated: the one with the larger digest wins then, everywhere the same. A deletion is a version
without content. It is kept like any other, so that older versions that are still under way find
something newer.

How long a document is kept, and by whom:

    instant    not at all: an event that passes by, for standing queries
    fading     by whoever it reached, until it expires
    managed    the same, as long as its owner casts it again
    durable    by the network, with or without its owner (durable.py)

The owner signs the end of each; nobody can make a document live longer.

Data of an application's space (spaces.py) is a document as well: its content is bytes, and its kind
is the name of the space.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from shoal.base.errors import MalformedMessage, UsageError
from shoal.base.ids import INT63_MAX, Count, NodeId, WireNodeId
from shoal.base.units import KIB, MS_NS, S_NS
from shoal.identity import SIGNATURE_BYTES, PrivateKey
from shoal.protocols.search.config import PAYLOAD_BYTES_MAX

Life = Literal["instant", "fading", "managed", "durable"]
Kind = Literal["document", "stream", "topic", "event"]
"""Of JSON documents; any other kind is a space of an application."""

DOCUMENTS = ""  # the name of the space that JSON documents are in
SPACE_NAME = r"[a-z][a-z0-9._-]{0,31}"

DOCUMENT_ID_BYTES = 16
DIGEST_BYTES = 16
NAME_CHARS_MAX = 128
CONTENT_BYTES_MAX = PAYLOAD_BYTES_MAX - 1 * KIB  # a bubble carries it, with all that is around it
DOCUMENT_BYTES_MAX = PAYLOAD_BYTES_MAX - 16  # signed, and inside a payload

_MINUTE_NS = 60 * S_NS
_DAY_NS = 24 * 60 * _MINUTE_NS

LIFE_NS_MAX: Mapping[Life, int] = {
    "instant": 10 * _MINUTE_NS,  # as long as a bubble may be under way, with clocks that differ
    "fading": 1 * _DAY_NS,  # nobody looks after it
    "managed": 7 * _DAY_NS,  # who is there to look after it can sign the next version in time
    "durable": 365 * _DAY_NS,  # its owner may be gone for long, but not for ever
}

_ID_DOMAIN = b"shoal/search/document\0"
_DATA_DOMAIN = b"shoal/search/data\0"
KINDS: tuple[str, ...] = get_args(Kind)

DocumentId = Annotated[bytes, Meta(min_length=DOCUMENT_ID_BYTES, max_length=DOCUMENT_ID_BYTES)]
Digest = Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]


class _Body(msgspec.Struct, frozen=True, array_like=True, tag="shoal/search/document/1", gc=False):
    """What is signed. The tag keeps the signature from meaning anything else."""

    owner: WireNodeId
    name: Name
    version: Count
    life: Life
    expires_ms: Count
    kind: Annotated[str, Meta(pattern=rf"^{SPACE_NAME}\Z")]
    content: Annotated[bytes, Meta(max_length=CONTENT_BYTES_MAX)]


class Document(msgspec.Struct, frozen=True, gc=False):
    """One version of a document. Believed once its signature was checked: the signer is its owner.
    Made by sign_document() and read_document() only."""

    owner: NodeId
    name: str
    version: int
    life: Life
    expires_ms: int
    kind: str
    content: bytes
    """A JSON object, or the bytes of an application; nothing: deleted."""
    signature: bytes
    digest: bytes
    """Of all that is signed."""

    @property
    def id(self) -> bytes:
        """The same for all versions."""
        return document_id(self.owner, self.name, self.space)

    @property
    def space(self) -> str:
        """Which questions it meets."""
        return space_of(self.kind)

    @property
    def rank(self) -> tuple[int, bytes]:
        """Of two versions, the one with the larger rank wins."""
        return self.version, self.digest

    @property
    def deleted(self) -> bool:
        """Whether this version says that there is no document any more."""
        return not self.content

    @property
    def expires_ns(self) -> int:
        """Nobody has it from then on."""
        return self.expires_ms * MS_NS

    @property
    def value(self) -> dict[str, Any]:
        """What a JSON document says; nothing, if it is deleted."""
        return _objects.decode(self.content) if self.content else {}

    @property
    def signed(self) -> bytes:
        """Signature and body, as Verify takes them, and as documents travel."""
        return self.signature + _encode(
            _Body(
                *(self.owner, self.name, self.version, self.life),
                *(self.expires_ms, self.kind, self.content),
            )
        )


_encode = msgspec.msgpack.Encoder().encode
_bodies = msgspec.msgpack.Decoder(_Body)
_objects = msgspec.json.Decoder(dict[str, Any])


def space_of(kind: str) -> str:
    """Documents of all kinds are in one space."""
    return DOCUMENTS if kind in KINDS else kind


def document_id(owner: NodeId, name: str, space: str = DOCUMENTS) -> bytes:
    """What tells one document from another; names are those of an owner in a space."""
    domain = _ID_DOMAIN if space == DOCUMENTS else b"%b%b\0" % (_DATA_DOMAIN, space.encode())
    return sha256(domain + owner + name.encode()).digest()[:DOCUMENT_ID_BYTES]


def sign_document(
    key: PrivateKey,
    name: str,
    content: Mapping[str, Any] | bytes | None,
    *,
    version: int,
    life: Life,
    expires_ms: int,
    kind: str = "document",
) -> Document:
    """A version of a document of the key's own node; without content, its deletion. Content is
    bytes if the kind is a space of an application."""
    if not 1 <= len(name) <= NAME_CHARS_MAX:
        raise UsageError(f"a name has 1 to {NAME_CHARS_MAX} characters, {name[:40]!r} {len(name)}")
    if life not in get_args(Life) or not re.fullmatch(SPACE_NAME, kind):
        raise UsageError(f"life {life!r}, kind {kind!r}: write one of {Life}, one of {Kind}")
    if isinstance(content, bytes) != (content is not None and kind not in KINDS):
        raise UsageError(
            f"document {name!r} of kind {kind!r}: give a JSON object for {Kind}, bytes for a space"
        )
    if content == b"":
        raise UsageError(f"document {name!r} has no bytes: that would be its deletion")
    if not (0 <= version <= INT63_MAX and 0 <= expires_ms <= INT63_MAX):
        raise UsageError(f"version {version}, expires_ms {expires_ms}: write 0 to {INT63_MAX}")
    try:
        raw = content if isinstance(content, bytes) else b""
        if isinstance(content, Mapping):
            raw = msgspec.json.encode(dict(content))
        body = _Body(key.address, name, version, life, expires_ms, kind, raw)
        encoded = _encode(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"document {name!r} is no JSON object: {error}") from None
    if problem := _problem(body):
        raise UsageError(f"document {name!r}: {problem}")
    return _document(body, key.sign(encoded), encoded)


def read_document(signed: bytes) -> Document:
    """A document as it travels; MalformedMessage if it is none. The signature is not checked."""
    signature, encoded = signed[:SIGNATURE_BYTES], signed[SIGNATURE_BYTES:]
    try:
        body = _bodies.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"no document: {error}") from None
    # One document has one spelling: digests decide who wins.
    problem = "its bytes are not the ones we would write" if _encode(body) != encoded else ""
    if problem := problem or _problem(body):
        raise MalformedMessage(f"no document: {problem}")
    return _document(body, signature, encoded)


def _problem(body: _Body) -> str:
    """Why this cannot be a document, or nothing."""
    if len(body.content) > CONTENT_BYTES_MAX:
        return f"{len(body.content)} bytes, {CONTENT_BYTES_MAX} are the most: put it in parts"
    if body.life == "instant" and not body.content:
        return "nobody keeps an instant document, so nobody can delete it"
    if body.content and body.kind in KINDS:
        try:
            _objects.decode(body.content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return f"its content is no JSON object: {error}"
    return ""


def _document(body: _Body, signature: bytes, encoded: bytes) -> Document:
    return Document(
        *(body.owner, body.name, body.version, body.life, body.expires_ms, body.kind),
        *(body.content, signature, sha256(encoded).digest()[:DIGEST_BYTES]),
    )
