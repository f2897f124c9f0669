"""keccak256 against known digests, with each library that can compute it."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.identity import signatures

# The Keccak team's vectors for the original padding; "hello" as every Ethereum tool prints it.
VECTORS = [
    (b"", "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"),
    (b"abc", "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45"),
    (b"hello", "1c8aff950685c2ed4bc3174f3472287b56d9517b9c948127319a09a7a36deac8"),
]


@pytest.mark.parametrize(("data", "digest"), VECTORS)
def test_known_digests(data: bytes, digest: str) -> None:
    assert signatures.keccak256(data).hex() == digest


@pytest.mark.parametrize(("data", "digest"), VECTORS)
def test_known_digests_with_pycryptodome(data: bytes, digest: str) -> None:
    pytest.importorskip("Crypto.Hash.keccak", reason="pycryptodome is installed on Windows only")
    assert signatures._from_pycryptodome()(data).hex() == digest


@given(st.binary(max_size=2000))
def test_both_libraries_agree(data: bytes) -> None:
    pytest.importorskip("Crypto.Hash.keccak", reason="pycryptodome is installed on Windows only")
    pytest.importorskip("sha3", reason="safe-pysha3 is not installed on Windows")
    assert signatures._from_pycryptodome()(data) == signatures._from_pysha3()(data)


def test_without_any_library_the_error_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sha3", "Crypto", "Crypto.Hash", "Crypto.Hash.keccak"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install safe-pysha3 .*pycryptodome"):
        signatures._load()
