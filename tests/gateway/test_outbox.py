"""The outbox over HTTP: who may, what is refused and how, and how a full one is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from shoal.base.gateway_messages import BODY_BYTES_MAX, CHUNK_ROWS_MAX
from shoal.identity.message_body import BINARY, TEXT
from shoal.node import Node
from tests.node.network import contents, run, take
from tests.node.outbox import STREAM, TOKEN, open_gateway, open_publisher, role_of, town_of

QUERY = {"query": "q", "run": "r1", "stream": STREAM}
EMPTY: dict[str, Any] = {"attempts": [], "fingerprint": {}}


class Client:
    """Speaks to a gateway."""

    def __init__(self, address: str, session: aiohttp.ClientSession) -> None:
        self.address = address
        self._session = session

    async def post(self, what: str, body: Any, status: int = 200, token: str = TOKEN) -> Any:
        """The JSON of an answer."""
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        headers = {"Authorization": f"Bearer {token}"}
        url = f"{self.address}/outbox/{what}"
        async with self._session.post(url, data=BytesIO(raw), headers=headers) as answer:
            assert answer.status == status, await answer.text()
            assert answer.content_type == "application/json"
            if status == 429:
                assert answer.headers["Retry-After"] == "1"
            return await answer.json()

    async def stage(
        self, rows: list[Any], status: int = 200, *, epoch: int = 1, chunk: int = 0
    ) -> Any:
        request = [STREAM, "q", epoch, 0, 0, 7, chunk, rows]
        return await self.post("stage", msgspec.msgpack.encode(request), status)

    async def seal(
        self, status: int = 200, *, epoch: int = 1, batch: int = 0, chunks: int = 1, rows: int = 2
    ) -> Any:
        attempts = [{"partition": 0, "attempt": 7, "chunks": chunks}]
        request = {"query": "q", "epoch": epoch, "batch": batch, "attempts": attempts}
        request["fingerprint"] = {"rows": rows, "digest": "", "source": '{"v":1}'}
        return await self.post("seal", request, status)

    async def state(self, query: str = "", status: int = 200) -> Any:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with self._session.get(f"{self.address}/outbox{query}", headers=headers) as answer:
            assert answer.status == status
            return await answer.json()


@asynccontextmanager
async def publishing(
    folder: Path, megabytes_max: float = 1.0
) -> AsyncIterator[tuple[Node, Client]]:
    """A publishing node that nobody keeps anything for, and its gateway."""
    town = town_of(folder)
    async with (
        town.open("tracker"),
        open_publisher(town, megabytes_max) as node,
        open_gateway(node) as address,
        aiohttp.ClientSession() as session,
    ):
        yield node, Client(address, session)


def rows(count: int, size_bytes: int = 10) -> list[Any]:
    return [[BINARY, None, None, b"x" * size_bytes] for _ in range(count)]


def test_a_batch_is_staged_sealed_and_published(tmp_path: Path) -> None:
    async def main() -> None:
        async with publishing(tmp_path) as (node, client):
            async with (await node.open_stream(STREAM)).subscribe() as messages:
                assert await client.post("epoch", QUERY) == {"epoch": 1}
                mixed = [[TEXT, None, "key", "grüße".encode()], [BINARY, 0, None, b"\0"]]
                assert await client.stage(mixed) == {"sealed": False}
                assert await client.seal() == {"rows": 2, "replayed": False, "changed": False}
                assert await client.seal() == {"rows": 0, "replayed": True, "changed": False}
                other = (await client.seal(409, rows=3))["error"]
                assert "with 2 rows" in other
                assert "new checkpoint" in other
                assert 'startingOffsets = {"v":1}' in other
                assert await client.stage(rows(1)) == {"sealed": True}
                assert contents(await take(messages, 2)) == ["grüße", b"\0"]
            state = await client.state("?query=q")
            (query,) = state["queries"]
            assert (query["epoch"], query["batch"], query["stream"]) == (1, 0, STREAM)
            assert query["source"] == '{"v":1}'
            assert (state["problem"], state["size_bytes_max"]) == (None, 1_000_000)
            assert "here" in (await client.state("?query=nobody", 404))["error"]

    run(main())


def test_without_the_token_nothing_is_done(tmp_path: Path) -> None:
    async def main() -> None:
        async with publishing(tmp_path) as (node, client):
            for token in ("", "wrong", TOKEN + "x", TOKEN[:-1]):
                for what in ("epoch", "stage", "seal", "discard"):
                    answer = await client.post(what, QUERY, 401, token)
                    assert "Authorization: Bearer" in answer["error"]
                    assert TOKEN not in answer["error"]
            assert role_of(node).outbox.state() == []

    run(main())


def test_a_token_that_is_no_text_is_a_wrong_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with publishing(tmp_path) as (_, client):
            host, port = client.address.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            head = f"GET /outbox HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
            writer.write(head.encode() + b"Authorization: Bearer \xff\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
            writer.close()

    run(main())


def test_an_old_driver_is_fenced(tmp_path: Path) -> None:
    async def main() -> None:
        async with publishing(tmp_path) as (_, client):
            await client.post("epoch", QUERY)
            await client.stage(rows(3))
            assert await client.post("epoch", {**QUERY, "run": "r2"}) == {"epoch": 2}
            for refused in (
                await client.stage(rows(1), 409, chunk=1),
                await client.seal(409),
                await client.post("epoch", QUERY, 409),
                await client.post("discard", {"query": "q", "epoch": 1, "batch": 0}, 409),
            ):
                assert "another driver has taken it over, stop this one" in refused["error"]
            assert "run the batch again" in (await client.seal(412, epoch=2))["error"]
            await client.stage(rows(2), epoch=2)
            assert (await client.seal(epoch=2))["rows"] == 2

    run(main())


def test_a_full_outbox_says_try_again_and_has_room_when_it_has_published(tmp_path: Path) -> None:
    async def main() -> None:
        async with publishing(tmp_path, megabytes_max=0.01) as (node, client):
            await client.post("epoch", QUERY)
            await client.stage(rows(1, 6_000))
            other = {**QUERY, "query": "other"}
            await client.post("epoch", other)
            request = [STREAM, "other", 1, 0, 0, 7, 0, rows(1, 6_000)]
            body = msgspec.msgpack.encode(request)
            full = await client.post("stage", body, 429)
            assert "try again" in full["error"]
            assert "batch 0 of query q (6" in full["error"]
            assert "storage" not in full["error"]
            holder = (await client.state())["holder"]
            assert (holder["query"], holder["epoch"], holder["batch"]) == ("q", 1, 0)
            too_much = await client.stage(rows(1, 6_000), 413, chunk=1)
            assert "raise megabytes_max" in too_much["error"]
            await client.seal()
            async with asyncio.timeout(20):
                while role_of(node).outbox.size_bytes:
                    await asyncio.sleep(0.02)
            assert await client.post("stage", body) == {"sealed": False}
            discarded = {"query": "other", "epoch": 1, "batch": 0}
            assert await client.post("discard", discarded) == {}
            assert role_of(node).outbox.size_bytes == 0

    run(main())


@pytest.mark.parametrize(
    ("what", "body", "status", "complaint"),
    [
        ("epoch", b"{", 400, "/outbox/epoch"),
        ("epoch", {**QUERY, "colour": "red"}, 400, "colour"),
        ("epoch", {**QUERY, "stream": "x"}, 400, "stream"),
        ("epoch", {**QUERY, "query": "q" * 101}, 400, "query"),
        ("epoch", b" " * 20_000, 413, "more than 16384 bytes"),
        ("seal", {"query": "nobody", "epoch": 1, "batch": 0, **EMPTY}, 404, "take an epoch"),
        ("seal", {"query": "q", "epoch": -1, "batch": 0, **EMPTY}, 400, "epoch"),
        ("seal", {"query": "q", "epoch": 1, "batch": 0, "attempts": []}, 400, "fingerprint"),
        ("discard", {"query": "q", "epoch": 1, "batch": 0, "attempt": 1}, 400, "give both"),
        ("stage", b"\xc1", 400, "no chunk of rows"),
        ("stage", bytes(BODY_BYTES_MAX + 1), 413, "send smaller chunks"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(
    tmp_path: Path, what: str, body: Any, status: int, complaint: str
) -> None:
    async def main() -> None:
        async with publishing(tmp_path) as (_, client):
            assert complaint in (await client.post(what, body, status))["error"]

    run(main())


def test_rows_that_cannot_be_published_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with publishing(tmp_path) as (_, client):
            await client.post("epoch", QUERY)
            for bad, complaint in (
                ([[BINARY, 5, None, b"x"]], "has one partition, 0"),
                ([[BINARY, 0, "key", b"x"]], "both a key and a partition"),
                ([[256, 0, None, b"x"]], "255"),
                (rows(CHUNK_ROWS_MAX + 1), str(CHUNK_ROWS_MAX)),
            ):
                assert complaint in (await client.stage(bad, 400))["error"]
            two_streams = {**QUERY, "stream": STREAM + "/2", "run": "r2"}
            assert "keeps its stream" in (await client.post("epoch", two_streams, 400))["error"]

    run(main())


def test_a_node_without_an_outbox_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        town = town_of(tmp_path)
        async with (
            town.open("tracker"),
            town.open() as node,
            open_gateway(node) as address,
            aiohttp.ClientSession() as session,
        ):
            answer = await Client(address, session).post("epoch", QUERY, 404)
            assert "add [outbox]" in answer["error"]

    run(main())
