"""User connections without a network: who hears what, room, and the end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from shoal.base.errors import SearchUnavailable, UsageError
from shoal.base.ids import Contact, NodeId, show_node_id
from shoal.node.search import user_connections
from shoal.node.search.client import Token
from shoal.node.search.user_connections import Incoming, UserConnections
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
from shoal.protocols.search.config import USER_DATA_BYTES_MAX
from tests.node.search import BOB, Door

PEER = BOB.address


class Machine(Door):
    """Answers a question for a connection."""

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.answers = answers
        """Events; in those that have one, the token is filled in."""

    async def say(self, command: Any, token: Token | None = None) -> None:
        await super().say(command, token)
        if isinstance(command, ConnectUser):
            for answer in self.answers:
                if isinstance(answer, UserOpened):
                    assert token is not None
                    token.heard(UserOpened(answer.peer, answer.number, token))
                elif isinstance(answer, UserRefused):
                    assert token is not None
                    token.heard(UserRefused(answer.reason, token))
                else:
                    self.tell(answer)


def test_what_is_sent_and_received_over_a_connection() -> None:
    async def main() -> None:
        # The other end speaks first, in the same turn.
        door = Machine(UserOpened(PEER, 6, None), UserReceived(PEER, 6, b"welcome"))
        door.known[PEER] = Contact(PEER, ("ws://127.0.0.1:1",))
        users = UserConnections(door)
        async with users.connect(show_node_id(PEER), "chat", ()) as connection:
            assert door.said[0][0] == ConnectUser(door.known[PEER], "chat")
            assert (connection.peer, connection.type) == (show_node_id(PEER), "chat")
            assert await anext(connection) == b"welcome"
            await connection.send(b"hello")
            assert door.said[-1][0] == SendUser(PEER, 6, b"hello")
            door.tell(UserReceived(PEER, 8, b"of another connection"))
            door.tell(UserReceived(PEER, 6, b"bye"))
            door.tell(UserClosed(PEER, 6))
            assert [content async for content in connection] == [b"bye"]
            assert connection.closed
            with pytest.raises(SearchUnavailable, match="has ended: open another"):
                await connection.send(b"too late")
        assert door.taken_back == [], "the other end has closed it"

    asyncio.run(main())


def test_the_end_of_the_context_closes_the_connection() -> None:
    async def main() -> None:
        door = Machine(UserOpened(PEER, 6, None))
        async with UserConnections(door).connect(PEER, "chat", ("ws://127.0.0.1:5",)) as connection:
            contact = Contact(PEER, ("ws://127.0.0.1:5",))
            assert door.said[0][0] == ConnectUser(contact, "chat")
        assert door.taken_back == [(CloseUser(PEER, 6), None)]
        await connection.close()
        assert len(door.taken_back) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("addresses", "remedy"),
    [(("ws://127.0.0.1:5",), "is it there, and does"), ((), "has not met it: give its addresses=")],
)
def test_a_refusal_says_why_and_what_to_do(addresses: tuple[str, ...], remedy: str) -> None:
    async def main() -> None:
        door = Machine(UserRefused("no such type here", None))
        users = UserConnections(door)
        with pytest.raises(SearchUnavailable, match=rf"\(no such type here\): .*{remedy}"):
            async with users.connect(PEER, "chat", addresses):
                raise AssertionError("never reached")

    asyncio.run(main())


def test_a_connection_that_comes_too_late_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_connections, "CONNECT_TIMEOUT_S", 0.05)

    async def main() -> None:
        door = Machine()
        users = UserConnections(door)
        with pytest.raises(SearchUnavailable, match=r"no answer within 0\.05 s"):
            async with users.connect(PEER, "chat", ()):
                raise AssertionError("never reached")
        token = door.said[0][1]
        assert token is not None
        token.heard(UserOpened(PEER, 6, token))
        assert door.taken_back == [(CloseUser(PEER, 6), None)]

    asyncio.run(main())


def test_those_who_accept_get_connections_of_their_type() -> None:
    async def main() -> None:
        door = Machine()
        users = UserConnections(door)
        async with users.accept("chat") as incoming:
            assert door.said == [(ListenUser("chat"), None)]
            door.tell(UserArrived(PEER, 7, "chat"))
            door.tell(UserReceived(PEER, 7, b"hello"))
            connection = await anext(incoming)
            assert await anext(connection) == b"hello"
            with pytest.raises(UsageError, match="'chat' are accepted already"):
                async with users.accept("chat"):
                    raise AssertionError("never reached")
            door.tell(UserArrived(PEER, 9, "other"))
            assert door.taken_back == [(CloseUser(PEER, 9), None)], "nobody here accepts that"
        assert connection.closed
        assert [command for command, _ in door.taken_back[1:]] == [
            ListenUser("chat", accept=False),
            CloseUser(PEER, 7),
        ]

    asyncio.run(main())


def test_more_than_wait_to_be_taken_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_connections, "BACKLOG_MAX", 2)

    async def main() -> None:
        door = Machine()
        async with UserConnections(door).accept("chat") as incoming:
            for number in (1, 3, 5):
                door.tell(UserArrived(PEER, number, "chat"))
            assert door.taken_back == [(CloseUser(PEER, 5), None)]
            assert [(await anext(incoming)).key[1] for _ in range(2)] == [1, 3]

    asyncio.run(main())


def test_a_reader_that_is_too_slow_loses_the_connection_and_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_connections, "QUEUE_BYTES_MAX", 10)

    async def main() -> None:
        door = Machine(UserOpened(PEER, 6, None))
        async with UserConnections(door).connect(PEER, "chat", ()) as connection:
            for _ in range(3):
                door.tell(UserReceived(PEER, 6, b"12345"))
            assert door.taken_back == [(CloseUser(PEER, 6), None)]
            assert [await anext(connection) for _ in range(2)] == [b"12345"] * 2
            with pytest.raises(SearchUnavailable, match="waited to be read: the connection was"):
                await anext(connection)

    asyncio.run(main())


def test_the_end_of_the_node_ends_everything() -> None:
    async def main() -> None:
        door = Machine(UserOpened(PEER, 6, None))
        users = UserConnections(door)
        async with AsyncExitStack() as stack:
            incoming: Incoming = await stack.enter_async_context(users.accept("chat"))
            connection = await stack.enter_async_context(users.connect(PEER, "chat", ()))
            for token in list(door.remembered):
                token.ended()
            assert [one async for one in incoming] == []
            assert [content async for content in connection] == []

    asyncio.run(main())


def test_what_cannot_be_is_refused() -> None:
    async def main() -> None:
        door = Machine(UserOpened(PEER, 6, None))
        users = UserConnections(door)
        with pytest.raises(UsageError, match="connection type 'a b'"):
            async with users.connect(PEER, "a b", ()):
                raise AssertionError("never reached")
        with pytest.raises(UsageError, match="connection type ''"):
            async with users.accept(""):
                raise AssertionError("never reached")
        with pytest.raises(UsageError, match="a node id has 20 bytes"):
            async with users.connect(NodeId(b"short"), "chat", ()):
                raise AssertionError("never reached")
        async with users.connect(PEER, "chat", ()) as connection:
            with pytest.raises(UsageError, match="in parts"):
                await connection.send(bytes(USER_DATA_BYTES_MAX + 1))
            with pytest.raises(UsageError, match="encode it, send bytes"):
                await connection.send("text")  # type: ignore[arg-type]
            await connection.send(bytes(USER_DATA_BYTES_MAX))

    asyncio.run(main())
