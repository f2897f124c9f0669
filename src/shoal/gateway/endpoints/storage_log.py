"""The logs of a storage node over HTTP: pages of rows, what is held, seqs by time, and leases.

People read pages as JSON. Programs ask for format=msgpack: rows come as their publishers signed
them, so that whoever computes on them checks them himself, and a page is large, for a reader of
millions of rows pays for each question.

Leases are the one thing that a client can change here, and need a scope of their own. They cost a
place in the store (10,000 of them in all, 1,000 of one client, an hour each at most) and hold
retention back, for their stream only; so they are taken only of logs that have rows here.
"""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

import msgspec
from aiohttp import web
from msgspec import Meta

from shoal.base.errors import NotFound, UsageError
from shoal.base.gateway_messages import (
    LOG_MEDIA_TYPE,
    PAGE_BYTES_MAX,
    PAGE_ROWS_MAX,
    HeldLog,
    LogRow,
    LogRows,
    Sought,
    StreamHeads,
    UnheardNode,
    encode_rows,
)
from shoal.base.ids import (
    INT63_MAX,
    PARTITIONS_MAX,
    Count,
    NodeId,
    Partition,
    StreamId,
    parse_stream_id,
    show_node_id,
)
from shoal.base.units import S_NS
from shoal.gateway.endpoints.history import FROM, PUBLISHER, TO
from shoal.gateway.request_admission import ADMISSION
from shoal.gateway.requests import Explained, Values, json_answer
from shoal.gateway.route_table import Parameter, Route
from shoal.identity.message_body import decode_body
from shoal.identity.topics.cid import cid_of, parse_cid, show_cid
from shoal.identity.topics.descriptor_codec import decode_descriptor
from shoal.identity.topics.descriptors import EventDescriptor
from shoal.identity.topics.event_signatures import signer_of
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_types import Lease, LogId, LogPage, Row

JSON_ROWS_MAX = 1_000
JSON_ROWS = 100
LEASE_S_MAX = 3_600

_PARTITION = Parameter("partition", Partition, "0 unless given.")
_LOG = Parameter("log", UUID, "Its id, as log/heads names them; this node's own unless given.")
_AFTER = Parameter("after", Count, "Rows after this seq; with `log`, whose seq it is.")
_UPTO = Parameter("upto", Count, "No row after this seq.")
_LIMIT = Parameter("limit", Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX)], "So many at most.")
_MINUS = Parameter("minus", str, "UUID:SEQ,...: without what is in those logs up to their seqs.")
_FORMAT = Parameter("format", Literal["json", "msgpack"], "msgpack is for programs.")
_WHOLE = Parameter(
    "whole",
    bool,
    "true: compare with the stream's other storage nodes first, and name those missed.",
)
_TIME = Parameter("time", str, "When it came in.", required=True)
_HOLDER = Parameter("holder", str, "Whose lease it is.", required=True)
_SECONDS = Parameter("seconds", Annotated[int, Meta(ge=1, le=LEASE_S_MAX)], "How long it lasts.")


class Leased(msgspec.Struct, frozen=True):
    """A lease that was taken."""

    expires_ns: int


class Released(msgspec.Struct, frozen=True):
    """Whether there was a lease to give back."""

    released: bool


T = TypeVar("T")


class Logs:
    """The part of a gateway that serves logs; each path begins with /streams/{id}.

    GET    /log?partition=P&log=UUID&after=SEQ&upto=SEQ&limit=N    rows after a seq; if wanted,
               &minus=UUID:SEQ,...                 without what is in those logs up to their seqs
               &from=T&to=T&publisher=0x...        of a message time, of a publisher
               &format=msgpack                     for programs: base/log_pages.py
    GET    /log/heads?whole=true                   what is held of every log, by partition, and
               which other storage nodes could not be compared with
    GET    /log/seek?partition=P&log=UUID&time=T   the first seq that came in then or later
    PUT    /log/lease?partition=P&log=UUID&after=SEQ&holder=NAME&seconds=S
    DELETE /log/lease?partition=P&log=UUID&holder=NAME
    """

    def __init__(
        self,
        store: Store | None,
        node: NodeId,
        keeps: Callable[[StreamId], bool] | None = None,
        unheard: Callable[[StreamId], Awaitable[list[UnheardNode]]] | None = None,
        *,
        names: Callable[[StreamId], bool] | None = None,
        topics: bool = False,
    ) -> None:
        """Of streams, or of topics, by their CIDs, below /topics/{cid}. `names` says which are
        named one by one; all that are kept, unless it is given. `unheard` compares a stream with
        its other storage nodes, and names those with which that cannot be done."""
        self._base = "/topics/{cid}" if topics else "/streams/{id}"
        # Events are found by their authors, whoever published them.
        self._filters = (FROM, TO) if topics else (FROM, TO, PUBLISHER)
        self._store = store
        self._node = node
        self._keeps = keeps or _never
        self._names = names or self._keeps
        self._unheard = unheard
        self._leases = ClientLeases()
        # One at a time, beside the disk thread: a reader of logs must not take the machine over.
        # Short questions do not wait behind pages.
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="shoal-log")
        self._asking = ThreadPoolExecutor(1, thread_name_prefix="shoal-heads")

    def routes(self) -> Iterable[Route]:
        """Serve."""
        yield Route(
            method="GET",
            path=f"{self._base}/log/heads",
            handler=self._heads,
            summary="What this storage node holds of every log",
            access="read",
            parameters=(_WHOLE,),
            answer=StreamHeads,
        )
        yield Route(
            method="GET",
            path=f"{self._base}/log/seek",
            handler=self._seek,
            summary="The first seq that came in at a time or later",
            access="read",
            parameters=(_PARTITION, _LOG, _TIME),
            answer=Sought,
        )
        yield Route(
            method="PUT",
            path=f"{self._base}/log/lease",
            handler=self._lease,
            summary="Hold retention back for a reader",
            access="lease",
            parameters=(_PARTITION, _LOG, _AFTER, _HOLDER, _SECONDS),
            answer=Leased,
        )
        yield Route(
            method="DELETE",
            path=f"{self._base}/log/lease",
            handler=self._release,
            summary="Give a lease back",
            access="lease",
            parameters=(_PARTITION, _LOG, _HOLDER),
            answer=Released,
        )
        yield Route(
            method="GET",
            path=f"{self._base}/log",
            handler=self._log,
            summary="Rows of a storage node's log after a seq",
            access="read",
            parameters=(
                *(_PARTITION, _LOG, _AFTER, _UPTO, _LIMIT, _MINUS, *self._filters, _FORMAT),
            ),
            answer=dict[str, Any],
        )

    def close(self) -> None:
        """Leave no thread behind."""
        self._reading.shutdown()
        self._asking.shutdown()

    # Reading

    async def _log(self, request: web.Request) -> web.Response:
        with Explained():
            store, stream, values = self._asked(request)
            form = values.get("format") or "json"
            if form not in ("json", "msgpack"):
                raise UsageError(f"format={form}: give json, or msgpack")
            for_people = form == "json"
            along, after = values.log("log"), values.number("after", 0, INT63_MAX, 0)
            if along is None and after:
                raise UsageError(
                    f"after={after}: that is a place in one log, and a node may begin a new one:"
                    f" name it with log=, as `log` in the answer before did (the log of this node"
                    f" is {store.log} now)"
                )
            rows_max = JSON_ROWS_MAX if for_people else PAGE_ROWS_MAX
            question = LogQuestion(
                log=along or store.log,
                stream=stream,
                partition=_partition(values),
                after=after,
                upto=values.number("upto", 0, INT63_MAX, INT63_MAX),
                limit=values.number("limit", 1, rows_max, JSON_ROWS if for_people else rows_max),
                minus=values.minus("minus"),
                from_ms=_ms(values.time("from")),
                to_ms=_ms(values.time("to")),
                publisher=values.node("publisher") if PUBLISHER in self._filters else None,
            )
            values.check_all_known()
            if for_people:
                page = await self._read(read_json_page, store, question)
                shown = _shown(question.log, page, topic="cid" in request.match_info)
                return json_answer({**shown, "own": str(store.log)})
            rows = await self._read(read_page, store, question)
            return web.Response(body=encode_rows(rows), content_type=LOG_MEDIA_TYPE)

    async def _heads(self, request: web.Request) -> web.Response:
        with Explained():
            store, stream, values = self._asked(request)
            whole = values.get("whole") or "false"
            if whole not in ("true", "false"):
                raise UsageError(f"whole={whole}: give true, or false")
            values.check_all_known()
            unheard: list[UnheardNode] = []
            if whole == "true" and self._unheard is not None:
                unheard = await self._unheard(stream)
            heads = await self._work(store.stream_heads, stream)
            held = {
                partition: [HeldLog(log, head.first, head.last) for log, head in at.logs.items()]
                for partition, at in sorted(heads.items())
                if partition < PARTITIONS_MAX  # the keys of encrypted streams are no content
            }
            kept = bool(held) or self._keeps(stream)
            had = any(head.last for at in heads.values() for head in at.logs.values())
            known = had or self._names(stream)
            node = show_node_id(self._node)
            return json_answer(StreamHeads(node, store.log, kept, known, held, unheard))

    async def _seek(self, request: web.Request) -> web.Response:
        with Explained():
            store, stream, values = self._asked(request)
            partition, log = _partition(values), values.log("log") or store.log
            when = values.time("time")
            values.check_all_known()
            if when is None:
                raise UsageError("time=: give milliseconds since 1970, or 2026-01-31T12:00:00Z")
            ingest_ns = min(max(0, round(when.timestamp() * 1_000_000) * 1_000), INT63_MAX)

            def work() -> Sought:
                seq = store.first_seq_at(log, stream, partition, ingest_ns)
                return Sought(log, seq, store.heads(stream, partition)[log].last)

            return json_answer(await self._work(work))

    # Leases

    async def _lease(self, request: web.Request) -> web.Response:
        with Explained():
            store, stream, values = self._asked(request)
            partition, log = _partition(values), _named_log(values)
            after = values.number("after", 0, INT63_MAX, 0)
            seconds = values.number("seconds", 1, LEASE_S_MAX, LEASE_S_MAX)
            holder = _holder(values)
            values.check_all_known()
            client, key = _client(request), (holder, log, stream, partition)

            def work() -> int:
                # A lease on a stream that never was here would take one of its names for ever.
                if log not in store.heads(stream, partition) or not store.stream_heads(stream):
                    raise NotFound(f"log {log} has no rows of {stream!r}, partition {partition}")
                now_ns = time.time_ns()
                expires_ns: int = now_ns + seconds * S_NS
                self._leases.check(client, key, now_ns)
                store.lease(Lease(holder, log, stream, partition, after, expires_ns), now_ns)
                self._leases.taken(client, key, expires_ns)
                return expires_ns

            return json_answer(Leased(await self._work(work)))

    async def _release(self, request: web.Request) -> web.Response:
        with Explained():
            store, stream, values = self._asked(request)
            partition, log, holder = _partition(values), _named_log(values), _holder(values)
            values.check_all_known()

            def work() -> bool:
                self._leases.released((holder, log, stream, partition))
                return store.release(holder, log, stream, partition)

            released = await self._work(work)
            return json_answer(Released(released))

    def _asked(self, request: web.Request) -> tuple[Store, StreamId, Values]:
        if self._store is None:
            raise NotFound("this node keeps nothing: ask a storage node of the stream")
        if "cid" in request.match_info:
            topic = StreamId(show_cid(parse_cid(request.match_info["cid"])))
            return self._store, topic, Values(request)
        return self._store, parse_stream_id(request.match_info["id"]), Values(request)

    async def _read(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reading, work, *arguments)

    async def _work(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._asking, work, *arguments)


def _never(stream: StreamId) -> bool:
    return False


def _client(request: web.Request) -> str:
    """Whose leases they are: the key's, or the address's."""
    admission = request.get(ADMISSION)
    key = None if admission is None else admission.key
    return request.remote or "" if key is None else f"key {key.id}"


def _partition(values: Values) -> int:
    partition: int = values.number("partition", 0, PARTITIONS_MAX - 1, 0)
    return partition


def _named_log(values: Values) -> LogId:
    log = values.log("log")
    if log is None:
        raise UsageError("log=: a lease is of one log: give its id, as log/heads names them")
    return log


def _holder(values: Values) -> str:
    holder = values.get("holder")
    if not holder:
        raise UsageError("holder=: whose lease it is: give a name")
    return holder


def _ms(when: datetime | None) -> int | None:
    return None if when is None else round(when.timestamp() * 1000)


def _shown(log: LogId, page: LogPage, *, topic: bool) -> dict[str, Any]:
    return {
        "log": str(log),
        "first": page.head.first,
        "last": page.head.last,
        "through": page.through,
        "damaged": [row.seq for row in page.damaged],
        "rows": [(_shown_event if topic else _shown_row)(row) for row in page.rows],
    }


def _shown_event(row: Row) -> dict[str, Any]:
    """Of a topic: programs that want more of it decode its block."""
    event = decode_descriptor(row.signed)
    assert isinstance(event, EventDescriptor)  # nothing else is appended
    assert event.publisher is not None
    return {
        "seq": row.seq,
        "ingest_ns": row.ingest_ns,
        "timestamp_ms": row.id.timestamp_ms,
        "publisher": show_node_id(signer_of(event.publisher)),
        "cid": show_cid(cid_of(row.signed)),
        "block": b64encode(row.signed).decode(),
    }


def _shown_row(row: Row) -> dict[str, Any]:
    body = decode_body(row.signed)
    return {
        "seq": row.seq,
        "ingest_ns": row.ingest_ns,
        "timestamp_ms": body.id.timestamp_ms,
        "sequence": body.id.sequence,
        "publisher": show_node_id(NodeId(body.id.publisher)),
        "chain": body.id.chain,
        "content_type": body.content_type,
        "content": b64encode(body.content).decode(),
    }


# One page of a log, of as many transactions as it takes, and no more than it may.


SCANS_MAX = 5
"""Transactions that find less than a page in them, of 20,000 rows each: a question whose filter
leaves everything out is answered after 0.1 s, with how far it came."""


class LogQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows a client wants."""

    log: LogId
    stream: StreamId
    partition: int
    after: int
    upto: int
    limit: int
    minus: Mapping[LogId, int]
    from_ms: int | None
    to_ms: int | None
    publisher: NodeId | None


def read_json_page(store: Store, question: LogQuestion) -> LogPage:
    """What one transaction gives: people see no more at once."""
    return _read(store, question, question.after, question.limit)


def read_page(store: Store, question: LogQuestion) -> LogRows:
    """As much as a page takes."""
    rows: list[LogRow] = []
    damaged: list[int] = []
    after, size_bytes, scans = question.after, 0, 0
    while True:
        page = _read(store, question, after, question.limit - len(rows) - len(damaged))
        damaged += [row.seq for row in page.damaged]
        rows += [LogRow(row.seq, row.ingest_ns, row.signed) for row in page.rows]
        size_bytes += sum(len(row.signed) for row in page.rows)
        scans += 1
        if (
            page.through >= min(question.upto, page.head.last)
            or len(rows) + len(damaged) >= question.limit
            or size_bytes >= PAGE_BYTES_MAX
            or (scans >= SCANS_MAX and page.through - question.after > len(rows))
        ):
            head = page.head
            return LogRows(question.log, head.first, head.last, page.through, rows, damaged)
        after = page.through


def _read(store: Store, question: LogQuestion, after: int, limit: int) -> LogPage:
    page = store.log_read(
        question.log,
        question.stream,
        question.partition,
        after,
        limit,
        question.minus,
        publisher=question.publisher,
        from_ms=question.from_ms,
        to_ms=question.to_ms,
    )
    if question.after > page.head.last:
        raise NotFound(
            f"log {question.log}, partition {question.partition}, is held here up to seq"
            f" {page.head.last}, and not to {question.after}: ask another storage node, or wait for"
            " this one"
        )
    if page.through <= question.upto:
        return page
    rows = [row for row in page.rows if row.seq <= question.upto]
    damaged = tuple(row for row in page.damaged if row.seq <= question.upto)
    return LogPage(rows, max(after, question.upto), page.head, damaged)


# How many leases each client has: one that takes them all would leave none for others.
#
# Counted since the start of the gateway: what a client took before lasts for an hour at most.


LEASES_MAX = 1_000
"""Of one client, of the 10,000 of a store: ten queries over a stream with 100 partitions."""

LeaseKey = tuple[str, LogId, StreamId, int]
"""Holder, log, stream, partition."""


class ClientLeases:
    """Leases by the key or address of who took them; as many as a store has at most."""

    def __init__(self, most: int = LEASES_MAX) -> None:
        self._most = most
        self._expiry_ns: dict[str, dict[LeaseKey, int]] = {}
        self._checks = 0

    def __len__(self) -> int:
        """How many are counted."""
        return sum(map(len, self._expiry_ns.values()))

    def check(self, client: str, key: LeaseKey, now_ns: int) -> None:
        """UsageError if this client has its share, and would take one more."""
        self._checks += 1
        if self._checks >= self._most:  # clients that never come back would be counted for ever
            self._checks = 0
            self._forget_expired(now_ns)
        own = self._expiry_ns.get(client, {})
        if key in own or len(own) < self._most:
            return
        for lease in [lease for lease, expires_ns in own.items() if expires_ns <= now_ns]:
            del own[lease]
        if len(own) >= self._most:
            raise UsageError(
                f"{client} has {len(own)} leases here, and no client gets more: release those that"
                " are not needed (DELETE log/lease), or let them expire"
            )

    def _forget_expired(self, now_ns: int) -> None:
        for client, own in list(self._expiry_ns.items()):
            held = {key: expires_ns for key, expires_ns in own.items() if expires_ns > now_ns}
            if held:
                self._expiry_ns[client] = held
            else:
                del self._expiry_ns[client]

    def taken(self, client: str, key: LeaseKey, expires_ns: int) -> None:
        """The store has given it a lease."""
        self._expiry_ns.setdefault(client, {})[key] = expires_ns

    def released(self, key: LeaseKey) -> None:
        """A lease was given back, by whomever."""
        for client, own in list(self._expiry_ns.items()):
            own.pop(key, None)
            if not own:
                del self._expiry_ns[client]
