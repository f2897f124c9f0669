"""Any Ethereum chain, over JSON-RPC.

The endpoint is believed in what it says of the chain: whoever does not want to believe somebody
else's runs a node of their own. It is not believed in what a transaction costs: that has a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from shoal.base.errors import RegistryRefused, RegistryUnavailable, ShoalError
from shoal.base.ids import NODE_ID_BYTES, NodeId, show_node_id
from shoal.base.units import MIB
from shoal.identity import PrivateKey
from shoal.registry.chain import Block, Log, NonceTaken, Receipt, Signed
from shoal.registry.contracts import revert_reason
from shoal.registry.transactions import Transaction, sign

LOG_BLOCKS_MAX = 2_000  # of one question for logs; most endpoints refuse more than some thousands
GAS_MAX = 30_000_000
GWEI = 10**9
_HASH_BYTES = 32

T = TypeVar("T")


class RpcChain:
    """The chain port over an endpoint."""

    def __init__(self, rpc: JsonRpc, chain_id: int, fee_gwei_max: float) -> None:
        """Use `open`."""
        self._rpc = rpc
        self._chain_id = chain_id
        self._fee_max = int(fee_gwei_max * GWEI)

    @classmethod
    async def open(cls, url: str, *, request_s: float, fee_gwei_max: float) -> RpcChain:
        """Reach the endpoint, and learn which chain it is."""
        rpc = JsonRpc(url, request_s)
        try:
            chain_id = await _read(rpc.where, _number, rpc.ask("eth_chainId"))
        except BaseException:
            await rpc.close()
            raise
        return cls(rpc, chain_id, fee_gwei_max)

    @property
    def chain_id(self) -> int:
        """As the endpoint said at the start."""
        return self._chain_id

    @property
    def where(self) -> str:
        """The endpoint, without what is secret in its address."""
        return self._rpc.where

    async def head(self) -> Block:
        """The newest block."""
        block = await self._ask(_block, "eth_getBlockByNumber", "latest", False)
        if block is None:
            raise RegistryUnavailable(f"the registry's chain at {self.where} has no blocks")
        return block

    async def block(self, number: int) -> Block | None:
        """By its height."""
        return await self._ask(_block, "eth_getBlockByNumber", hex(number), False)

    async def call(self, contract: NodeId, data: bytes, at: Block) -> bytes:
        """In the state after exactly this block."""
        question = {"to": show_node_id(contract), "data": _hex(data)}
        # By its hash, not its height: a block that was replaced is said to be unknown.
        state = {"blockHash": _hex(at.hash)}
        return await self._ask(_bytes, "eth_call", question, state)

    async def logs(self, contracts: Sequence[NodeId], first: int, last: int) -> list[Log]:
        """In steps that endpoints answer."""
        found: list[Log] = []
        for start in range(first, last + 1, LOG_BLOCKS_MAX):
            question = {
                "address": [show_node_id(contract) for contract in contracts],
                "fromBlock": hex(start),
                "toBlock": hex(min(start + LOG_BLOCKS_MAX - 1, last)),
            }
            found += await self._ask(_logs, "eth_getLogs", question)
        return found

    async def sign(self, key: PrivateKey, to: NodeId | None, data: bytes) -> Signed:
        """With the next nonce, at a fee that two full blocks do not outbid."""
        sender = show_node_id(key.address)
        question = {"from": sender, "data": _hex(data)}
        if to is not None:
            question["to"] = show_node_id(to)
        gas = await self._ask(_number, "eth_estimateGas", question)
        nonce = await self._ask(_number, "eth_getTransactionCount", sender, "pending")
        tip = await self._ask(_number, "eth_maxPriorityFeePerGas")
        base = await self._ask(_base_fee, "eth_getBlockByNumber", "latest", False)
        fee = 2 * base + tip
        if fee > self._fee_max:
            raise RegistryRefused(
                f"a unit of gas costs up to {fee / GWEI:g} gwei at {self.where}, more than"
                f" fee_gwei_max = {self._fee_max / GWEI:g}: wait, or raise it"
            )
        # The state may have changed a little until it runs.
        gas = min(gas * 5 // 4, GAS_MAX)
        return sign(Transaction(self._chain_id, nonce, to, data, gas, fee, tip), key)

    async def send(self, signed: Signed) -> None:
        """Sent again, it is known already, or has taken place."""
        try:
            await self._rpc.ask("eth_sendRawTransaction", _hex(signed.raw))
        except RpcError as error:
            # There are no codes for these: every client has words of its own.
            said = error.message.lower()
            if "already" in said:
                return
            if "nonce too low" in said or "replacement" in said:
                if await self.receipt(signed.hash) is None:
                    raise NonceTaken(error.message) from error
                return
            raise RegistryRefused(f"{self.where} does not take a transaction: {said}") from error

    async def receipt(self, hash: bytes) -> Receipt | None:
        """As far as the endpoint knows."""
        return await self._ask(_receipt, "eth_getTransactionReceipt", _hex(hash))

    async def close(self) -> None:
        """Give up what is under way."""
        await self._rpc.close()

    async def _ask(self, read: Callable[[Any], T], method: str, *params: Any) -> T:
        return await _read(self.where, read, self._rpc.ask(method, *params))


async def _read(where: str, read: Callable[[Any], T], answer: Awaitable[Any]) -> T:
    """An answer, checked; what it says if it is a refusal."""
    try:
        return read(await answer)
    except RpcError as error:
        if error.data or "revert" in error.message:
            raise RegistryRefused(revert_reason(error.data)) from error
        raise RegistryUnavailable(f"the registry's chain at {where}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, RegistryRefused):
            raise
        raise RegistryUnavailable(
            f"the registry's chain at {where} answers what cannot be ({error!r})"
        ) from error


def _hex(data: bytes) -> str:
    return "0x" + data.hex()


def _number(text: Any) -> int:
    return int(text, 16)


def _bytes(text: Any) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def _hash(text: Any) -> bytes:
    if len(raw := _bytes(text)) != _HASH_BYTES:
        raise ValueError(text)
    return raw


def _address(text: Any) -> NodeId:
    if len(raw := _bytes(text)) != NODE_ID_BYTES:
        raise ValueError(text)
    return NodeId(raw)


def _block(found: Any) -> Block | None:
    if found is None:
        return None
    return Block(_number(found["number"]), _hash(found["hash"]), _number(found["timestamp"]))


def _base_fee(found: Any) -> int:
    return _number(found["baseFeePerGas"])


def _logs(found: Any) -> list[Log]:
    return [
        Log(
            _address(log["address"]),
            tuple(_hash(topic) for topic in log["topics"]),
            _bytes(log["data"]),
            _number(log["blockNumber"]),
        )
        for log in found
    ]


def _receipt(found: Any) -> Receipt | None:
    if found is None:
        return None
    if _number(found["status"]) != 1:
        raise RegistryRefused("the transaction took place, but the contract refused it")
    made = found.get("contractAddress")
    return Receipt(
        _number(found["blockNumber"]),
        _number(found["gasUsed"]),
        None if made is None else _address(made),
    )


# JSON-RPC over HTTP: questions of one turn of the event loop go out as one batch.


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
