"""Pages of others, in a real browser: what they can have it ask of a node on its user's machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import PATIENCE_MS, open_chromium
from tests.browser.town import ExplorerTown, explorer_town

pytestmark = pytest.mark.browser

FOREIGN, REBOUND = "evil.example", "rebound.example"
"""Names of an attacker; both lead to this machine."""
OFF = ",".join(
    (
        "LocalNetworkAccessChecks",
        "PrivateNetworkAccessRespectPreflightResults",
        "BlockInsecurePrivateNetworkRequests",
    )
)
"""What newer browsers do about such pages by themselves: not everybody has one of these."""
STREAM = "0x" + "ab" * 20 + "/city/vehicles"
CID = "zdpuAmyVF5ZGPQ1MnvCA1BxrDH9J65AsSXLHWZKeNCC5yxyv7"

# What each way to ask ended with, as far as the page can see.
SOCKET = """url => new Promise(done => {
  const socket = new WebSocket(url);
  socket.onopen = () => done("open");
  socket.onerror = () => done("error");
})"""
FETCH = """([url, settings]) => fetch(url, settings)
  .then(async answer => [answer.type, answer.status, await answer.text()])
  .catch(error => ["error", 0, ""])"""
ELEMENT = """([name, url]) => new Promise(done => {
  const element = document.createElement(name);
  element.onload = () => done("load");
  element.onerror = () => done("error");
  element.src = url;
  document.body.append(element);
})"""
FORM = """url => new Promise(done => {
  const frame = document.createElement("iframe"), form = document.createElement("form");
  frame.name = "answer";
  document.body.append(frame, form);
  frame.onload = () => done();
  form.method = "post"; form.action = url; form.target = "answer"; form.enctype = "text/plain";
  form.submit();
})"""


class Attacker(BaseHTTPRequestHandler):
    """Serves an empty page, and one with a link."""

    link = ""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(f'<body><a href="{self.link}">look</a></body>'.encode())

    def log_message(self, format: str, *values: object) -> None:
        pass


@contextmanager
def attacker_server(link: str) -> Iterator[int]:
    """The port of an attacker's pages."""
    handler = type("Linking", (Attacker,), {"link": link})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="attacker")
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExplorerTown]:
    results: Path = tmp_path_factory.mktemp("none") / "results"
    with explorer_town(results, members=0) as town:
        yield town


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    rules = ",".join(f"MAP {name} 127.0.0.1" for name in (FOREIGN, REBOUND))
    with open_chromium(f"--host-resolver-rules={rules}", f"--disable-features={OFF}") as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    try:
        yield context.new_page()
    finally:
        context.close()


class Doors:
    """The doors of a node, by whichever name leads to this machine, and what was answered."""

    def __init__(self, town: ExplorerTown, name: str) -> None:
        self._town = town
        self.link = f"ws://{name}:{town.nodes[0].addresses[0].rpartition(':')[2]}/"
        self.gateway = f"http://{name}:{town.address.rpartition(':')[2]}"
        self.socket = f"{self.gateway.replace('http', 'ws')}/ws/streams/{STREAM}"
        self._before = self._count()

    def answered(self) -> dict[int, int]:
        """How often which status since then."""
        now = self._count()
        new = {status: count - self._before.get(status, 0) for status, count in now.items()}
        return {status: count for status, count in new.items() if count}

    def rejected(self, reason: str) -> int:
        """How often the link port refused somebody for this reason."""
        return self._town.gateway.metrics._rejected.get(f"handshake-{reason}", 0)

    def _count(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for (_, status), count in list(self._town.gateway.metrics._answers.items()):
            found[status] = found.get(status, 0) + count
        return found


def ask_everything(page: Page, doors: Doors) -> list[Any]:
    """Every way that a page has to ask; what it got to see, if anything."""
    seen: list[Any] = []
    paths = (
        *("/health", "/node", "/metrics", "/streams", f"/topics/{CID}", "/search?q=x"),
        *(f"/streams/{STREAM}/messages", f"/streams/{STREAM}/live", f"/topics/{CID}/live"),
        *("/observe/network", "/observe/feed", "/observe/search?query=x", "/explorer/"),
    )
    for path in paths:
        for mode in ("cors", "no-cors"):
            settings = {"mode": mode, "credentials": "include"}
            kind, status, text = page.evaluate(FETCH, [doors.gateway + path, settings])
            seen += [(path, kind, status, text)] if text or status == 200 else []
        seen += [
            (path, name)
            for name in ("img", "script")
            if page.evaluate(ELEMENT, [name, doors.gateway + path]) == "load"
        ]
        page.evaluate(ELEMENT, ["iframe", doors.gateway + path])
    for media in ("text/plain", "application/json"):
        post: dict[str, Any] = {"method": "POST", "body": "1", "headers": {"Content-Type": media}}
        url = f"{doors.gateway}/streams/{STREAM}/messages"
        kind, status, text = page.evaluate(FETCH, [url, post])
        seen += [(url, kind, status, text)] if text or status == 201 else []
    page.evaluate(FORM, f"{doors.gateway}/streams/{STREAM}/messages")
    for url in (doors.link, doors.socket):
        if page.evaluate(SOCKET, url) == "open":
            seen.append((url, "open"))
    return seen


@pytest.mark.parametrize("name", [FOREIGN, "127.0.0.1"], ids=["cross-site", "same-site"])
def test_a_page_of_another_origin_reaches_nothing(
    page: Page, town: ExplorerTown, name: str
) -> None:
    doors = Doors(town, "127.0.0.1")
    before = doors.rejected("foreign-page")
    with attacker_server("") as port:
        page.goto(f"http://{name}:{port}/")
        seen = ask_everything(page, doors)
    assert seen == []
    assert set(doors.answered()) == {403}
    assert doors.answered()[403] >= 60
    assert doors.rejected("foreign-page") == before + 1


@pytest.mark.parametrize("door", ["gateway", "link"])
def test_a_page_under_a_rebound_name_reaches_nothing(
    page: Page, town: ExplorerTown, door: str
) -> None:
    """It came from the attacker, under a name and the port that now lead to the node: for the
    browser it is a page of the node itself."""
    doors = Doors(town, REBOUND)
    before = doors.rejected("foreign-host")
    own = doors.gateway if door == "gateway" else doors.link.replace("ws:", "http:").rstrip("/")
    page.route(
        f"{own}/evil.html",
        lambda route: route.fulfill(content_type="text/html", body="<body></body>"),
    )
    page.goto(f"{own}/evil.html")
    assert page.evaluate("location.origin") == own
    seen = ask_everything(page, doors)
    refused = "is no name of this machine"
    assert [one for one in seen if one[-2] != 421 or refused not in one[-1]] == []
    assert bool(seen) == (door == "gateway"), "its own page may read that it is refused"
    assert set(doors.answered()) == {421}
    assert doors.rejected("foreign-host") == before + 1
    response = page.goto(f"{doors.gateway}/explorer/")
    assert response is not None
    assert response.status == 421


def test_a_link_leads_to_the_explorer(page: Page, town: ExplorerTown) -> None:
    with attacker_server(f"{town.address}/explorer/") as port:
        page.goto(f"http://{FOREIGN}:{port}/")
        page.get_by_role("link", name="look").click()
        expect(page.get_by_text("shoal stream publish")).to_be_visible()
        assert page.url.startswith(town.address)
        page.reload()
        expect(page.get_by_text("shoal stream publish")).to_be_visible()
