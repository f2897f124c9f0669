"""Connections of a gateway: who says nothing is hung up on, and there are only so many."""

from __future__ import annotations

import asyncio
import json
import resource
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from shoal.gateway import connection_limit as gateway_connections
from shoal.gateway import server as gateway_server
from shoal.gateway.config import CONNECTIONS_MAX, DESCRIPTORS_LEFT, SUBSCRIBERS_MAX
from shoal.gateway.connection_limit import connections_max
from shoal.node import NetworkFile, Node
from tests.gateway.client import Client, open_gateway
from tests.node.network import PATIENCE_S, Town, in_town, run
from tests.transport.recorder import until

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def connected(
    client: Client, text: bytes = b""
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which something was said."""
    host, port = client.gateway.address.rpartition("//")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(text)
    try:
        yield reader, writer
    finally:
        writer.close()


@pytest.mark.parametrize("said", [b"", b"GET /health HTTP/1.1\r\nHost: loc", HEALTH])
def test_a_connection_on_which_nothing_is_asked_is_closed(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(gateway_server, "IDLE_S", 0.2)

    async def main() -> None:
        async with Node.open(NetworkFile()) as node, open_gateway(node) as client:
            async with connected(client, said) as (reader, _), asyncio.timeout(PATIENCE_S):
                answer = await reader.read()  # to its end
            assert answer.startswith(b"HTTP/1.1 200" if said == HEALTH else b"")

    run(main())


def test_subscribers_may_hear_nothing_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_server, "IDLE_S", 0.1)

    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.create_stream("/x")
        async with (
            open_gateway(node) as client,
            client.events(f"/streams/{stream.id}/live") as events,
            client.socket(f"/ws/streams/{stream.id}") as socket,
        ):
            await asyncio.sleep(0.5)
            await stream.publish("late")
            assert await events.contents(1) == ["late"]
            assert json.loads(await socket.receive_str(timeout=PATIENCE_S))["content"] == "late"

    in_town(scenario)


def test_one_too_many_is_told_so_and_comes_in_when_another_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_connections, "CONNECTIONS_MAX", 2)

    async def main() -> None:
        async with Node.open(NetworkFile()) as node, open_gateway(node) as client:
            async with connected(client, HEALTH) as (first, _), connected(client, HEALTH):
                await first.readuntil(b"\r\n\r\n")
                async with connected(client) as (reader, _), asyncio.timeout(PATIENCE_S):
                    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 503 ")
                assert "all 2 connections are taken" in node.readiness.problems[0]
                assert f"Content-Length: {len(body)}\r\n".encode() in head
                assert "2 connections are open here" in json.loads(body)["error"]
            runner = client.gateway._runner
            assert runner is not None
            await until(lambda: runner.server is not None and not runner.server.connections)
            assert (await client.get("/health"))["links"] == 0
            assert b'status="503"} 1.0' in client.gateway.metrics.text()

    run(main())


@pytest.mark.parametrize(
    ("descriptors", "expected"),
    [
        (200, 100),
        (1024, 1024 - DESCRIPTORS_LEFT),
        (1_000_000, CONNECTIONS_MAX),
        (resource.RLIM_INFINITY, CONNECTIONS_MAX),
    ],
)
def test_the_node_itself_keeps_some_descriptors(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, expected: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    assert connections_max() == expected
    assert CONNECTIONS_MAX > SUBSCRIBERS_MAX


def test_a_tls_handshake_that_does_not_come_to_an_end_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gateway_server, "HANDSHAKE_S", 0.2)
    section = certified(tmp_path)

    async def main() -> None:
        async with (
            Node.open(NetworkFile(folder=str(tmp_path))) as node,
            open_gateway(node, **section) as client,
            connected(client) as (reader, _),
            asyncio.timeout(PATIENCE_S),
        ):
            assert await reader.read() == b""

    run(main())


def certified(folder: Path) -> dict[str, str]:
    """What a gateway needs to serve https."""
    made = ["-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "gateway.pem"]
    subprocess.run(
        ["openssl", "req", "-x509", *made, "-subj", "/CN=localhost"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return {"certificate": "gateway.pem", "private_key": "key.pem"}


def test_what_made_room_during_its_tls_handshake_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else strangers hold sockets without end, beyond the bound on connections."""
    monkeypatch.setattr(gateway_connections, "CONNECTIONS_MAX", 0)
    monkeypatch.setattr(gateway_connections, "RESERVED_MAX", 1)
    section = certified(tmp_path)
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE

    async def main() -> None:
        async with (
            Node.open(NetworkFile(folder=str(tmp_path))) as node,
            open_gateway(node, **section) as client,
            connected(client) as (reader, writer),
        ):
            loop = asyncio.get_running_loop()
            async with connected(client), asyncio.timeout(PATIENCE_S):
                await asyncio.sleep(0.2)  # it is there, and has made the first one go
                with suppress(OSError):
                    protocol = writer.transport.get_protocol()
                    await loop.start_tls(writer.transport, protocol, trusting)
                    assert await reader.read() == b""

    run(main())


def test_a_probe_hears_that_the_process_lives_when_all_connections_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also while strangers hold what is reserved for it, and its address has used up its rate."""
    monkeypatch.setattr(gateway_connections, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(gateway_connections, "RESERVED_MAX", 4)

    async def main() -> None:
        slow = {"requests_per_s": 0.01, "burst": 1}
        async with Node.open(NetworkFile()) as node, open_gateway(node, **slow) as client:
            async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
                first, _ = await stack.enter_async_context(connected(client, HEALTH))
                await first.readuntil(b"\r\n\r\n")
                await stack.enter_async_context(connected(client, HEALTH))
                for _ in range(10):
                    await stack.enter_async_context(connected(client, b"GET /hea"))
                probe, _ = await stack.enter_async_context(connected(client, HEALTH))
                assert (await probe.read()).startswith(b"HTTP/1.1 200 ")
                other = HEALTH.replace(b"/health", b"/ready")
                refused, _ = await stack.enter_async_context(connected(client, other))
                assert (await refused.read()).startswith(b"HTTP/1.1 503 ")
            await until(lambda: client.gateway._check() is None)
            for _ in range(5):
                assert (await client.get("/health"))["links"] == 0
            await client.get("/openapi.json")
            await client.get("/openapi.json", 429)

    run(main())
