"""Values are checked before they are kept, passed on or returned: nobody's word is taken.

A judge looks at a key and a value. For a content-addressed one that is all; of a signed record it
names signer, number and what was signed, and the signature is checked off the machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from shoal.base.ids import NodeId
from shoal.kernel.effects import Effect, Verify
from shoal.kernel.inputs import Verified
from shoal.protocols.dht.config import DhtConfig

REMEMBERED_MAX = 4096  # good signatures: replicas bring the same record again and again


class Judged(msgspec.Struct, frozen=True, gc=False):
    """What a valid value is."""

    signer: NodeId | None = None
    """Whose record it is; nobody's, if the key is made from the value."""
    number: int = 0
    """Of one signer's records of a key, the highest wins."""
    signed: bytes = b""
    """The signature, and behind it the body; if there is a signer."""


Judge = Callable[[bytes, bytes], Judged | None]
"""Says what a value under a key is; None if it does not belong there. Never raises."""

Checked = Callable[[Judged | None, int], list[Effect]]


class Checking:
    """The checks under way."""

    def __init__(self, judge: Judge, config: DhtConfig) -> None:
        self._judge = judge
        self._config = config
        self._token = 0
        self._waiting: dict[int, tuple[bytes, Judged, Checked]] = {}
        self._good: dict[bytes, None] = {}

    @property
    def busy(self) -> bool:
        """Whether no more checks should begin."""
        return len(self._waiting) >= self._config.checks_max

    def check(self, key: bytes, value: bytes, then: Checked, now_ns: int) -> list[Effect]:
        """Find out what a value is; `then` may be called at once."""
        judged = self._judge(key, value)
        if judged is None or judged.signer is None:
            return then(judged, now_ns)
        digest = hashlib.sha256(judged.signer + judged.signed).digest()
        if digest in self._good:
            return then(judged, now_ns)
        self._token += 1
        self._waiting[self._token] = (digest, judged, then)
        return [Verify(judged.signer, judged.signed, self._token)]

    def verified(self, event: Verified, now_ns: int) -> list[Effect]:
        """A signature was checked."""
        token = event.token
        assert isinstance(token, int)
        digest, judged, then = self._waiting.pop(token)
        if not event.valid:
            return then(None, now_ns)
        self._good[digest] = None
        if len(self._good) > REMEMBERED_MAX:
            del self._good[next(iter(self._good))]
        return then(judged, now_ns)
