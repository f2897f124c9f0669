"""A change that takes place between two looks at it is done, and not lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shoal.base.errors import RegistryUnavailable
from shoal.identity import PrivateKey, SeededEntropy
from shoal.registry.block_follower import Follower
from shoal.registry.chain import Block, NonceTaken, Receipt, Signed
from shoal.registry.config import RegistrySection
from shoal.registry.sender import Sender

KEY = PrivateKey.generate(SeededEntropy("sender"))
HEAD = Block(7, b"7", 0)


class BusyChain:
    """A block comes right after the first look for a receipt: with another transaction, or with
    ours, whose receipt is there some looks later."""

    where = "here"

    def __init__(self, *, ours: bool) -> None:
        self._ours = ours
        self._sent = 0
        self._looks = 0

    async def head(self) -> Block:
        return HEAD

    async def block(self, number: int) -> Block | None:
        return HEAD

    async def logs(self, *which: Any) -> list[Any]:
        return []

    async def sign(self, *what: Any) -> Signed:
        return Signed(b"raw", b"hash")

    async def send(self, signed: Signed) -> None:
        self._sent += 1
        if self._sent > 1:
            raise NonceTaken("nonce too low")

    async def receipt(self, hash: bytes) -> Receipt | None:
        self._looks += 1
        return Receipt(HEAD.number, 21_000) if self._ours and self._looks > 3 else None


async def change(chain: Any) -> Receipt:
    section = RegistrySection(url="http://127.0.0.1:1", poll_s=0.1)
    follower = Follower(chain, (), 0, None, lambda changes: None)
    await follower.poll()
    return await Sender(chain, follower, section).send(KEY, None, b"")


def test_a_nonce_that_our_own_transaction_took_is_no_loss() -> None:
    assert asyncio.run(change(BusyChain(ours=True))).block == HEAD.number


def test_a_nonce_that_another_transaction_took_is_told() -> None:
    with pytest.raises(RegistryUnavailable, match="lost its place to another one of this key"):
        asyncio.run(change(BusyChain(ours=False)))
