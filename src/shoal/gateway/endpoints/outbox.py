"""The outbox of a node over HTTP: what Spark's sink speaks to.

It makes the node publish, so each request needs the node's token: `Authorization: Bearer TOKEN`.
A client that is told 429 waits and tries again. 409 tells it to stop: another driver has taken the
query over, or the batch was sealed before and this is another one. 403 says that the node may not
publish in the stream.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec
from aiohttp import web

from shoal.base.errors import (
    ClockWrong,
    NotFound,
    NotPermitted,
    RegistryUnavailable,
    SessionReplaced,
    StreamUnavailable,
    UsageError,
)
from shoal.base.gateway_messages import (
    BODY_BYTES_MAX,
    SEAL_BYTES_MAX,
    DiscardRequest,
    EpochRequest,
    Fingerprint,
    Row,
    SealRequest,
    StageRequest,
)
from shoal.base.ids import StreamId, parse_stream_id
from shoal.base.units import KIB
from shoal.gateway.requests import json_answer, not_found, problem, read_body, read_json
from shoal.gateway.route_table import BINARY, JSON, Body, Parameter, Route
from shoal.storage.errors import (
    Fenced,
    MissingBatches,
    NotAReplay,
    NotStaged,
    OutboxFull,
    OutboxTooSmall,
    StoreError,
)
from shoal.storage.outbox_file import Attempt, ChunkPlace, SealAnswer

RETRY_S = 1  # what a full outbox asks a task to wait
SMALL_BYTES_MAX = 16 * KIB

_stage_decoder = msgspec.msgpack.Decoder(StageRequest)


class OutboxDoor(Protocol):
    """The outbox of a node, as the node has it."""

    token: str

    async def take_epoch(self, query: str, run: str, stream: StreamId, *, once: bool) -> int: ...

    async def stage(self, stream: StreamId, at: ChunkPlace, rows: Sequence[Row]) -> bool: ...

    async def seal(
        self,
        query: str,
        epoch: int,
        batch: int,
        attempts: Sequence[Attempt],
        fingerprint: Fingerprint,
    ) -> SealAnswer: ...

    async def discard(self, query: str, epoch: int, batch: int) -> None: ...

    async def discard_attempt(
        self, query: str, epoch: int, batch: int, partition: int, attempt: int
    ) -> None: ...

    async def state(self, query: str | None = None) -> Any: ...


class OutboxRoutes:
    """The part of a gateway that takes rows in.

    POST /outbox/epoch     a run of a query: its epoch; fences all runs before
    POST /outbox/stage     a chunk of rows of a task
    POST /outbox/seal      which attempts are the batch
    POST /outbox/discard   the batch was given up, or one attempt of one of its tasks
    GET  /outbox?query=ID  what is held, of all queries or one
    """

    def __init__(self, door: OutboxDoor | None) -> None:
        self._door = door

    def routes(self) -> Iterable[Route]:
        """Serve."""
        small, seal, stage = SMALL_BYTES_MAX, SEAL_BYTES_MAX, BODY_BYTES_MAX
        for name, handler, summary, media, form, bytes_max in (
            ("epoch", self._epoch, "Begin a run of a query", JSON, EpochRequest, small),
            ("stage", self._stage, "Hand in a chunk of rows, as msgpack", BINARY, None, stage),
            ("seal", self._seal, "Say which attempts are the batch", JSON, SealRequest, seal),
            (
                "discard",
                self._discard,
                "Give up a batch or attempt",
                JSON,
                DiscardRequest,
                small,
            ),
        ):
            yield Route(
                method="POST",
                path=f"/outbox/{name}",
                handler=handler,
                summary=f"Spark's sink: {summary[0].lower()}{summary[1:]}",
                access="token",
                body=Body(((media, form),), bytes_max),
                answer=dict[str, Any],
            )
        yield Route(
            method="GET",
            path="/outbox",
            handler=self._state,
            summary="Spark's sink: what is held, of all queries or one",
            access="token",
            parameters=(Parameter("query", str, "The id of a query."),),
            answer=Any,
        )

    async def _epoch(self, request: web.Request) -> web.Response:
        door = self._admitted(request)
        asked = await read_json(request, EpochRequest, SMALL_BYTES_MAX)
        with _Explained():
            stream = parse_stream_id(asked.stream)
            epoch = await door.take_epoch(asked.query, asked.run, stream, once=asked.once)
        return json_answer({"epoch": epoch})

    async def _stage(self, request: web.Request) -> web.Response:
        door = self._admitted(request)
        body = await read_body(request, BODY_BYTES_MAX)
        with _Explained():
            try:
                asked = _stage_decoder.decode(body)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise UsageError(f"this is no chunk of rows: {error}") from None
            at = ChunkPlace(
                asked.query, asked.epoch, asked.batch, asked.partition, asked.attempt, asked.chunk
            )
            taken = await door.stage(parse_stream_id(asked.stream), at, asked.rows)
        return json_answer({"sealed": not taken})

    async def _seal(self, request: web.Request) -> web.Response:
        door = self._admitted(request)
        asked = await read_json(request, SealRequest, SEAL_BYTES_MAX)
        attempts = [Attempt(one.partition, one.attempt, one.chunks) for one in asked.attempts]
        with _Explained():
            answer = await door.seal(
                asked.query, asked.epoch, asked.batch, attempts, asked.fingerprint
            )
        return json_answer(answer)

    async def _discard(self, request: web.Request) -> web.Response:
        door = self._admitted(request)
        asked = await read_json(request, DiscardRequest, SMALL_BYTES_MAX)
        with _Explained():
            if asked.partition is None or asked.attempt is None:
                if asked.partition is not asked.attempt:
                    raise UsageError("partition and attempt: give both, or none for the batch")
                await door.discard(asked.query, asked.epoch, asked.batch)
            else:
                await door.discard_attempt(
                    asked.query, asked.epoch, asked.batch, asked.partition, asked.attempt
                )
        return json_answer({})

    async def _state(self, request: web.Request) -> web.Response:
        door = self._admitted(request)
        with _Explained():
            return json_answer(await door.state(request.query.get("query")))

    def _admitted(self, request: web.Request) -> OutboxDoor:
        if self._door is None:
            raise not_found("this node has no outbox: add [outbox] to its network file")
        shown = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(shown.encode(errors="replace"), self._door.token.encode()):
            raise web.HTTPUnauthorized(
                text=problem(
                    "this is not the outbox's token: send `Authorization: Bearer TOKEN` with the"
                    " one that `token` under [outbox] in the node's network file names"
                ),
                content_type="application/json",
            )
        return self._door


class _Explained:
    """Turns what an outbox raises into the status that says so."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OutboxFull):
            raise web.HTTPTooManyRequests(
                text=problem(str(error)),
                content_type="application/json",
                headers={"Retry-After": str(RETRY_S)},
            ) from error
        if isinstance(error, OutboxTooSmall):
            most = BODY_BYTES_MAX  # of a body; here it is the outbox that is too small
            raise web.HTTPRequestEntityTooLarge(
                most, most, text=problem(str(error)), content_type="application/json"
            ) from error
        if isinstance(error, NotFound):
            raise not_found(str(error)) from error
        for raised, status in _STATUS:
            if isinstance(error, raised):
                text = problem(str(error))
                raise status(text=text, content_type="application/json") from error


_STATUS: tuple[tuple[type[Exception], type[web.HTTPException]], ...] = (
    (Fenced, web.HTTPConflict),
    (NotAReplay, web.HTTPConflict),
    (MissingBatches, web.HTTPConflict),
    (NotStaged, web.HTTPPreconditionFailed),
    (NotPermitted, web.HTTPForbidden),
    (UsageError, web.HTTPBadRequest),
    (StoreError, web.HTTPServiceUnavailable),
    (RegistryUnavailable, web.HTTPServiceUnavailable),
    (StreamUnavailable, web.HTTPServiceUnavailable),
    (ClockWrong, web.HTTPServiceUnavailable),
    (SessionReplaced, web.HTTPServiceUnavailable),
)
