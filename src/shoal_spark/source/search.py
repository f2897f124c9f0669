"""`spark.read.format("shoal").option("search", QUERY)`: documents of the whole network, once.

The question is asked through the gateway of a node of the search network, when the query runs. A
search is sure of its answer only to a probability, which every row says: `confidence`. Whoever owns
a document has signed it; that was checked by the node that asked, not again here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from shoal.base.errors import HistoryUnavailable, MalformedMessage, UsageError
from shoal_spark.gateway_connection import authorization, gateway_address, token_source

SEARCH_SCHEMA = pa.schema(
    [
        ("owner", pa.string()),
        ("name", pa.string()),
        ("version", pa.int64()),
        ("kind", pa.string()),
        ("life", pa.string()),
        ("expires", pa.timestamp("us", tz="UTC")),
        ("score", pa.float64()),
        ("content", pa.string()),
        ("confidence", pa.float64()),
    ]
)
KNOWN = {
    "servers": "HTTP addresses of nodes of the search network, with commas between",
    "search": "what is looked for",
    "confidence": "with which probability a document that is there is found",
    "limit": "so many documents are enough",
    "withinSeconds": "how long the search may take",
    "token": "where the gateways' key is, env:NAME or file:PATH, if they ask for one",
}
_BY_LOWER = {name.lower(): name for name in KNOWN}
_ASKED_AS = {"search": "q", "confidence": "confidence", "limit": "limit", "withinSeconds": "within"}
TIMEOUT_S = 90.0  # a gateway lets a search take a minute at most
_encode = msgspec.json.Encoder().encode


class SearchOptions(msgspec.Struct, frozen=True):
    """The options of one search."""

    servers: tuple[str, ...]
    question: dict[str, str]
    """As a gateway is asked it, which checks its numbers."""
    token: str | None


class Hit(msgspec.Struct, frozen=True):
    """A document, as a gateway tells it."""

    owner: str
    name: str
    version: int
    kind: str
    life: str
    expires: datetime
    score: float
    content: Any


class Found(msgspec.Struct, frozen=True):
    """What a gateway answers."""

    confidence: float
    hits: list[Hit]


def is_search(options: Mapping[str, str]) -> bool:
    """Whether a read is a search."""
    return any(name.lower() == "search" for name in options)


def parse_search(given: Mapping[str, str]) -> SearchOptions:
    """The options of a search; UsageError names what is wrong. Names are read in any case."""
    options: dict[str, str] = {}
    for name, value in given.items():
        known = _BY_LOWER.get(name.lower())
        if known is None:
            raise UsageError(f"option {name!r}: a search has none; known are {', '.join(KNOWN)}")
        options[known] = value.strip()
    for name in ("servers", "search"):
        if not options.get(name):
            raise UsageError(f"option {name!r} is missing: give {KNOWN[name]}")
    return SearchOptions(
        tuple(gateway_address("servers", one.strip()) for one in options["servers"].split(",")),
        {word: options[name] for name, word in _ASKED_AS.items() if name in options},
        token_source(options.get("token")),
    )


class SearchReader(DataSourceReader):
    """One search, of one task."""

    def __init__(self, options: SearchOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """A search is one question."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        found = ask(self._options)
        rows = [
            {
                **msgspec.structs.asdict(hit),
                "content": _encode(hit.content).decode(),
                "confidence": found.confidence,
            }
            for hit in found.hits
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=SEARCH_SCHEMA)


def ask(options: SearchOptions) -> Found:
    """The answer of the first server that has one; UsageError if the question is wrong."""
    problems = []
    for address in options.servers:
        try:
            status, body = _exchange(address, options)
        except (OSError, HTTPException) as error:
            problems.append(f"{address}: {error or type(error).__name__}")
            continue
        if status == 200:
            try:
                return msgspec.json.decode(body, type=Found)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise MalformedMessage(f"{address}: no answer to a search: {error}") from error
        if status == 400:
            raise UsageError(f"{address}: {_text(body)}")
        problems.append(f"{address}: {_text(body) or status}")
    raise HistoryUnavailable(
        f"nobody answers the search ({'; '.join(problems)}): name gateways of nodes that are in the"
        " search network ([search] in their network files)"
    )


def _exchange(address: str, options: SearchOptions) -> tuple[int, bytes]:
    url = urlsplit(address)
    kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
    connection = kind(url.netloc, timeout=TIMEOUT_S)
    try:
        target = f"/search?{urlencode(options.question)}"
        connection.request("GET", target, headers=authorization(options.token))
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, TypeError, KeyError):
        return ""
