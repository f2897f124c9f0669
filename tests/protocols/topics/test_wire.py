"""The codec port, and the claims on links that all topics share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import RemoteError
from shoal.kernel.effects import CloseLink, OpenLink
from shoal.kernel.machine import TOPICS, Codec
from shoal.protocols.topics.messages import Message, Rpc
from shoal.protocols.topics.tree import PURPOSE, Links
from shoal.protocols.topics.wire import TopicsCodec, encode_rpc
from tests.support.topic_bench import contact_of
from tests.support.topics import messages

CODEC: Codec = TopicsCodec()
A, B = contact_of(1), contact_of(2)


@given(st.lists(messages, min_size=1, max_size=3))
def test_a_frame_is_an_rpc(several: list[Message]) -> None:
    rpc = Rpc(tuple(several))
    assert CODEC.decode(CODEC.encode(rpc)) == rpc
    assert CODEC.encode(rpc) == encode_rpc(several)


@pytest.mark.parametrize("frame", [b"", b"\x0a", bytes(600_000), b"\x0a\x00"])
def test_other_bytes_are_the_fault_of_who_sent_them(frame: bytes) -> None:
    with pytest.raises(RemoteError):
        CODEC.decode(frame)


def test_its_number_is_its_own() -> None:
    assert (CODEC.number, CODEC.messages) == (TOPICS, (Rpc,))


def test_a_link_is_claimed_once_and_given_back_by_the_last() -> None:
    links = Links()
    assert links.hold(A, "one") == [OpenLink(A, PURPOSE)]
    assert links.hold(A, "two") == []
    assert links.release(A.node, "nobody") == []
    assert links.release(A.node, "one") == []
    assert links.release(A.node, "one") == []
    assert links.release(A.node, "two") == [CloseLink(A.node, PURPOSE)]
    assert links.release(A.node, "two") == []
    assert links.hold(A, "one") == [OpenLink(A, PURPOSE)]


def test_all_who_wait_for_a_link_hear_that_it_is_up_and_that_it_is_gone() -> None:
    links = Links()
    links.hold(A, "one")
    links.hold(A, "two")
    assert links.opened(B.node) == [], "nobody wants it"
    assert links.opened(A.node) == ["one", "two"]
    assert list(links.up) == [A.node]
    assert links.lost(A.node) == ["one", "two"]
    assert links.lost(A.node) == []
    assert list(links.up) == []
    assert links.release(A.node, "one") == [], "the claim went with the link"
