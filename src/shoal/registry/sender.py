"""One change, from its signature until it is final.

Signed once, sent as often as it takes: a transaction of which nobody knows whether it arrived must
not get a twin. It is done when the block it is in counts, and still is in it then: blocks that are
replaced may have held it, and then it is sent again.
"""

from __future__ import annotations

import asyncio
import time

from shoal.base.errors import RegistryUnavailable
from shoal.base.ids import NodeId
from shoal.identity import PrivateKey
from shoal.registry.block_follower import Follower
from shoal.registry.chain import Chain, NonceTaken, Receipt, Signed
from shoal.registry.config import RegistrySection

SIGN_TRIES = 5  # other processes with the same key may be as busy as we are
TAKEN_TRIES = 5  # our own may have taken its nonce: endpoints know that before they have a receipt
RECEIPT_S_MIN, RECEIPT_S_MAX = 0.05, 1.0  # between two looks for what came of it


class Sender:
    """Sends changes, one after the other: each takes the nonce after the last one's."""

    def __init__(self, chain: Chain, follower: Follower, section: RegistrySection) -> None:
        """Over a chain that is followed."""
        self._chain = chain
        self._follower = follower
        self._section = section
        self._lock = asyncio.Lock()

    async def send(self, key: PrivateKey, to: NodeId | None, data: bytes) -> Receipt:
        """Have it happen; RegistryRefused: it must not, RegistryUnavailable: nobody knows."""
        deadline_s = time.monotonic() + self._section.write_s
        async with self._lock:
            signed = await self._sent(key, to, data, deadline_s)
        receipt = await self._final(signed, deadline_s)
        return receipt

    async def _sent(
        self, key: PrivateKey, to: NodeId | None, data: bytes, deadline_s: float
    ) -> Signed:
        signed: Signed | None = None
        tries = 0
        while True:
            try:
                if signed is None:
                    signed = await self._chain.sign(key, to, data)
                await self._chain.send(signed)
                return signed
            except NonceTaken as error:
                signed, tries = None, tries + 1
                if tries == SIGN_TRIES:
                    raise RegistryUnavailable(
                        f"other processes that use this key change the registry all the time"
                        f" ({error}): try again"
                    ) from error
            except RegistryUnavailable as error:
                if self._section.outage_writes == "refuse" and signed is None:
                    raise RegistryUnavailable(
                        f'nothing was changed: {error} (outage_writes = "refuse")'
                    ) from error
                await self._pause(deadline_s, signed, error)

    async def _final(self, signed: Signed, deadline_s: float) -> Receipt:
        taken = 0
        while True:
            try:
                receipt = await self._chain.receipt(signed.hash)
                if receipt is None:
                    await self._chain.send(signed)
                elif receipt.block <= self._follower.seen.number:
                    return receipt
                await self._follower.poll()
                if receipt is not None and receipt.block <= self._follower.seen.number:
                    continue  # it counts now: is it still there?
                await self._pause(deadline_s, signed, None)
            except NonceTaken as error:
                taken += 1
                if taken < TAKEN_TRIES:
                    await self._pause(deadline_s, signed, None)
                    continue
                raise RegistryUnavailable(
                    f"transaction 0x{signed.hash.hex()} lost its place to another one of this key:"
                    " look at what holds now, and try again"
                ) from error
            except RegistryUnavailable as error:
                await self._pause(deadline_s, signed, error)

    async def _pause(
        self, deadline_s: float, signed: Signed | None, error: RegistryUnavailable | None
    ) -> None:
        """Wait a little, or give up."""
        if time.monotonic() > deadline_s:
            what = (
                "nothing was changed"
                if signed is None
                else f"transaction 0x{signed.hash.hex()} was sent, and may still take place"
            )
            why = "" if error is None else f": {error}"
            raise RegistryUnavailable(
                f"not done within write_s = {self._section.write_s:g} s, {what}{why}"
            ) from error
        pause_s = min(max(self._section.interval_s / 4, RECEIPT_S_MIN), RECEIPT_S_MAX)
        await asyncio.sleep(pause_s)
