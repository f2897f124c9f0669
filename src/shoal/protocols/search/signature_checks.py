"""Signatures under way: who vouches for an address or a bubble is checked off the machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from shoal.base.ids import NodeId
from shoal.kernel.effects import Effect, Verify
from shoal.kernel.inputs import Verified

REMEMBERED_MAX = 4096  # good signatures: an address is seen again and again

Then = Callable[[bool, int], list[Effect]]


class Checks:
    """What waits for a signature to be checked."""

    def __init__(self, checks_max: int) -> None:
        self._checks_max = checks_max
        self._token = 0
        self._waiting: dict[int, tuple[bytes, Then]] = {}
        self._good: dict[bytes, None] = {}

    @property
    def busy(self) -> bool:
        """Whether no more checks should begin."""
        return len(self._waiting) >= self._checks_max

    def check(self, signer: NodeId, signed: bytes, then: Then, now_ns: int) -> list[Effect]:
        """Find out whether a signature is good; `then` may be called at once."""
        digest = hashlib.sha256(signer + signed).digest()
        if digest in self._good:
            return then(True, now_ns)
        self._token += 1
        self._waiting[self._token] = (digest, then)
        return [Verify(signer, signed, self._token)]

    def verified(self, event: Verified, now_ns: int) -> list[Effect]:
        """A signature was checked."""
        token = event.token
        assert isinstance(token, int)
        digest, then = self._waiting.pop(token)
        if event.valid:
            self._good[digest] = None
            if len(self._good) > REMEMBERED_MAX:
                del self._good[next(iter(self._good))]
        return then(event.valid, now_ns)
