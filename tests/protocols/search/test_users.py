"""Connections of applications over the links of their nodes."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.base.errors import UsageError
from shoal.base.units import S_NS
from shoal.protocols.search.commands import (
    CloseUser,
    ConnectUser,
    ListenUser,
    SendUser,
    UserArrived,
    UserClosed,
    UserOpened,
    UserReceived,
    UserRefused,
)
from shoal.protocols.search.config import USER_DATA_BYTES_MAX, SearchConfig
from shoal.protocols.search.messages import (
    UserAccept,
    UserConnect,
    UserData,
    UserEnd,
    UserRefuse,
)
from tests.support.circle import ME, CircleBench, Peer

ANN = next(peer for peer in map(Peer, range(50, 99)) if peer.node > ME.node)
BEN = next(peer for peer in map(Peer, range(50, 99)) if peer.node < ME.node)
USER_MESSAGES = (UserConnect, UserAccept, UserRefuse, UserData, UserEnd)


class UserBench(CircleBench):
    def __init__(self, config: SearchConfig | None = None) -> None:
        super().__init__(config=config)
        self._heard = 0
        self._sent = 0

    def do(self, command: Any, token: object = None) -> list[Any]:
        self.host.command(self.machine, command, token)
        self.run()
        return self.said()

    def hears(self, peer: Peer, message: Any) -> list[Any]:
        self.says(peer, message)
        return self.said()

    def said(self) -> list[Any]:
        sent, self._sent = self.host.sent[self._sent :], len(self.host.sent)
        return [message for _, message in sent if isinstance(message, USER_MESSAGES)]

    def told(self) -> list[Any]:
        told, self._heard = self.host.notified[self._heard :], len(self.host.notified)
        return [event for event in told if type(event).__name__.startswith("User")]

    def connect(self, peer: Peer = ANN) -> int:
        """Ask for a connection that is accepted."""
        (asked,) = self.do(ConnectUser(peer.contact, "chat"), "t")
        self.hears(peer, UserAccept(asked.connection))
        assert self.told() == [UserOpened(peer.node, asked.connection, "t")]
        number: int = asked.connection
        return number


def test_a_connection_opens_talks_and_ends() -> None:
    bench = UserBench()
    number = bench.connect()
    assert bench.do(SendUser(ANN.node, number, b"hello")) == [UserData(number, b"hello")]
    bench.hears(ANN, UserData(number, b"hello yourself"))
    bench.hears(ANN, UserEnd(number))
    assert bench.told() == [
        UserReceived(ANN.node, number, b"hello yourself"),
        UserClosed(ANN.node, number),
    ]
    assert bench.do(SendUser(ANN.node, number, b"more")) == []
    assert bench.do(CloseUser(ANN.node, number)) == []


def test_somebody_calls() -> None:
    bench = UserBench()
    bench.do(ListenUser("chat"))
    assert bench.hears(ANN, UserConnect(3, "chat")) == [UserAccept(3)]
    assert bench.told() == [UserArrived(ANN.node, 3, "chat")]
    assert bench.do(CloseUser(ANN.node, 3)) == [UserEnd(3)]


def test_a_type_that_nobody_listens_to_is_refused() -> None:
    bench = UserBench()
    bench.do(ListenUser("chat"))
    assert bench.hears(ANN, UserConnect(3, "files")) == [UserRefuse(3, "no such type here")]
    bench.do(ListenUser("chat", accept=False))
    assert bench.hears(ANN, UserConnect(3, "chat")) == [UserRefuse(3, "no such type here")]
    assert bench.told() == []


def test_numbers_of_both_ends_keep_apart() -> None:
    bench = UserBench()
    bench.do(ListenUser("chat"))
    assert bench.connect(ANN) % 2 == 0
    assert bench.connect(BEN) % 2 == 1
    for peer, wrong in ((ANN, 2), (BEN, 3)):
        assert bench.hears(peer, UserConnect(wrong, "chat")) == []
    bench.hears(ANN, UserConnect(5, "chat"))
    assert bench.hears(ANN, UserConnect(5, "chat")) == []  # it is open
    assert bench.rejected == ["not-its-number"] * 3


def test_a_refusal_is_told() -> None:
    bench = UserBench()
    (asked,) = bench.do(ConnectUser(ANN.contact, "chat"), "t")
    bench.hears(ANN, UserRefuse(asked.connection, "not now"))
    assert bench.told() == [UserRefused("not now", "t")]
    bench.hears(ANN, UserAccept(asked.connection))
    assert bench.rejected == ["not-asked"]


def test_who_cannot_be_reached_is_told_so() -> None:
    bench = UserBench()
    bench.held[ANN.node] = None
    bench.do(ConnectUser(ANN.contact, "chat"), 1)
    bench.do(ConnectUser(ANN.contact, "chat"), 2)
    bench.fail(ANN)
    assert bench.told() == [
        UserRefused("cannot be reached", 1),
        UserRefused("cannot be reached", 2),
    ]


def test_connections_go_with_their_link() -> None:
    bench = UserBench()
    number = bench.connect()
    bench.do(ConnectUser(ANN.contact, "chat"), "asked")
    bench.connect(BEN)
    bench.crash(ANN)
    assert bench.told() == [
        UserRefused("the link was lost", "asked"),
        UserClosed(ANN.node, number),
    ]


@pytest.mark.parametrize("called", [False, True])
def test_the_link_is_kept_as_long_as_it_is_used(called: bool) -> None:
    bench = UserBench()
    bench.do(ListenUser("chat"))
    if called:
        bench.hears(ANN, UserConnect(3, "chat"))
        number = 3
    else:
        number = bench.connect()
    bench.host.advance(60 * S_NS)
    assert bench.host.hung_up == []
    bench.do(CloseUser(ANN.node, number))
    bench.host.advance(60 * S_NS)
    assert bench.host.hung_up == [ANN.node]


def test_a_call_that_ends_before_its_link_is_ours_leaves_nothing() -> None:
    bench = UserBench()
    bench.do(ListenUser("chat"))
    bench.host.link_opened(ANN.node)
    bench.host.received(ANN.node, UserConnect(3, "chat"))
    bench.host.received(ANN.node, UserEnd(3))
    bench.host.advance(60 * S_NS)
    assert bench.host.hung_up == [ANN.node]
    assert len(bench.machine.parts.user_links) == 0


def test_data_of_a_connection_that_is_none_is_answered_with_its_end() -> None:
    bench = UserBench()
    assert bench.hears(ANN, UserData(3, b"?")) == [UserEnd(3)]
    assert bench.hears(ANN, UserEnd(3)) == []
    assert bench.told() == []


def test_nobody_talks_to_itself() -> None:
    bench = UserBench()
    assert bench.do(ConnectUser(ME.contact, "chat"), "t") == []
    assert bench.told() == [UserRefused("this is our own node", "t")]


def test_connections_are_bounded() -> None:
    bench = UserBench(SearchConfig(user_connections_max=2))
    bench.do(ListenUser("chat"))
    bench.connect()
    bench.hears(BEN, UserConnect(2, "chat"))
    assert bench.hears(BEN, UserConnect(4, "chat")) == [UserRefuse(4, "too many connections")]
    bench.told()
    bench.do(ConnectUser(ANN.contact, "chat"), "more")
    assert bench.told() == [UserRefused("too many connections", "more")]


def test_those_of_one_peer_are_bounded() -> None:
    bench = UserBench(SearchConfig(user_connections_peer_max=2))
    bench.do(ListenUser("chat"))
    answers = [bench.hears(BEN, UserConnect(n, "chat"))[0] for n in (2, 4, 6)]
    assert answers == [UserAccept(2), UserAccept(4), UserRefuse(6, "too many connections")]
    assert bench.hears(ANN, UserConnect(3, "chat")) == [UserAccept(3)]


def test_so_much_at_once_and_no_more() -> None:
    bench = UserBench()
    number = bench.connect()
    bench.do(SendUser(ANN.node, number, bytes(USER_DATA_BYTES_MAX)))
    with pytest.raises(UsageError, match="in parts"):
        bench.do(SendUser(ANN.node, number, bytes(USER_DATA_BYTES_MAX + 1)))
