"""The embedded chain: the EVM in this process, its blocks in a file.

A block is one transaction, signed like any other. The state is not kept: whoever opens the file
runs all of its transactions again, and takes nothing for true that was not signed by whom it needs.
Each block names the hash of the one before and what it came to, so that a file that was altered, or
an EVM that runs it differently, is found out.

Any number of processes follow one file and write to it in turn (see block_file.py). Everything here
blocks, a write until the disk has it; it is quick, and writes are rare.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from pyrevm import EVM, BlockEnv, CfgEnv, Env

from shoal.base.errors import RegistryDamaged, RegistryRefused, RemoteError, UsageError
from shoal.base.ids import NodeId, parse_node_id, show_node_id
from shoal.identity import Entropy, PrivateKey, keccak256
from shoal.registry.block_file import BlockFile
from shoal.registry.chain import Block, Log, NonceTaken, Receipt, Signed
from shoal.registry.contracts import revert_reason
from shoal.registry.transactions import Transaction, read, sign

GAS_MAX = 30_000_000  # of one transaction: what a block of Ethereum has
CHAIN_ID_BYTES = 6  # what every tool takes for a whole number
_SPEC = "CANCUN"  # what the contracts are compiled for; the same for all blocks of a file
_NOBODY = NodeId(bytes(20))
_REVERT = re.compile(r"Revert \{.*output: 0x([0-9a-f]*)")

_LogRow = tuple[bytes, tuple[bytes, ...], bytes]


class _Genesis(msgspec.Struct, frozen=True, array_like=True):
    """The first record of a file."""

    chain_id: int


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """Any other one: a block."""

    parent: bytes
    timestamp_s: int
    raw: bytes
    gas_used: int
    contract: bytes
    logs: tuple[_LogRow, ...]


class EmbeddedChain:
    """The chain port over a file."""

    def __init__(self, file: BlockFile, clock: Callable[[], float] = time.time) -> None:
        """Run what is in an open file; RegistryDamaged if it cannot be."""
        self._file = file
        self._clock = clock
        self._nonces: dict[NodeId, int] = {}
        self._blocks: list[Block] = []
        self._records: list[_Record] = []  # of the blocks from 1 on
        self._places: dict[bytes, int] = {}  # of blocks, by the hash of their transaction
        self._chain_id = 0
        self._evm: EVM
        self._catch_up()
        if not self._blocks:
            raise RegistryDamaged(f"registry {file.path} is empty: restore a copy")

    @classmethod
    def create(
        cls, path: Path, entropy: Entropy, clock: Callable[[], float] = time.time
    ) -> EmbeddedChain:
        """A new chain in a new file, with an id of its own: what is signed for one is worth
        nothing on another."""
        file = BlockFile.create(path)
        chain_id = int.from_bytes(entropy.token(CHAIN_ID_BYTES))
        with file.writing():
            file.append(msgspec.msgpack.encode(_Genesis(chain_id)))
        file.close()
        return cls(BlockFile(path), clock)

    @property
    def chain_id(self) -> int:
        """Drawn when the file was made."""
        return self._chain_id

    @property
    def where(self) -> str:
        """The file."""
        return str(self._file.path)

    def contract_of(self, number: int) -> NodeId:
        """The contract that a block made."""
        if number >= len(self._blocks) or not (made := self._records[number - 1].contract):
            raise RegistryDamaged(
                f"registry {self.where} holds no contract in block {number}: make another one with"
                " `shoal registry deploy`"
            )
        return NodeId(made)

    async def head(self) -> Block:
        """The newest block, of any process."""
        self._catch_up()
        return self._blocks[-1]

    async def block(self, number: int) -> Block | None:
        """By its height."""
        return self._blocks[number] if number < len(self._blocks) else None

    async def call(self, contract: NodeId, data: bytes, at: Block) -> bytes:
        """In the newest state: blocks are never taken back here."""
        self._set_block(len(self._blocks), int(self._clock()))
        try:
            answer: bytes = self._evm.message_call(
                show_node_id(_NOBODY), show_node_id(contract), data, is_static=True
            )
        except RuntimeError as error:
            raise _refusal(error) from None
        return answer

    async def logs(self, contracts: Sequence[NodeId], first: int, last: int) -> list[Log]:
        """From the blocks themselves."""
        return [
            Log(NodeId(address), topics, data, number)
            for number in range(max(first, 1), min(last, len(self._records)) + 1)
            for address, topics, data in self._records[number - 1].logs
            if address in contracts
        ]

    async def sign(self, key: PrivateKey, to: NodeId | None, data: bytes) -> Signed:
        """After a trial, which leaves no trace."""
        self._catch_up()
        nonce = self._nonces.get(key.address, 0)
        transaction = Transaction(self._chain_id, nonce, to, data, GAS_MAX)
        with self._undone():
            self._run(transaction, key.address, self._next_timestamp_s())
        return sign(transaction, key)

    async def send(self, signed: Signed) -> None:
        """Run it, and keep it durably; done already: nothing."""
        with self._file.writing():
            self._catch_up()
            if signed.hash in self._places:
                return
            transaction, sender = self._checked(signed.raw)
            timestamp_s = self._next_timestamp_s()
            checkpoint = self._evm.snapshot()
            try:
                outcome = self._run(transaction, sender, timestamp_s)
                record = _Record(self._blocks[-1].hash, timestamp_s, signed.raw, *outcome)
                payload = msgspec.msgpack.encode(record)
                self._file.append(payload)
            except BaseException:
                self._evm.revert(checkpoint)
                raise
            self._evm.commit()
            self._take(payload, record, transaction, sender)

    async def receipt(self, hash: bytes) -> Receipt | None:
        """Of a transaction that is in the chain."""
        self._catch_up()
        number = self._places.get(hash)
        if number is None:
            return None
        record = self._records[number - 1]
        made = NodeId(record.contract) if record.contract else None
        return Receipt(number, record.gas_used, made)

    async def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _catch_up(self) -> None:
        """Run what was written since, by whichever process."""
        for payload in self._file.read_new():
            try:
                if self._blocks:
                    self._replay(payload)
                else:
                    self._begin(payload)
            except (msgspec.MsgspecError, RemoteError, UsageError, NonceTaken) as error:
                raise RegistryDamaged(
                    f"registry {self.where} is damaged in block {len(self._blocks)} ({error}):"
                    " restore a copy"
                ) from error

    def _begin(self, payload: bytes) -> None:
        self._chain_id = msgspec.msgpack.decode(payload, type=_Genesis).chain_id
        self._evm = EVM(env=Env(cfg=CfgEnv(chain_id=self._chain_id)), spec_id=_SPEC)
        self._blocks.append(Block(0, keccak256(payload), 0))

    def _replay(self, payload: bytes) -> None:
        record = msgspec.msgpack.decode(payload, type=_Record)
        if record.parent != self._blocks[-1].hash:
            raise RegistryRefused("it does not follow the block before it")
        transaction, sender = self._checked(record.raw)
        checkpoint = self._evm.snapshot()
        try:
            _, contract, logs = self._run(transaction, sender, record.timestamp_s)
        except BaseException:
            self._evm.revert(checkpoint)
            raise
        self._evm.commit()
        if (contract, logs) != (record.contract, record.logs):
            raise RegistryRefused("it came to something else than it did when it was written")
        self._take(payload, record, transaction, sender)

    def _take(
        self, payload: bytes, record: _Record, transaction: Transaction, sender: NodeId
    ) -> None:
        self._nonces[sender] = transaction.nonce + 1
        self._places[keccak256(record.raw)] = len(self._blocks)
        self._records.append(record)
        self._blocks.append(Block(len(self._blocks), keccak256(payload), record.timestamp_s))

    def _checked(self, raw: bytes) -> tuple[Transaction, NodeId]:
        """A transaction whose turn it is, and its sender."""
        transaction, sender = read(raw)
        if transaction.chain_id != self._chain_id:
            raise RegistryRefused(f"it was signed for chain {transaction.chain_id}")
        if transaction.nonce != self._nonces.get(sender, 0):
            raise NonceTaken(f"transaction {transaction.nonce} of {show_node_id(sender)}")
        return transaction, sender

    def _run(
        self, transaction: Transaction, sender: NodeId, timestamp_s: int
    ) -> tuple[int, bytes, tuple[_LogRow, ...]]:
        """Gas, contract made and logs of a transaction in the next block; RegistryRefused."""
        self._set_block(len(self._blocks), timestamp_s)
        caller, made = show_node_id(sender), b""
        gas = min(transaction.gas, GAS_MAX)
        try:
            if transaction.to is None:
                made = parse_node_id(self._evm.deploy(caller, transaction.data, gas=gas))
            else:
                to = show_node_id(transaction.to)
                self._evm.message_call(caller, to, transaction.data, gas=gas)
        except RuntimeError as error:
            raise _refusal(error) from None
        result = self._evm.result
        assert result is not None  # something has just run
        rows = tuple(
            (parse_node_id(log.address), tuple(log.data[0]), log.data[1]) for log in result.logs
        )
        return result.gas_used, made, rows

    def _set_block(self, number: int, timestamp_s: int) -> None:
        self._evm.set_block_env(BlockEnv(number=number, timestamp=timestamp_s))

    def _next_timestamp_s(self) -> int:
        """Now, but never before the last block, whatever the clock says."""
        return max(int(self._clock()), self._blocks[-1].timestamp_s)

    @contextmanager
    def _undone(self) -> Iterator[None]:
        checkpoint = self._evm.snapshot()
        try:
            yield
        finally:
            self._evm.revert(checkpoint)


def _refusal(error: RuntimeError) -> RegistryRefused:
    """Why the EVM did not run it."""
    if found := _REVERT.match(str(error)):
        return RegistryRefused(revert_reason(bytes.fromhex(found[1])))
    return RegistryRefused(f"the contract cannot run this ({error})")
