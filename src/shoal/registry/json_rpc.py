"""JSON-RPC over HTTP: questions of one turn of the event loop go out as one batch."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from shoal.base.errors import RegistryUnavailable, ShoalError
from shoal.base.units import MIB

BATCH_MAX = 64  # public endpoints take 100 and more
BATCHES_MAX = 4  # under way at once
ANSWER_BYTES_MAX = 16 * MIB  # 2,000 blocks full of our logs are less


class RpcError(ShoalError):
    """The endpoint answered that it did not do it."""

    def __init__(self, code: int, message: str, data: bytes) -> None:
        super().__init__(f"{message} (code {code})")
        self.message = message
        self.data = data
        """What a contract gave with its refusal, if one refused."""


class _Error(msgspec.Struct, frozen=True):
    code: int
    message: str
    data: Any = None


class _Answer(msgspec.Struct, frozen=True):
    id: int
    result: Any = None
    error: _Error | None = None


class _Question(msgspec.Struct, frozen=True):
    id: int
    method: str
    params: tuple[Any, ...]
    jsonrpc: str = "2.0"


_Waiting = dict[int, tuple[_Question, "asyncio.Future[Any]"]]
_answers = msgspec.json.Decoder(list[_Answer])


class JsonRpc:
    """One endpoint."""

    def __init__(self, url: str, request_s: float) -> None:
        """At this address; no request takes longer than this."""
        self._url = url
        parts = urlsplit(url)
        # Without its path and its user: they are where keys of paid endpoints are.
        self.where = f"{parts.scheme}://{parts.hostname}:{parts.port or parts.scheme}"
        self._timeout = aiohttp.ClientTimeout(total=request_s)
        self._request_s = request_s
        self._session: aiohttp.ClientSession | None = None
        self._next_id = 1
        self._waiting: _Waiting = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, method: str, *params: Any) -> Any:
        """The result; RpcError or RegistryUnavailable."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._flush)
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting[self._next_id] = _Question(self._next_id, method, params), future
        self._next_id += 1
        return await future

    async def close(self) -> None:
        """Give up what is under way."""
        for _, future in self._waiting.values():
            future.cancel()
        self._waiting = {}
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def _flush(self) -> None:
        """What finds no room goes with the next batch, all of it in one: an endpoint that answers
        nobody must not make each question wait for all before it."""
        while self._waiting and len(self._tasks) < BATCHES_MAX:
            ids = list(islice(self._waiting, BATCH_MAX))
            task = asyncio.ensure_future(self._exchange({id: self._waiting.pop(id) for id in ids}))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._flush()

    async def _exchange(self, batch: _Waiting) -> None:
        try:
            raw = await self._post([question for question, _ in batch.values()])
            for answer in _answers.decode(raw):
                if (found := batch.pop(answer.id, None)) is not None:
                    _tell(found[1], answer)
            problem = "it left questions unanswered"
        except msgspec.MsgspecError as error:
            problem = f"its answer is none ({error})"
        except TimeoutError:
            problem = f"no answer within {self._request_s:g} s"
        except (aiohttp.ClientError, OSError) as error:
            problem = str(error) or type(error).__name__
        except asyncio.CancelledError:
            for _, future in batch.values():
                future.cancel()
            raise
        for _, future in batch.values():
            if not future.done():
                future.set_exception(
                    RegistryUnavailable(f"the registry's chain at {self.where}: {problem}")
                )

    async def _post(self, questions: list[_Question]) -> bytes:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout)
        body = msgspec.json.encode(questions)
        headers = {"content-type": "application/json"}
        async with self._session.post(self._url, data=body, headers=headers) as response:
            if response.status != 200:
                raise aiohttp.ClientError(f"it answers HTTP {response.status}")
            chunks, size = [], 0
            async for chunk in response.content.iter_any():
                size += len(chunk)
                if size > ANSWER_BYTES_MAX:
                    raise aiohttp.ClientError(f"it answers more than {ANSWER_BYTES_MAX} bytes")
                chunks.append(chunk)
            return b"".join(chunks)


def _tell(future: asyncio.Future[Any], answer: _Answer) -> None:
    if future.done():
        return
    if answer.error is None:
        future.set_result(answer.result)
    else:
        error = answer.error
        future.set_exception(RpcError(error.code, error.message, _refusal_bytes(error.data)))


def _refusal_bytes(data: Any) -> bytes:
    """Endpoints give them as text, some inside an object."""
    if isinstance(data, dict):
        data = data.get("data")
    try:
        return bytes.fromhex(data.removeprefix("0x")) if isinstance(data, str) else b""
    except ValueError:
        return b""
