"""Who may come in: keys, rates, hosts and origins; and the description of what is served."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import aiohttp
import pytest
from aiohttp import web

from shoal.base.errors import ConfigError, NotFound
from shoal.config.sections import GatewaySection, StorageSection, TrackerSection
from shoal.gateway import api_keys as gateway_keys
from shoal.gateway.api_keys import KeyFile
from shoal.gateway.route_table import Route, Scope, document
from shoal.gateway.server import gateway_of
from shoal.identity import SeededEntropy
from shoal.node import NetworkFile, Node
from tests.gateway.client import Client, open_gateway
from tests.node.network import run

STREAM = "0x" + "ab" * 20 + "/city/vehicles"
OTHER = "0x" + "cd" * 20 + "/city/vehicles"
CID = "zdpuAmyVF5ZGPQ1MnvCA1BxrDH9J65AsSXLHWZKeNCC5yxyv7"


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys")


def new_key(file: KeyFile, *scopes: Scope, streams: tuple[str, ...] = ("*",)) -> str:
    return file.add("somebody", scopes, streams, SeededEntropy(f"{scopes} {streams}"))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def url_of(route: Route) -> str:
    path = route.path.replace("{id}", STREAM).replace("{cid}", CID).replace("{name}", "notes")
    required = "&".join(f"{value.name}=1" for value in route.parameters if value.required)
    return f"{path}?{required}"


def open_node(folder: Path) -> Any:
    """A node with as many parts as it can have without others."""
    network = NetworkFile(tracker=TrackerSection(), storage=StorageSection(), folder=str(folder))
    return Node.open(network)


class _Reached:
    """Counts handlers that were reached."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def instead_of(self, route: Route) -> Any:
        async def handler(request: web.Request) -> web.Response:
            self.names.append(route.name)
            return web.Response()

        return handler


def test_without_a_key_nothing_is_changed_or_read(tmp_path: Path, file: KeyFile) -> None:
    """Every route of the table, and every way not to have the key."""
    key = new_key(file, "read", "publish", "lease", "admin")
    wrong = key[:-1] + ("0" if key[-1] != "0" else "1")

    async def main() -> None:
        async with open_node(tmp_path) as node:
            gateway = gateway_of(node, GatewaySection(keys=str(file.path)))
            reached = _Reached()
            for at, route in enumerate(gateway.table.routes):
                changed = {"handler": reached.instead_of(route)}
                gateway.table.routes[at] = _replaced(route, changed)
            await gateway.open("127.0.0.1:0")
            try:
                async with aiohttp.ClientSession() as session:
                    client = Client(gateway, session)
                    for route in gateway.table.routes:
                        for headers in ({}, bearer(wrong), bearer(""), {"Authorization": wrong}):
                            for method in (route.method, "HEAD"):
                                if (route.method, method) == ("POST", "HEAD"):
                                    continue
                                url = gateway.address + url_of(route)
                                async with session.request(method, url, headers=headers):
                                    pass
                        query = {"api_key": wrong}
                        url = gateway.address + url_of(route)
                        async with session.request(route.method, url, params=query):
                            pass
                    open_ones = {r.name for r in gateway.table.routes if r.access == "open"}
                    own_tokens = {r.name for r in gateway.table.routes if r.access == "token"}
                    assert open_ones == {"get_health"}
                    assert set(reached.names) == open_ones | own_tokens
                    assert all("outbox" in name for name in own_tokens)
                    reached.names.clear()
                    for route in gateway.table.routes:
                        await client.session.request(
                            route.method, gateway.address + url_of(route), headers=bearer(key)
                        )
                    assert len(reached.names) == len(gateway.table.routes)
            finally:
                await gateway.close()

    run(main())


def _replaced(route: Route, changes: dict[str, Any]) -> Route:
    fields = {name: getattr(route, name) for name in route.__struct_fields__}
    return Route(**{**fields, **changes})


def test_scopes_and_patterns_say_what_a_key_is_for(tmp_path: Path, file: KeyFile) -> None:
    reader = new_key(file, "read", streams=("0xab*/city/*",))
    publisher, holder = new_key(file, "publish"), new_key(file, "lease")
    operator = new_key(file, "admin")

    async def main() -> None:
        async with open_node(tmp_path) as node, open_gateway(node, keys=str(file.path)) as client:
            heads = f"/streams/{STREAM}/log/heads"
            assert (await client.get(heads, headers=bearer(reader)))["partitions"] == {}
            upper = heads.replace("0xabab", "0xABAB")
            await client.get(upper, headers=bearer(reader))
            for path in (f"/streams/{OTHER}/log/heads", "/streams", "/search?q=x", "/metrics"):
                answer = await client.get(path, 403, headers=bearer(reader))
                assert "(somebody) may not" in answer["error"]
            answer = await client.get(heads, 403, headers=bearer(publisher))
            assert "it has publish for *" in answer["error"]
            await client.get("/node", headers=bearer(operator))
            lease = heads.replace("heads", "lease")
            for method in ("PUT", "DELETE"):
                answer, _ = await client.ask(method, lease, 403, headers=bearer(reader))
                assert "may not lease" in answer["error"]
                await client.ask(method, lease, 400, headers=bearer(holder))
            await client.get(heads, 403, headers=bearer(holder))
            await client.get("/ready", headers=bearer(reader))
            await client.get("/ready", 401)
            path = f"/streams/{STREAM}/messages"
            await client.post(path, "1", "application/json", 403, headers=bearer(reader))
            # Where browsers can send no header, and nowhere else.
            await client.get(f"/streams/{STREAM}/live?api_key={publisher}", 403)
            await client.get(f"{heads}?api_key={reader}", 401)

    run(main())


def test_a_revoked_key_is_refused_and_a_new_one_holds(
    tmp_path: Path, file: KeyFile, caplog: pytest.LogCaptureFixture
) -> None:
    old = new_key(file, "admin")

    async def main() -> None:
        async with open_node(tmp_path) as node, open_gateway(node, keys=str(file.path)) as client:
            await client.get("/node", headers=bearer(old))
            with mock.patch.object(gateway_keys, "LOOK_AGAIN_S", 0.0):
                new = new_key(file, "admin", "read")
                await client.get("/node", headers=bearer(new))
                file.revoke(old.split("_")[1])
                await client.get("/node", 401, headers=bearer(old))
                for nonsense in (b"{", b'{"keys": [{"id": "\xff"}]}'):
                    file.path.write_bytes(nonsense)
                    await client.get("/node", 401, headers=bearer(new))

    run(main())
    assert caplog.text.count("nobody is let in") == 2


def test_the_file_holds_no_key_and_is_its_owner_s(file: KeyFile) -> None:
    key = new_key(file, "read")
    assert key.split("_")[2] not in file.path.read_text()
    assert file.path.stat().st_mode & 0o077 == 0
    with pytest.raises(NotFound, match="`shoal gateway key list` shows them"):
        file.revoke("nobody")
    for nonsense in (b'{"keys": [{"id": 1}]}', b'{"keys": [{"id": "\xff"}]}'):
        file.path.write_bytes(nonsense)
        with pytest.raises(ConfigError, match="is no file of keys"):
            file.read()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.7:0", "shoal.example:80"])
def test_beyond_loopback_there_must_be_keys_or_a_word(listen: str) -> None:
    async def main() -> None:
        async with Node.open(NetworkFile()) as node:
            with pytest.raises(ConfigError, match="or write open_to_all = true"):
                async with open_gateway(node, listen=listen):
                    raise AssertionError("never reached")

    run(main())


def test_with_a_word_it_serves_beyond_loopback(tmp_path: Path, file: KeyFile) -> None:
    async def main() -> None:
        async with Node.open(NetworkFile()) as node:
            async with open_gateway(node, listen="0.0.0.0:0", open_to_all=True) as client:
                assert client.gateway.address.startswith("http://0.0.0.0:")
            with pytest.raises(ConfigError, match="so nobody could come in"):
                async with open_gateway(node, listen="0.0.0.0:0", keys=str(file.path)):
                    raise AssertionError("never reached")

    run(main())


def test_names_that_lead_to_loopback_from_elsewhere_are_refused() -> None:
    """DNS rebinding: a page of evil.example has its name lead to 127.0.0.1."""

    async def main() -> None:
        async with (
            Node.open(NetworkFile()) as node,
            open_gateway(node, hosts=("proxy.example",)) as client,
        ):
            for host, status in (
                ("evil.example", 421),
                ("localhost:7780", 200),
                ("[::1]:80", 200),
                ("proxy.example", 200),
                ("127.0.0.1.evil.example", 421),
            ):
                answer = await client.get("/node", status, headers={"Host": host})
                assert status == 200 or "add the name to hosts" in answer["error"]

    run(main())


def test_pages_of_other_origins_may_not_ask_unless_they_are_listed() -> None:
    path = f"/streams/{STREAM}/messages"
    asks = {"Access-Control-Request-Method": "POST"}

    async def main() -> None:
        async with (
            Node.open(NetworkFile()) as node,
            open_gateway(node, origins=("https://app.example",)) as client,
        ):
            for origin in ("https://evil.example", "null", "http://app.example"):
                answer = await client.post(path, "1", "text/plain", 403, headers={"Origin": origin})
                assert "add it to origins" in answer["error"]
                await client.ask("OPTIONS", path, 403, headers={"Origin": origin, **asks})
            own = {"Origin": client.gateway.address}
            _, response = await client.ask("GET", "/node", headers=own)
            assert "Access-Control-Allow-Origin" not in response.headers
            listed = {"Origin": "https://app.example"}
            _, response = await client.ask("GET", "/node", headers=listed)
            assert response.headers["Access-Control-Allow-Origin"] == "https://app.example"
            _, response = await client.ask("OPTIONS", path, 204, headers={**listed, **asks})
            assert "POST" in response.headers["Access-Control-Allow-Methods"]
            assert "Authorization" in response.headers["Access-Control-Allow-Headers"]

    run(main())


def test_whoever_asks_too_often_has_to_wait(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            Node.open(NetworkFile()) as node,
            open_gateway(node, requests_per_s=0.25, burst=3) as client,
        ):
            for _ in range(3):
                await client.get("/openapi.json")
            answer, response = await client.ask("GET", "/openapi.json", 429)
            assert response.headers["Retry-After"] == "4"
            assert "wait 4 s" in answer["error"]

    run(main())


def test_https_with_a_certificate(tmp_path: Path) -> None:
    pem = tmp_path / "gateway.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    key = str(tmp_path / "key.pem")
    made = ["-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", str(pem)]
    subprocess.run(["openssl", "req", "-x509", *made, *names], check=True, capture_output=True)

    async def main() -> None:
        async with Node.open(NetworkFile(folder=str(tmp_path))) as node:
            section = {"certificate": "gateway.pem", "private_key": "key.pem"}
            async with open_gateway(node, **section) as client:
                assert client.gateway.address.startswith("https://")
                trusting = ssl.create_default_context(cafile=pem)
                await client.get("/health", ssl=trusting)
            with pytest.raises(ConfigError, match=r"gateway\.certificate: .*give PEM files"):
                async with open_gateway(node, certificate="nothing.pem"):
                    raise AssertionError("never reached")

    run(main())


class Page:
    """Something that is served beside the table, as the explorer is."""

    public: tuple[str, ...] = ("/page/",)

    def add_routes(self, router: web.UrlDispatcher) -> None:
        async def handler(request: web.Request) -> web.Response:
            return web.json_response({})

        for path in ("/page/index.html", "/page-data"):
            router.add_get(path, handler)
        router.add_post("/page-data", handler)


def test_what_others_serve_here_needs_a_key_but_for_its_pages(
    tmp_path: Path, file: KeyFile
) -> None:
    reader, operator = new_key(file, "read"), new_key(file, "admin")

    async def main() -> None:
        async with open_node(tmp_path) as node:
            section = GatewaySection(keys=str(file.path))
            gateway = gateway_of(node, section, extras=[Page()])
            await gateway.open("127.0.0.1:0")
            try:
                async with aiohttp.ClientSession() as session:
                    client = Client(gateway, session)
                    await client.get("/page/index.html")
                    await client.get("/page-data", 401)
                    await client.get(f"/page-data?api_key={reader}")
                    await client.get("/page-data", headers=bearer(reader))
                    await client.ask("POST", "/page-data", 403, headers=bearer(reader))
                    await client.ask("POST", "/page-data", headers=bearer(operator))
                    assert (
                        "/page-data"
                        not in (await client.get("/openapi.json", headers=bearer(reader)))["paths"]
                    )
            finally:
                await gateway.close()

    run(main())


def described() -> tuple[dict[str, Any], list[Route]]:
    found: list[tuple[dict[str, Any], list[Route]]] = []

    async def main() -> None:
        async with Node.open(NetworkFile()) as node, open_gateway(node) as client:
            found.append((await client.get("/openapi.json"), client.gateway.table.routes))
            served = {
                (route.method, route.resource.canonical)
                for route in client.gateway._runner.app.router.routes()  # type: ignore[union-attr]
                if route.resource is not None
            }
            assert served == {(r.method, r.path) for r in client.gateway.table.routes}

    run(main())
    return found[0]


def test_every_route_is_described_and_nothing_else() -> None:
    text, routes = described()
    paths = {
        (method.upper(), path) for path, methods in text["paths"].items() for method in methods
    }
    assert paths == {(route.method, route.path) for route in routes}
    names = [route.name for route in routes]
    assert len(set(names)) == len(names)
    assert text == document(routes, "1")
    assert text["openapi"] == "3.1.0"
    # Every reference leads somewhere.
    known = text["components"]["schemas"]
    assert set(_references(text)) <= set(known)
    assert {"Problem", "Published", "SearchAnswer"} <= set(known)


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref":
                yield inner.rpartition("/")[2]
            else:
                yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


def test_what_changes_something_needs_more_than_reading() -> None:
    async def main() -> None:
        async with Node.open(NetworkFile()) as node:
            gateway = gateway_of(node, GatewaySection())
            for route in gateway.table.routes:
                assert route.access in (*get_args(Scope), "open", "key", "token")
                if route.method != "GET":
                    assert route.access in ("publish", "lease", "token"), route
            await gateway.close()

    run(main())
