"""The built page: files that ship with the package, and what a browser may do with them."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable

from aiohttp import web

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
