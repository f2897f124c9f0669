"""The entropy port: where every secret and nonce comes from, and its deterministic twin."""

from __future__ import annotations

import hashlib
import os
from typing import Protocol

from shoal.base.errors import UsageError


class Entropy(Protocol):
    """A source of unpredictable bytes."""

    def token(self, size: int) -> bytes:
        """Exactly `size` bytes, never handed out before."""
        ...


class SystemEntropy:
    """The operating system's generator; nothing else in Shoal reads it."""

    __slots__ = ()

    def token(self, size: int) -> bytes:
        """Exactly `size` bytes from the kernel."""
        return os.urandom(size)


class SeededEntropy:
    """The same bytes for the same seed, on every machine: for simulation and tests only."""

    # A hash in counter mode: unlike random.Random, its output is fixed by a standard (FIPS 202),
    # so a recorded seed replays under every later Python.
    __slots__ = ("_counter", "_state")

    def __init__(self, seed: int | str | bytes) -> None:
        """Start the sequence that belongs to this seed."""
        kind, raw = _seed_bytes(seed)
        self._state = hashlib.sha3_256(b"shoal seeded entropy\0" + kind + raw).digest()
        self._counter = 0

    def token(self, size: int) -> bytes:
        """The next `size` bytes of this sequence."""
        if size < 0:  # hashlib's own check is a crash report (SystemError)
            raise UsageError(f"a token has a size of 0 or more bytes, negative is {size}")
        block = hashlib.shake_256(self._state + self._counter.to_bytes(8, "big"))
        self._counter += 1
        return block.digest(size)

    def fork(self, label: str) -> SeededEntropy:
        """An independent sequence, fixed by seed and label: one per node, whatever others draw."""
        return SeededEntropy(self._state + label.encode())


def _seed_bytes(seed: int | str | bytes) -> tuple[bytes, bytes]:
    # The kind goes into the hash, so that 1, "1" and b"1" are three seeds.
    if isinstance(seed, int):
        return b"int\0", str(seed).encode()
    if isinstance(seed, str):
        return b"str\0", seed.encode()
    return b"bytes\0", seed
