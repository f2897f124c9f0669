"""The chain port: what the registry needs of a chain, embedded or far away.

A transaction is signed first and sent then, so that one of which nobody knows whether it arrived
is sent again as it is, never a second one in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from shoal.base.ids import NodeId
from shoal.identity import PrivateKey


class Block(msgspec.Struct, frozen=True):
    """A block, as far as we care."""

    number: int
    hash: bytes
    timestamp_s: int


class Log(msgspec.Struct, frozen=True):
    """What a contract said while it ran."""

    address: NodeId
    topics: tuple[bytes, ...]
    data: bytes
    block: int = 0


class Receipt(msgspec.Struct, frozen=True):
    """A transaction that took place."""

    block: int
    gas_used: int
    contract: NodeId | None = None
    """Made by it, if it made one."""


class Signed(msgspec.Struct, frozen=True):
    """A transaction ready to be sent."""

    raw: bytes
    hash: bytes


class Chain(Protocol):
    """Any Ethereum chain. RegistryUnavailable if it cannot be reached."""

    @property
    def chain_id(self) -> int:
        """Which chain it is: signatures for one are worth nothing on another."""
        ...

    @property
    def where(self) -> str:
        """As people and errors call it."""
        ...

    async def head(self) -> Block:
        """The newest block."""
        ...

    async def block(self, number: int) -> Block | None:
        """The block of a height, None if it is not known (yet)."""
        ...

    async def call(self, contract: NodeId, data: bytes, at: Block) -> bytes:
        """What a function gives in the state after a block, or after a later one."""
        ...

    async def logs(self, contracts: Sequence[NodeId], first: int, last: int) -> list[Log]:
        """What these contracts said in these blocks, both included, in order."""
        ...

    async def sign(self, key: PrivateKey, to: NodeId | None, data: bytes) -> Signed:
        """A transaction that would work now; RegistryRefused says why it would not."""
        ...

    async def send(self, signed: Signed) -> None:
        """Have it take place, once, however often it is sent. NonceTaken: another took its
        place, and it never will."""
        ...

    async def receipt(self, hash: bytes) -> Receipt | None:
        """What came of a transaction; None: nothing yet. RegistryRefused: it failed."""
        ...

    async def close(self) -> None:
        """Let go of it."""
        ...


class NonceTaken(Exception):
    """Another transaction of the same key came first: sign it again."""
