"""keccak256 as Ethereum uses it: the padding from before SHA-3 became a standard."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

Hash = Callable[[bytes], bytes]


def _from_pysha3() -> Hash:
    keccak_256 = import_module("sha3").keccak_256

    def keccak256(data: bytes) -> bytes:
        """The 32-byte keccak256 digest of data."""
        digest: bytes = keccak_256(data).digest()
        return digest

    return keccak256


def _from_pycryptodome() -> Hash:
    new = import_module("Crypto.Hash.keccak").new

    def keccak256(data: bytes) -> bytes:
        """The 32-byte keccak256 digest of data."""
        digest: bytes = new(digest_bits=256, data=data).digest()
        return digest

    return keccak256


def _load() -> Hash:
    # safe-pysha3 is three times as fast, but has no wheels for Windows. Both are found by name
    # at run time because a machine has only one of them.
    for implementation in (_from_pysha3, _from_pycryptodome):
        try:
            return implementation()
        except ImportError:
            continue
    raise ImportError("no keccak256 found: pip install safe-pysha3 (on Windows: pycryptodome)")


keccak256: Hash = _load()
