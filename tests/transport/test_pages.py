"""Web pages at the door of a node: a browser connects to whatever a page tells it to."""

from __future__ import annotations

import asyncio

import pytest

from shoal.base.page_guard import PageGuard
from shoal.transport.handshake import REFUSALS
from shoal.transport.port import DialFailed
from shoal.transport.websocket import WebSocketTransport, dialling_context
from tests.transport.recorder import Recorder, until
from tests.transport.stage import Stage, credentials, on
from tests.transport.wires import connection, ended

UPGRADE = (
    "GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
HERE = {"Host": "127.0.0.1:7700"}
EVIL = {"Origin": "https://evil.example"}


async def asked(address: str, headers: dict[str, str]) -> str:
    """The status line that an upgrade with these headers is answered with."""
    async with connection(address) as (reader, writer):
        if address.startswith("wss"):
            await writer.start_tls(dialling_context())
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"{UPGRADE}{lines}\r\n".encode())
        line = await reader.readline()
        if b" 101 " not in line:
            return (line + await ended(reader)).decode()
        return line.decode()


@on("ws", "wss", "ws-uvloop", "wss-uvloop")
async def test_no_page_becomes_a_peer(stage: Stage) -> None:
    b = await stage.actor("b")
    for headers, reason in (
        ({**HERE, **EVIL}, "foreign-page"),
        ({**HERE, "origin": "null"}, "foreign-page"),
        ({**HERE, "Origin": "http://127.0.0.1:7700"}, "foreign-page"),  # the door has no pages
        ({**HERE, "Sec-Fetch-Site": "cross-site"}, "foreign-page"),
        ({**HERE, "Sec-Fetch-Site": "same-site"}, "foreign-page"),
        ({"Host": "evil.example:7700"}, "foreign-host"),
        ({"Host": "evil.example:7700", "Origin": "http://evil.example:7700"}, "foreign-host"),
        ({"Host": "127.0.0.1.evil.example"}, "foreign-host"),
        ({}, "foreign-host"),
    ):
        answer = await asked(b.address, headers)
        assert answer.startswith("HTTP/1.1 403 "), headers
        assert "under [node]" in answer
        await until(lambda: b.told.failures)
        assert b.told.failures == [reason], headers
        assert reason in REFUSALS
        b.told.failures.clear()
    assert b.told.links == []


@on("ws", "wss", "ws-uvloop")
async def test_a_program_under_any_name_of_this_machine_may_come(stage: Stage) -> None:
    b = await stage.actor("b")
    for host in ("127.0.0.1", "localhost:7700", "[::1]:7700", "LOCALHOST", "127.9.9.9:1"):
        assert "101" in await asked(b.address, {"Host": host})


def test_listed_pages_and_names_may_come() -> None:
    async def main() -> None:
        pages = PageGuard("node", ("https://app.example",), ("proxy.example",))
        async with WebSocketTransport(credentials("b"), Recorder(), pages=pages) as transport:
            address = (await transport.listen("ws://127.0.0.1:0")).address
            app = {"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}
            assert "101" in await asked(address, {"Host": "proxy.example", **app})
            assert "403" in await asked(address, {"Host": "proxy.example", **EVIL})
            assert "403" in await asked(address, {"Host": "evil.example", **app})

    asyncio.run(main())


def test_a_dialler_is_told_which_name_to_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of one's own that leads to loopback, as behind a proxy."""

    async def main() -> None:
        async with (
            WebSocketTransport(credentials("a"), Recorder()) as a,
            WebSocketTransport(credentials("b"), Recorder()) as b,
        ):
            address = (await b.listen("ws://127.0.0.1:0")).address
            named = address.replace("127.0.0.1", "node.example")
            loop = asyncio.get_running_loop()
            connect = loop.create_connection

            async def resolved(factory, host, port, **more):  # type: ignore[no-untyped-def]
                return await connect(factory, "127.0.0.1", port, **more)

            monkeypatch.setattr(loop, "create_connection", resolved)
            with pytest.raises(
                DialFailed, match=r"refused: .*'node\.example'.*hosts under \[node\]"
            ):
                await a.dial(named, credentials("b").key.address)

    asyncio.run(main())
