"""Floodsub, by hand: who gets what, and what is dropped."""

from __future__ import annotations

import pytest

from shoal.base.errors import MalformedMessage
from shoal.base.ids import Contact, NodeId, node_id
from shoal.kernel.effects import Effect, Notify, OpenLink, Send
from shoal.kernel.inputs import CommandIssued, LinkClosed, LinkOpened, MessageReceived
from shoal_lab.baselines.floodsub import (
    PURPOSE,
    SEEN_NS,
    Connect,
    FloodArrived,
    Flooded,
    FloodSent,
    FloodsubCodec,
    FloodsubNode,
    Interests,
    PublishIn,
    SubscribeTo,
)

ME, A, B, C = [node_id(bytes([n]) * 20) for n in range(4)]


@pytest.fixture
def node() -> FloodsubNode:
    """Three neighbours: A and B want news, C wants sports; we want news."""
    made = FloodsubNode(ME)
    made.handle(CommandIssued(SubscribeTo(("news",))), 0)
    for peer, topic in ((A, "news"), (B, "news"), (C, "sports")):
        made.handle(LinkOpened(peer, PURPOSE), 0)
        made.handle(MessageReceived(peer, Interests((topic,))), 0)
    return made


def sent(effects: list[Effect]) -> list[tuple[object, tuple[NodeId, ...]]]:
    return [(e.message, e.peers) for e in effects if isinstance(e, Send)]


def test_neighbours_are_told_what_is_wanted() -> None:
    node = FloodsubNode(ME)
    dials = node.handle(CommandIssued(Connect((Contact(A), Contact(B)))), 0)
    assert dials == [OpenLink(Contact(A), PURPOSE), OpenLink(Contact(B), PURPOSE)]
    assert node.handle(LinkOpened(A, PURPOSE), 0) == [Send(Interests(()), (A,))]
    effects = node.handle(CommandIssued(SubscribeTo(("news",))), 0)
    assert effects == [Send(Interests(("news",)), (A,))]


def test_a_publication_goes_to_all_who_want_it(node: FloodsubNode) -> None:
    effects = node.handle(CommandIssued(PublishIn("news", b"x"), 7), 0)
    message = Flooded(bytes(ME), 1, "news", b"x")
    assert effects == [
        Notify(FloodSent(message, 7)),
        Notify(FloodArrived(message)),
        Send(message, (A, B)),
    ]
    again = node.handle(CommandIssued(PublishIn("sports", b"x"), 8), 0)
    assert sent(again) == [(Flooded(bytes(ME), 2, "sports", b"x"), (C,))]
    assert not [e for e in again if isinstance(e, Notify) and isinstance(e.event, FloodArrived)]


def test_what_comes_is_told_and_passed_on_once(node: FloodsubNode) -> None:
    message = Flooded(bytes(C), 1, "news", b"x")
    first = node.handle(MessageReceived(A, message), 0)
    assert first == [Notify(FloodArrived(message)), Send(message, (B,))]
    assert node.handle(MessageReceived(B, message), 1) == []
    node.check_invariants()


def test_it_does_not_go_back_to_its_author(node: FloodsubNode) -> None:
    assert sent(node.handle(MessageReceived(C, Flooded(bytes(B), 1, "news", b"")), 0)) == [
        (Flooded(bytes(B), 1, "news", b""), (A,))
    ]


def test_after_two_minutes_it_is_new_again(node: FloodsubNode) -> None:
    message = Flooded(bytes(C), 1, "news", b"x")
    node.handle(MessageReceived(A, message), 0)
    assert node.handle(MessageReceived(A, message), SEEN_NS - 1) == []
    assert node.state_bytes() > 0
    assert node.handle(MessageReceived(A, message), SEEN_NS) != []
    node.check_invariants()


def test_a_link_that_broke_is_not_made_again(node: FloodsubNode) -> None:
    assert node.handle(LinkClosed(A, PURPOSE, "crashed"), 0) == []
    effects = node.handle(CommandIssued(PublishIn("news", b"x"), 1), 0)
    assert [peers for _, peers in sent(effects)] == [(B,)]


def test_frames_are_read_as_they_were_written() -> None:
    codec = FloodsubCodec()
    for message in (Interests(("news", "sports")), Flooded(bytes(A), 3, "news", b"x")):
        assert codec.decode(codec.encode(message)) == message
    with pytest.raises(MalformedMessage):
        codec.decode(b"\x91\xa5nobody")
