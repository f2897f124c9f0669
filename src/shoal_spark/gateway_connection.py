"""Values of Spark options that source and sink have in common."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from shoal.base.errors import UsageError
from shoal.base.ids import StreamId, parse_stream_id
from shoal.identity.secret_sources import read_secret, split_secret_source

SECONDS_MAX = 86_400


def gateway_address(option: str, text: str) -> str:
    """Where a gateway is, without what an address may have besides."""
    url = urlsplit(text)
    try:
        port_fits = url.port is None or url.port > 0
    except ValueError:
        port_fits = False
    plain = not (url.query or url.fragment or url.username or url.path.strip("/"))
    if url.scheme not in ("http", "https") or not url.hostname or not port_fits or not plain:
        raise UsageError(
            f"{option}: {text!r} is no address of a gateway: write http://host:port, as in"
            " http://127.0.0.1:7780"
        )
    return f"{url.scheme}://{url.netloc}"


def stream_option(text: str) -> StreamId:
    """The one stream of a read or a write; UsageError for a list or a pattern, which would be the
    name of a stream that nobody meant."""
    if "," in text or "*" in text:
        raise UsageError(
            f"stream = {text!r}: give the id of one stream, without , and *: streams are read and"
            " written one by one (union joins frames)"
        )
    return parse_stream_id(text)


def patience(text: str | None, otherwise: float) -> float:
    """patienceSeconds, in seconds."""
    try:
        seconds = otherwise if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= SECONDS_MAX:
        raise UsageError(f"patienceSeconds = {text!r}: give seconds, 0 to {SECONDS_MAX}")
    return seconds


def token_source(text: str | None) -> str | None:
    """Where a token is; UsageError for the token itself."""
    if text is not None:
        split_secret_source("token", text)
    return text


def authorization(token: str | None) -> dict[str, str]:
    """What a request says of who sends it; read where it is sent."""
    if token is None:
        return {}
    return {"Authorization": f"Bearer {read_secret('token', token, Path(), os.environ)}"}
