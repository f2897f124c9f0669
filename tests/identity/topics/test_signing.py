"""Signatures of descriptors: who signs what, and that no bit of it can be changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.base.errors import BadSignature, MalformedMessage, RemoteError, UsageError
from shoal.identity import verify_signed
from shoal.identity.topics.cid import cid_of
from shoal.identity.topics.descriptor_codec import decode_descriptor, encode_descriptor
from shoal.identity.topics.descriptors import (
    Descriptor,
    EventDescriptor,
    EventMetadata,
    Signatures,
    TopicDescriptor,
    new_meta_topic,
    new_topic,
)
from shoal.identity.topics.event_signatures import (
    claims,
    core_cid,
    publish_event,
    sign_event,
    sign_topic,
    signatures_hold,
    signer_of,
)
from tests.identity.strategies import GROUP_ORDER
from tests.support.topics import (
    ALICE,
    BOB,
    CREATED_MS,
    META_CID,
    ONE,
    TOPIC_CID,
    event_of,
    flipped,
    peer,
)

PARENT = cid_of(b"the event before")
REQUESTED = sign_event(event_of(ALICE), ALICE)
OWN = publish_event(REQUESTED, ALICE, PARENT)
FOR_ALICE = publish_event(REQUESTED, BOB, PARENT)
META = sign_topic(new_meta_topic("news", peer(ALICE), CREATED_MS), ALICE)
TOPIC = sign_topic(
    new_topic("news", peer(ALICE), CREATED_MS, meta=META_CID, parent=TOPIC_CID), ALICE
)
SIGNED: dict[str, Descriptor] = {
    "requested": REQUESTED,
    "own": OWN,
    "first": publish_event(REQUESTED, ALICE, None),
    "for-alice": FOR_ALICE,
    "meta": META,
    "topic": TOPIC,
}


def accepted(block: bytes) -> bool:
    """Whether a receiver takes these bytes for a signed descriptor."""
    try:
        return signatures_hold(decode_descriptor(block))
    except RemoteError:
        return False


# The promise


@pytest.mark.parametrize("name", SIGNED)
def test_what_was_signed_is_accepted(name: str) -> None:
    assert accepted(encode_descriptor(SIGNED[name]))


@pytest.mark.parametrize("name", SIGNED)
def test_any_flipped_bit_is_rejected(name: str) -> None:
    block = encode_descriptor(SIGNED[name])
    assert not any(accepted(flipped(block, bit)) for bit in range(len(block) * 8))


@given(st.binary(max_size=300), st.booleans(), st.data())
def test_any_flipped_bit_of_any_event_is_rejected(
    payload: bytes, own: bool, data: st.DataObject
) -> None:
    asked = sign_event(event_of(ALICE, payload), ALICE)
    event = publish_event(asked, ALICE if own else BOB, data.draw(st.sampled_from([None, PARENT])))
    block = encode_descriptor(event)
    assert accepted(block)
    assert not accepted(flipped(block, data.draw(st.integers(0, len(block) * 8 - 1))))


# Who signs what


def test_the_author_signs_the_core_only() -> None:
    (claim,) = claims(REQUESTED)
    bare = event_of(ALICE)
    assert claim.signer == ALICE.address
    assert claim.signed[65:] == encode_descriptor(bare)
    assert verify_signed(claim.signer, claim.signed)
    assert core_cid(REQUESTED) == core_cid(FOR_ALICE) == cid_of(encode_descriptor(bare))


def test_the_publisher_signs_everything_else() -> None:
    author, publisher = claims(FOR_ALICE)
    assert author == claims(REQUESTED)[0]
    assert publisher.signer == BOB.address
    signatures = FOR_ALICE.metadata.signatures
    assert signatures is not None
    without = replace(
        FOR_ALICE, metadata=replace(FOR_ALICE.metadata, signatures=Signatures(signatures.author))
    )
    assert publisher.signed[65:] == encode_descriptor(without)


def test_an_event_of_the_publishers_own_is_checked_once() -> None:
    (claim,) = claims(OWN)
    assert claim.signer == ALICE.address
    assert decode_descriptor(claim.signed[65:]) == replace(
        OWN, metadata=replace(OWN.metadata, signatures=REQUESTED.metadata.signatures)
    )


def test_two_publishers_give_one_event_two_cids_and_one_core() -> None:
    assert encode_descriptor(OWN) != encode_descriptor(FOR_ALICE)
    assert core_cid(OWN) == core_cid(FOR_ALICE)
    assert core_cid(OWN) != core_cid(event_of(ALICE, b"other"))
    assert core_cid(OWN) != core_cid(event_of(BOB))


def test_an_author_signs_without_what_the_publisher_sets() -> None:
    placed = replace(event_of(ALICE), parent=PARENT, publisher=peer(BOB))
    assert sign_event(placed, ALICE) == REQUESTED


def test_signing_again_replaces_the_signature() -> None:
    assert sign_topic(TOPIC, ALICE) == TOPIC
    assert sign_event(FOR_ALICE, ALICE) == REQUESTED
    assert publish_event(FOR_ALICE, ALICE, PARENT) == OWN


# What is not signed


def test_a_descriptor_of_the_original_is_not_signed() -> None:
    with pytest.raises(BadSignature, match="its author has not signed"):
        claims(event_of(ALICE))
    with pytest.raises(BadSignature, match="its author has not signed"):
        claims(new_meta_topic("news", peer(ALICE), CREATED_MS))


def test_a_published_event_needs_its_publishers_signature() -> None:
    with pytest.raises(BadSignature, match="its publisher has not signed"):
        claims(replace(REQUESTED, publisher=peer(BOB)))


@pytest.mark.parametrize(
    "event", [replace(REQUESTED, parent=PARENT), replace(FOR_ALICE, publisher=None, parent=None)]
)
def test_an_unpublished_event_has_nothing_of_a_publisher(event: EventDescriptor) -> None:
    with pytest.raises(BadSignature, match="without publisher"):
        claims(event)


def test_only_keys_can_sign() -> None:
    signatures = Signatures(bytes(64))
    event = EventDescriptor(TOPIC_CID, ONE, b"", EventMetadata(CREATED_MS, signatures=signatures))
    with pytest.raises(MalformedMessage, match="a secp256k1 peer id has 39 bytes"):
        claims(event)
    assert not signatures_hold(event)
    assert signer_of(peer(ALICE)) == ALICE.address


@pytest.mark.parametrize("event", [OWN, FOR_ALICE])
def test_a_publisher_cannot_be_exchanged(event: EventDescriptor) -> None:
    other = peer(BOB if event is OWN else ALICE)
    assert not signatures_hold(replace(event, publisher=other))


def test_an_author_cannot_be_invented() -> None:
    forged = replace(REQUESTED, author=peer(BOB))
    assert not signatures_hold(publish_event(forged, ALICE, PARENT))


def test_one_signature_does_not_stand_for_the_other() -> None:
    signatures = FOR_ALICE.metadata.signatures
    assert signatures is not None
    assert signatures.publisher is not None
    swapped = Signatures(signatures.publisher, signatures.author)
    assert not signatures_hold(
        replace(FOR_ALICE, metadata=replace(FOR_ALICE.metadata, signatures=swapped))
    )


@pytest.mark.parametrize("descriptor", [TOPIC, OWN])
def test_the_other_s_is_refused(descriptor: TopicDescriptor | EventDescriptor) -> None:
    signatures = descriptor.metadata.signatures
    assert signatures is not None
    topic = isinstance(descriptor, TopicDescriptor)
    low = signatures.author if topic else signatures.publisher
    assert low is not None
    high = low[:32] + (GROUP_ORDER - int.from_bytes(low[32:], "big")).to_bytes(32, "big")
    changed = Signatures(high) if topic else Signatures(signatures.author, high)
    metadata = replace(descriptor.metadata, signatures=changed)
    assert not signatures_hold(replace(descriptor, metadata=metadata))


# Misuse


def test_another_key_cannot_sign_for_the_author() -> None:
    with pytest.raises(UsageError, match="sign with the author's"):
        sign_event(event_of(ALICE), BOB)
    with pytest.raises(UsageError, match="sign with the author's"):
        sign_topic(new_meta_topic("news", ONE, CREATED_MS), ALICE)


def test_an_event_is_signed_before_it_is_published() -> None:
    with pytest.raises(UsageError, match="sign_event first"):
        publish_event(event_of(ALICE), BOB, None)
