"""Storage nodes over HTTP: any of them that has what is asked for will do.

One connection per server, kept open. A server that cannot be reached, or does not have it, is
passed over for the next one; when all were asked in vain, they are asked again for a while. Not so
if all of them say that this client may not: that is said at once.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit
from uuid import UUID, uuid4

import msgspec

from shoal.base.errors import (
    HistoryUnavailable,
    MalformedMessage,
    NotFound,
    NotPermitted,
    OffsetExpired,
    ShoalError,
    UsageError,
)
from shoal.base.gateway_messages import (
    LogRows,
    Sought,
    StreamHeads,
    decode_heads,
    decode_rows,
    decode_sought,
)
from shoal.base.offsets import Offset
from shoal_spark.gateway_connection import authorization
from shoal_spark.source.offsets import LogRange, RowFilter
from shoal_spark.source.options import SourceOptions

TIMEOUT_S = 10.0
PAGE_TIMEOUT_S = 30.0  # a server reads one page after the other, and many executors ask
PAUSE_S = 0.5  # before all servers are asked again
AWAY_S = 10.0  # a server that let us wait is left alone for so long, if others answer
ANSWER_BYTES_MAX = 64 * 1024 * 1024

T = TypeVar("T")

log = logging.getLogger("shoal.pipeline")


class RowsDamaged(ShoalError):
    """Rows that whoever has them cannot read."""

    def __init__(self, text: str, page: LogRows) -> None:
        super().__init__(text)
        self.page = page
        """All other rows there, of all servers that answered."""


class ServerAway(ShoalError):
    """No answer, or none that can be used."""


_PASSED_OVER = (ServerAway, NotFound, NotPermitted, MalformedMessage)
"""What one server says, while another one may have an answer."""

_MEANING: Mapping[int, type[ShoalError]] = {
    400: UsageError,
    401: NotPermitted,
    403: NotPermitted,
    404: NotFound,
}


class LogServer:
    """One storage node. Not for two threads at once."""

    def __init__(self, address: str, path: str, headers: Mapping[str, str]) -> None:
        self.address = address
        self.away_until_s = 0.0
        self._path = path
        self._headers = headers
        self._connection: HTTPConnection | None = None

    def ask(self, method: str, below: str, timeout_s: float = TIMEOUT_S, **query: Any) -> bytes:
        """One question; ServerAway, or what the status means, if it has no answer."""
        words = {name: value for name, value in query.items() if value is not None}
        target = f"{self._path}{below}?{urlencode(words, safe=':,')}"
        used_before = self._connection is not None
        try:
            status, body = self._exchange(method, target, timeout_s)
        except (OSError, HTTPException) as error:
            self.close()
            if used_before and not isinstance(error, TimeoutError):
                return self.ask(
                    method, below, timeout_s, **query
                )  # it was closed while nobody looked
            if isinstance(error, TimeoutError):
                self.away_until_s = time.monotonic() + AWAY_S
            raise ServerAway(str(error) or type(error).__name__) from error
        if status == 200:
            return body
        raise _error(status, body)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, method: str, target: str, timeout_s: float) -> tuple[int, bytes]:
        if self._connection is None:
            url = urlsplit(self.address)
            kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
            self._connection = kind(url.netloc, timeout=TIMEOUT_S)
            self._connection.connect()
        self._connection.sock.settimeout(timeout_s)
        self._connection.request(method, target, headers=self._headers)
        response = self._connection.getresponse()
        body = response.read(ANSWER_BYTES_MAX + 1)
        if len(body) > ANSWER_BYTES_MAX:
            raise HTTPException(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        return response.status, body


class LogServers:
    """All storage nodes that a read may ask."""

    def __init__(self, options: SourceOptions, patience_s: float | None = None) -> None:
        """As patient as the options say, unless told otherwise."""
        self.stream = options.stream
        self._allow_missing = options.allow_missing
        headers = authorization(options.token)
        self._servers = [LogServer(a, options.path, headers) for a in options.servers]
        self._refused: set[str] = set()
        """Servers that were told something and did not permit it, of which the log has heard."""
        self._patience_s = options.patience_s if patience_s is None else patience_s
        self._kind, self._kept_by = (
            ("topic", "`topics` under [storage]")
            if options.is_topic
            else ("stream", "`storage` under [[streams]]")
        )

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def heads(self, *, whole: bool = False) -> list[StreamHeads]:
        """What each server has that answers; NotFound if none of them knows the stream, and the
        options do not allow that. A server that does not answer may know it, and is waited for. If
        it is to be the whole, each is compared with the stream's other storage nodes before."""

        def all_at_once() -> list[StreamHeads] | None:
            now_s = time.monotonic()
            asked = [s for s in self._servers if s.away_until_s <= now_s] or self._servers
            with ThreadPoolExecutor(len(asked)) as threads:
                answers = list(threads.map(partial(_heads_or_problem, whole=whole), asked))
            problems.update(zip((s.address for s in asked), answers, strict=True))
            found = [answer for answer in answers if isinstance(answer, StreamHeads)]
            if self._allow_missing or any(answer.known for answer in found):
                return found or None
            certain = [a for a in answers if isinstance(a, StreamHeads | NotFound)]
            if len(certain) == len(self._servers):
                raise self._missing(found)
            for answer, server in zip(answers, asked, strict=True):
                if isinstance(answer, StreamHeads):
                    problems[server.address] = f"it knows no such {self._kind}"
            return None

        problems: dict[str, Any] = {}
        return self._patiently("what they have", all_at_once, problems)

    def _missing(self, heads: Sequence[StreamHeads]) -> NotFound:
        asked = ", ".join(server.address for server in self._servers)
        if any(answer.kept for answer in heads):
            return NotFound(
                f"there is no {self._kind} {self.stream}: the servers keep any {self._kind}, and"
                f" none ever had a message of this one (asked: {asked}). Look at its name; or set"
                " allowMissing to true, if its first message is still to come: then it is empty,"
                " and a streaming query waits for it"
            )
        return NotFound(
            f"no server keeps {self._kind} {self.stream} (asked: {asked}): look at its name, and"
            f" name a server that keeps it; a {self._kind} is kept where {self._kept_by} in the"
            " network file says so"
        )

    def rows(
        self,
        part: LogRange,
        after: int,
        wanted: RowFilter,
        limit: int | None = None,
        *,
        damaged_too: bool = False,
    ) -> LogRows:
        """The next page after a seq; OffsetExpired if whoever answers has let go of it. RowsDamaged
        if rows of it can be read nowhere, unless they may be missing."""
        query = {
            "format": "msgpack",
            "partition": part.partition,
            "log": part.log,
            "after": after,
            "upto": part.upto,
            "limit": limit,
            "minus": ",".join(f"{log}:{seq}" for log, seq in sorted(part.minus.items())) or None,
            **wanted.query(),
        }

        pages: dict[str, LogRows] = {}  # those with damage, by server

        def ask(server: LogServer) -> LogRows:
            page = decode_rows(server.ask("GET", "", PAGE_TIMEOUT_S, **query))
            check_page(part, after, page, everything=not (part.minus or wanted.query()))
            if page.damaged and not damaged_too:
                pages[server.address] = page
                page = put_together(list(pages.values()))  # each may have what the others lack
                if page.damaged:
                    raise RowsDamaged(
                        f"rows {', '.join(map(str, page.damaged[:5]))} of log {part.log}, partition"
                        f" {part.partition}, are damaged at {', '.join(pages)}, and no other server"
                        " has them: run `shoal storage repair` there, or set failOnDataLoss to"
                        " false to go on without them",
                        page,
                    )
            return page

        what = f"log {part.log}, partition {part.partition}, {after + 1} to {part.upto}"
        return self._first(what, ask)

    def seek(self, log: UUID, partition: int, when_ms: int) -> int:
        """The first seq that came in then or later, or the next to be given. All are asked: one may
        not have the log that far yet, and another may have let go of its beginning."""

        def all_in_turn() -> list[Sought] | None:
            answers = []
            for server in self._servers:
                try:
                    raw = server.ask("GET", "/seek", partition=partition, log=log, time=when_ms)
                    answers.append(decode_sought(raw))
                except _PASSED_OVER as error:
                    problems[server.address] = error
            return answers or None

        problems: dict[str, Any] = {}
        answers = self._patiently(f"log {log} by time", all_in_turn, problems)
        found = [answer.seq for answer in answers if answer.seq <= answer.last]
        return min(found) if found else max(answer.seq for answer in answers)

    def everywhere(self, method: str, below: str, **query: Any) -> int:
        """Tell every server; how many took it."""
        taken = 0
        for server in self._servers:
            try:
                server.ask(method, below, **query)
                taken += 1
            except NotPermitted as error:
                if server.address not in self._refused:
                    log.warning("%s refuses %s %s: %s", server.address, method, below, error)
                self._refused.add(server.address)
            except ShoalError:
                continue
        return taken

    def _first(self, what: str, ask: Callable[[LogServer], T]) -> T:
        """The answer of the first server that has one, which is asked first next time too."""

        def in_turn() -> T | None:
            for server in list(self._servers):
                try:
                    answer = ask(server)
                except (*_PASSED_OVER, OffsetExpired, RowsDamaged) as error:
                    problems[server.address] = error
                else:
                    self._servers.remove(server)
                    self._servers.insert(0, server)
                    return answer
            if not any(isinstance(problem, ServerAway) for problem in problems.values()):
                _raise_lost(problems)  # nobody is left who could have it
            return None

        problems: dict[str, Any] = {}
        return self._patiently(what, in_turn, problems)

    def _patiently(self, what: str, attempt: Callable[[], T | None], problems: dict[str, Any]) -> T:
        end_s = time.monotonic() + self._patience_s
        while True:
            problems.clear()
            found = attempt()
            if found is not None:
                return found
            _raise_refused(problems)
            if time.monotonic() + PAUSE_S > end_s:
                _raise_lost(problems)
                said = "; ".join(f"{address}: {error}" for address, error in problems.items())
                raise HistoryUnavailable(
                    f"no server gave {what} of {self.stream} for {self._patience_s:g} s ({said}):"
                    " start one that has it, name more servers, or wait longer (patienceSeconds)"
                )
            time.sleep(PAUSE_S)


def check_page(part: LogRange, after: int, page: LogRows, *, everything: bool) -> None:
    """MalformedMessage for rows that were not asked for, or a page that leads nowhere."""
    if page.log != part.log:
        raise MalformedMessage(f"rows of log {page.log} instead of {part.log}")
    if not after < page.through <= part.upto:
        raise MalformedMessage(f"it has log {part.log} up to {page.last} only, not {part.upto}")
    if everything:
        _check_whole(part, after, page)
        return
    before = after
    for row in page.rows:
        if not before < row.seq <= page.through:
            raise MalformedMessage(f"row {row.seq} after row {before} of log {part.log}")
        before = row.seq


def _check_whole(part: LogRange, after: int, page: LogRows) -> None:
    """Every seq is there, or said to be damaged."""
    seqs = sorted([*(row.seq for row in page.rows), *page.damaged])
    if seqs != list(range(after + 1, page.through + 1)):
        raise MalformedMessage(
            f"rows {after + 1} to {page.through} of log {part.log} are not all there"
        )


def put_together(pages: Sequence[LogRows]) -> LogRows:
    """What several servers have of a log after the same seq, as far as all of them go: damaged is
    what none of them can read."""
    if len(pages) == 1:
        return pages[0]
    through = min(page.through for page in pages)
    rows = {row.seq: row for page in pages for row in page.rows if row.seq <= through}
    damaged = set.intersection(*(set(page.damaged) for page in pages))
    return msgspec.structs.replace(
        pages[0],
        through=through,
        rows=[rows[seq] for seq in sorted(rows)],
        damaged=sorted(seq for seq in damaged if seq <= through),
    )


def _raise_lost(problems: dict[str, Any]) -> None:
    # Who has damage has all other rows: it comes before a server that has let go of some.
    damaged = [error for error in problems.values() if isinstance(error, RowsDamaged)]
    if damaged:
        raise damaged[-1]  # the others were put together with it
    expired = [error for error in problems.values() if isinstance(error, OffsetExpired)]
    if expired:
        raise min(expired, key=lambda error: error.first_seq)


def _raise_refused(problems: dict[str, Any]) -> None:
    if problems and all(isinstance(error, NotPermitted) for error in problems.values()):
        address, error = next(iter(problems.items()))
        raise NotPermitted(f"{address}: {error}")


def _heads_or_problem(server: LogServer, *, whole: bool) -> StreamHeads | ShoalError:
    try:
        return decode_heads(server.ask("GET", "/heads", whole="true" if whole else None))
    except _PASSED_OVER as error:
        return error


def _error(status: int, body: bytes) -> ShoalError:
    try:
        said = json.loads(body)
        text = str(said["error"])
    except (ValueError, TypeError, KeyError):
        return ServerAway(f"HTTP status {status}")
    if status == 410:
        first, last = said.get("first", 1), said.get("last", 0)
        return OffsetExpired(text, first_seq=int(first), last_seq=int(last))
    return _MEANING.get(status, ServerAway)(text)


# A running query keeps retention from taking what it has not read yet.
#
# A lease is on every server that takes it, for each log and partition that the query is at. It is
# renewed from a thread of its own, for a query may be busy, or wait for its trigger, for longer
# than a lease lasts; a query that died holds retention back for a quarter of an hour. Leases lag
# behind the query by up to one renewal, on the side that keeps more; a log or partition that is new
# to the query is leased at once.


LEASE_S = 900
RENEW_S = 300.0
END_S = 5.0  # what giving leases back may take


class LeaseKeeper:
    """The leases of one running query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._holder = f"spark-{uuid4().hex}"
        self._offset = Offset()
        self._taken: set[tuple[UUID, int]] = set()
        self._wanted: set[tuple[UUID, int]] = set()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, offset: Offset) -> None:
        """What comes after this is still needed."""
        self._offset = offset
        wanted = {(at.log, partition) for partition, at in offset.partitions.items()}
        if not wanted <= self._wanted:
            self._wake.set()
        self._wanted = wanted
        if self._thread is None and offset.partitions and not self._stopped.is_set():
            self._thread = threading.Thread(target=self._renew, name="shoal-leases", daemon=True)
            self._thread.start()

    def release(self) -> None:
        """The query has ended."""
        self._stopped.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(END_S)

    def _renew(self) -> None:
        options = self._options
        servers = LogServers(options, patience_s=0.0)
        while not self._stopped.is_set():
            self._wake.clear()
            for partition, at in self._offset.partitions.items():
                take(servers, self._holder, partition, at.log, at.seq, LEASE_S)
                self._taken.add((at.log, partition))
            if not self._stopped.is_set():
                self._wake.wait(RENEW_S)
        for log, partition in self._taken:
            servers.everywhere(
                "DELETE", "/lease", partition=partition, log=log, holder=self._holder
            )
        servers.close()


def take(
    servers: LogServers, holder: str, partition: int, log: UUID, after: int, seconds: int
) -> None:
    """Take or renew a lease on what comes after a seq. A server that cannot is passed over: it may
    be away, and a read without a lease is still a read."""
    words = {"partition": partition, "log": log, "after": after}
    servers.everywhere("PUT", "/lease", **words, holder=holder, seconds=seconds)
