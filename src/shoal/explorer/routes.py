"""The explorer's routes: the page, and what it asks for. Everything is GET, and changes nothing.

GET /explorer/                        the page; /explorer/assets/NAME what it consists of
GET /observe/feed                     what happens, as lines of JSON (batches.py)
GET /observe/network                  which nodes are seen, and what they take part in
GET /observe/streams, overlay?id=     streams; the nodes and links of one
GET /observe/estimate?id=             the delays to expect in a stream
GET /observe/topics, topic?cid=       topics; tree and events of one
GET /observe/circle                   the seen part of the search network
GET /observe/search?query=            a search, as lines of JSON while it goes on
GET /observe/runs, run?run=           finished runs of the lab; figures and overlay of one
GET /observe/path?run=&message=       the way of one message of a run
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from aiohttp import web

from shoal.base.errors import NotFound, ShoalError, UsageError
from shoal.base.ids import NodeId, StreamId, show_node_id
from shoal.explorer.feed import Feed, Reader
from shoal.explorer.nodes import SeenNode, SeenNodes
from shoal.explorer.overlays import StreamViews, TopicViews
from shoal.explorer.searches import SearchViews
from shoal.protocols.search.machine import SearchNode
from shoal_lab.views.finished_runs import RunFolder, run_line, shown_figures

if TYPE_CHECKING:
    from shoal_lab.views.run_overlay import RunTables

STALLED_S = 20.0  # a page that takes nothing for so long is gone
CONFIDENCE_DEFAULT = 0.99
MESSAGE_MAX = 2**31

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_encode = msgspec.json.Encoder().encode


class ExplorerRoutes:
    """Serves the explorer of the nodes of one process."""

    public: tuple[str, ...] = ("/explorer",)
    """Files without data: a browser asks for them without a key."""

    def __init__(self, nodes: Iterable[SeenNode] = (), results: Path | None = None) -> None:
        """The nodes to look into, more of which may come; and a folder of runs of the lab."""
        self._nodes = SeenNodes()
        self._feed = Feed(self._nodes)
        self._pages = Pages()
        self._streams = StreamViews(self._nodes)
        self._topics = TopicViews(self._nodes)
        self._searches = SearchViews(self._nodes)
        self._runs = RunFolder(results)
        # Estimates and tables one at a time: each takes up to a second of one core.
        self._thread = ThreadPoolExecutor(1, "shoal-explorer")
        for node in nodes:
            self.add(node)

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Serve."""
        router.add_get("/explorer", self._pages.to_index)
        router.add_get("/explorer/", self._pages.index)
        router.add_get("/explorer/assets/{name}", self._pages.asset)
        for name, handler in (
            ("feed", self._open_feed),
            ("network", self._network),
            ("streams", self._all_streams),
            ("overlay", self._overlay),
            ("estimate", self._estimate),
            ("topics", self._all_topics),
            ("topic", self._topic),
            ("circle", self._circle),
            ("search", self._search),
            ("runs", self._all_runs),
            ("run", self._run),
            ("path", self._path),
        ):
            router.add_get(f"/observe/{name}", _explained(handler))

    def add(self, node: SeenNode) -> None:
        """One more node of this process."""
        self._nodes.add(node)
        self._feed.came(node)

    def remove(self, node: NodeId) -> None:
        """A node of this process is going."""
        found = self._nodes.remove(node)
        if found is not None:
            self._feed.lost(found)

    def close(self) -> None:
        """Let go of everything; pages that are open are told by the end of their feed."""
        self._feed.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    # The network

    async def _open_feed(self, request: web.Request) -> web.StreamResponse:
        if self._feed.full:
            raise UsageError("too many pages are open: close one")
        reader = Reader()
        response = await _lines(request)
        self._feed.begin(reader)
        try:
            async with aclosing(reader.lines()) as lines:  # type: ignore[type-var]
                async for line in lines:
                    await _write(response, line)
        except (ConnectionResetError, TimeoutError):
            pass  # the page is gone
        finally:
            self._feed.end(reader)
        return response

    async def _network(self, request: web.Request) -> web.Response:
        nodes = [
            {"id": show_node_id(node.id), "region": node.region, "place": node.place}
            for node in self._nodes
        ]
        return _answer(
            {
                "nodes": nodes,
                "tracker": bool(self._nodes.trackers()),
                "topics": self._topics.present,
                "search": any(True for _ in self._nodes.machines(SearchNode)),
            }
        )

    # Streams

    async def _all_streams(self, request: web.Request) -> web.Response:
        return _answer(self._streams.all())

    async def _overlay(self, request: web.Request) -> web.Response:
        return _answer(self._streams.overlay(StreamId(_value(request, "id"))))

    async def _estimate(self, request: web.Request) -> web.Response:
        from shoal.protocols.streams.tracker.delay_estimate import estimate_delays

        overlay = self._streams.measured(StreamId(_value(request, "id")))
        return _answer(await self._in_thread(partial(estimate_delays, *overlay)))

    # Topics and search

    async def _all_topics(self, request: web.Request) -> web.Response:
        return _answer(self._topics.all())

    async def _topic(self, request: web.Request) -> web.Response:
        return _answer(self._topics.page(_value(request, "cid")))

    async def _circle(self, request: web.Request) -> web.Response:
        return _answer(self._searches.circle())

    async def _search(self, request: web.Request) -> web.StreamResponse:
        query = _value(request, "query")
        confidence = _confidence(request)
        found = self._searches.search(query, confidence)
        async with aclosing(found):  # type: ignore[type-var]
            first = await anext(found, None)  # what is wrong with a query is told by the status
            response = await _lines(request)
            with suppress(ConnectionResetError, TimeoutError):
                if first is not None:
                    await _write(response, _encode(first) + b"\n")
                    async for line in found:
                        await _write(response, _encode(line) + b"\n")
        return response

    # Runs of the lab

    async def _all_runs(self, request: web.Request) -> web.Response:
        runs = await self._in_thread(self._runs.all)
        folder = self._runs.folder
        return _answer({"folder": None if folder is None else folder.name, "runs": runs})

    async def _run(self, request: web.Request) -> web.Response:
        return _answer(await self._in_thread(partial(self._read_run, _value(request, "run"))))

    async def _path(self, request: web.Request) -> web.Response:
        run, message = _value(request, "run"), _value(request, "message")
        if not (message.isascii() and message.isdigit()) or int(message) > MESSAGE_MAX:
            raise UsageError(f"message={message!r}: give the number of a message")
        tables = _tables(self._runs.path(run))
        return _answer(await self._in_thread(partial(tables.path, int(message))))

    def _read_run(self, run: str) -> dict[str, Any]:
        file = self._runs.file(run)
        overlay = _tables(self._runs.path(run)).overlay() if file.has_overlay else None
        return {
            "line": run_line(file),
            "replay": file.result.get("replay"),
            "figures": shown_figures(file),
            "overlay": overlay,
        }

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _tables(path: Path) -> RunTables:
    from shoal_lab.views.run_overlay import RunTables  # with NumPy, for whoever looks at runs

    return RunTables(path)


# How it is asked and answered


def _explained(handler: Handler) -> Handler:
    """Errors say what to do instead, as JSON."""

    async def explained(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except NotFound as error:
            return _answer({"error": str(error)}, 404)
        except UsageError as error:
            return _answer({"error": str(error)}, 400)
        except ShoalError as error:
            return _answer({"error": str(error)}, 503)

    return explained


def _answer(value: Any, status: int = 200) -> web.Response:
    headers = {**HEADERS, "Cache-Control": "no-store"}
    return web.Response(
        body=_encode(value), content_type="application/json", status=status, headers=headers
    )


async def _lines(request: web.Request) -> web.StreamResponse:
    headers = {**HEADERS, "Cache-Control": "no-store", "Content-Type": "application/x-ndjson"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    return response


async def _write(response: web.StreamResponse, line: bytes) -> None:
    async with asyncio.timeout(STALLED_S):
        await response.write(line)


def _value(request: web.Request, name: str) -> str:
    value = request.query.get(name, "")
    if not value:
        raise UsageError(f"{name}= is missing: {request.path}?{name}=...")
    return value


def _confidence(request: web.Request) -> float:
    text = request.query.get("confidence", str(CONFIDENCE_DEFAULT))
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"confidence={text!r}: give a part of one, as in 0.99") from None


# The built page: files that ship with the package, and what a browser may do with them.


# No script or style but our own, nothing from anywhere else, and in nobody's frame.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "font-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".woff2": "font/woff2",
}


class Pages:
    """Serves what was built from web/."""

    def __init__(self) -> None:
        root = files("shoal.explorer") / "static"
        # Read once: a name from outside is looked up here, and never becomes a path.
        self._files = {name: (kind, body) for name, kind, body in _built(root)}

    async def index(self, request: web.Request) -> web.Response:
        """The page."""
        return self._answer("index.html", "no-cache")

    async def asset(self, request: web.Request) -> web.Response:
        """What it consists of."""
        # Names change with what is in them.
        return self._answer(request.match_info["name"], "public, max-age=31536000, immutable")

    async def to_index(self, request: web.Request) -> web.Response:
        """Somebody left out the slash."""
        return web.Response(status=308, headers={"Location": "/explorer/", **HEADERS})

    def _answer(self, name: str, caching: str) -> web.Response:
        if name not in self._files:
            raise web.HTTPNotFound
        kind, body = self._files[name]
        text = kind.startswith("text/")
        return web.Response(
            body=body,
            content_type=kind,
            charset="utf-8" if text else None,
            headers={**HEADERS, "Cache-Control": caching},
        )


def _built(root: Traversable) -> list[tuple[str, str, bytes]]:
    found = []
    for folder in (root, root / "assets"):
        for file in folder.iterdir():
            suffix = file.name[file.name.rfind(".") :]
            if file.is_file() and suffix in TYPES:
                found.append((file.name, TYPES[suffix], file.read_bytes()))
    return found
