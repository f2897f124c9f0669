"""Which part of the Internet a link comes from."""

from __future__ import annotations

import pytest

from shoal.transport.address_limits import prefix_of


@pytest.mark.parametrize(
    ("address", "prefix"),
    [
        ("ws://8.8.4.4:7700", "8.8.4.0/24"),
        ("wss://8.8.4.200:1", "8.8.4.0/24"),
        ("ws://[2a00:1450:4001:81b::200e]:443", "2a00:1450:4001::/48"),
        ("ws://[::ffff:8.8.4.4]:7700", "8.8.4.0/24"),
        # A network of one's own must not cut itself off.
        ("ws://127.0.0.1:7700", None),
        ("ws://[::1]:7700", None),
        ("ws://192.168.1.7:7700", None),
        ("ws://10.0.0.3:7700", None),
        ("ws://[fd00::3]:7700", None),
        # A name says nothing, nor does a call.
        ("wss://example.org:7700", None),
        ("webrtc:", None),
        ("", None),
    ],
)
def test_strangers_are_told_apart_by_what_they_rent(address: str, prefix: str | None) -> None:
    assert prefix_of(address) == prefix
