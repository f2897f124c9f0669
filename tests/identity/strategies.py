"""What the identity tests draw from."""

from __future__ import annotations

from hypothesis import strategies as st

from shoal.identity.keys import PrivateKey

GROUP_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


def private_key(scalar: int) -> PrivateKey:
    """The private key with this number."""
    return PrivateKey.from_bytes(scalar.to_bytes(32, "big"))


private_keys = st.integers(1, GROUP_ORDER - 1).map(private_key)
bodies = st.binary(max_size=600)
