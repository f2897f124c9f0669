"""Who signs which bytes of a descriptor, and what an event is known by.

topic   its author signs all of it but the signature. Author and publisher are one, so the parent
        is signed, too: nobody else ever sets it.
event   its author signs the core: publisher null, parent empty, no signatures. Whoever publishes
        it sets publisher and parent, and signs everything but its own signature.

The core is what makes two events the same: one that was asked for at two publishers gets two
parents and two CIDs, and is delivered once.

A signature here is r || s, without the recovery bit that signatures.py uses as a hint only: a bit
that nobody checks would let anyone make a second CID of the same event. The key is in the peer id,
so the hint is not missed. High s is refused by signatures.py, for the same reason.

An event that is its author's own (publisher = author) has two signatures of one key, the second
over the first. The second alone is checked: it vouches for every byte, and takes half the time.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec
from msgspec.structs import replace

from shoal.base.errors import BadSignature, MalformedMessage, UsageError
from shoal.base.ids import NodeId
from shoal.identity import PrivateKey, PublicKey, peer_id_of_bytes, verify_signed
from shoal.identity.topics.cid import Cid, cid_of
from shoal.identity.topics.descriptor_codec import encode_descriptor, encode_event
from shoal.identity.topics.descriptors import (
    SIGNATURE_BYTES,
    Descriptor,
    EventDescriptor,
    Signatures,
    TopicDescriptor,
)

SIGNERS_MAX = 4096  # as many keys as signatures.py remembers
_NO_HINT = b"\0"


class Claim(msgspec.Struct, frozen=True, gc=False):
    """That somebody signed something: the content of the kernel's Verify effect."""

    signer: NodeId
    signed: bytes


# Signing


def sign_topic(topic: TopicDescriptor, author: PrivateKey) -> TopicDescriptor:
    """The topic, signed."""
    _expect_key("author", topic.author, author)
    signatures = Signatures(_sign(author, _topic_body(topic)))
    return replace(topic, metadata=replace(topic.metadata, signatures=signatures))


def sign_event(event: EventDescriptor, author: PrivateKey) -> EventDescriptor:
    """The event as its author hands it to a publisher: the core, signed."""
    _expect_key("author", event.author, author)
    core = _core(event)
    signatures = Signatures(_sign(author, _core_body(core)))
    return replace(core, metadata=replace(core.metadata, signatures=signatures))


def publish_event(
    event: EventDescriptor, publisher: PrivateKey, parent: Cid | None
) -> EventDescriptor:
    """The event as it goes out: linked to its parent, and signed by its publisher as well."""
    if event.metadata.signatures is None:
        raise UsageError("an event is published once its author has signed it: sign_event first")
    placed = replace(event, publisher=bytes(publisher.public.peer_id), parent=parent)
    signatures = Signatures(
        event.metadata.signatures.author, _sign(publisher, _publisher_body(placed))
    )
    return replace(placed, metadata=replace(placed.metadata, signatures=signatures))


# Checking


def core_cid(event: EventDescriptor) -> Cid:
    """What the event is known by, whoever publishes it after whichever parent."""
    return cid_of(_core_body(event))


def claims(descriptor: Descriptor) -> tuple[Claim, ...]:
    """What must be verified before the descriptor is believed; BadSignature if it is not signed
    by all who have to, MalformedMessage if one of them is named by something else than a key."""
    if isinstance(descriptor, TopicDescriptor):
        signatures = _signatures(descriptor)
        return (_claim(descriptor.author, signatures.author, _topic_body(descriptor)),)
    return _event_claims(descriptor)


def signatures_hold(descriptor: Descriptor) -> bool:
    """Whether the descriptor is signed by all who have to; for those who need not wait."""
    try:
        return all(verify_signed(claim.signer, claim.signed) for claim in claims(descriptor))
    except (BadSignature, MalformedMessage):
        return False


def _event_claims(event: EventDescriptor) -> tuple[Claim, ...]:
    signatures = _signatures(event)
    if event.publisher is None:
        if event.parent is not None or signatures.publisher is not None:
            raise BadSignature("an event without publisher has a parent or a publisher's signature")
        return (_claim(event.author, signatures.author, _core_body(event)),)
    if signatures.publisher is None:
        raise BadSignature("its publisher has not signed this event")
    published = _claim(event.publisher, signatures.publisher, _publisher_body(event))
    if event.publisher == event.author:
        return (published,)
    authored = _claim(event.author, signatures.author, _core_body(event))
    return (authored, published)


def _signatures(descriptor: Descriptor) -> Signatures:
    signatures = descriptor.metadata.signatures
    if signatures is None:
        raise BadSignature("its author has not signed this descriptor")
    return signatures


def _claim(peer: bytes, signature: bytes, body: bytes) -> Claim:
    return Claim(signer_of(peer), signature + _NO_HINT + body)


@lru_cache(maxsize=SIGNERS_MAX)
def signer_of(peer: bytes) -> NodeId:
    """The node id of a peer; MalformedMessage unless the peer is named by a secp256k1 key."""
    return PublicKey.from_peer_id(peer_id_of_bytes(peer)).address


# The bytes


def _core(event: EventDescriptor) -> EventDescriptor:
    return replace(
        event, publisher=None, parent=None, metadata=replace(event.metadata, signatures=None)
    )


def _topic_body(topic: TopicDescriptor) -> bytes:
    unsigned = replace(topic, metadata=replace(topic.metadata, signatures=None))
    return encode_descriptor(unsigned)


def _core_body(event: EventDescriptor) -> bytes:
    return encode_event(event, None, None, None)


def _publisher_body(event: EventDescriptor) -> bytes:
    signatures = Signatures(_signatures(event).author)
    return encode_event(event, event.publisher, event.parent, signatures)


def _sign(key: PrivateKey, body: bytes) -> bytes:
    return key.sign(body)[:SIGNATURE_BYTES]


def _expect_key(role: str, peer: bytes, key: PrivateKey) -> None:
    if peer != key.public.peer_id:
        raise UsageError(
            f"the {role} is {peer.hex()}, this key is of {key.public.peer_id.hex()}:"
            f" sign with the {role}'s"
        )


def is_signed_by_a_key(topic: TopicDescriptor) -> bool:
    """Whether the author is a node that can be found: one that is named by its key."""
    try:
        signer_of(topic.author)
    except MalformedMessage:
        return False
    return True
