"""Which address of a record the thesis' tables get."""

from __future__ import annotations

import pytest

from shoal.protocols.search.wire import NOWHERE, endpoint_of


@pytest.mark.parametrize(
    ("addresses", "ip", "port"),
    [
        (("ws://10.171.14.140:4000",), "0aab0e8c", 4000),
        (("wss://0.0.0.255:1",), "000000ff", 1),
        (("ws://255.255.255.255:65535/shoal",), "ffffffff", 65_535),
        (("wss://example.org:443", "ws://[::1]:80", "ws://1.2.3.4:5"), "01020304", 5),
        (("ws://1.2.3.4:5", "ws://6.7.8.9:1"), "01020304", 5),
    ],
)
def test_the_first_ipv4_address_with_a_port(addresses: tuple[str, ...], ip: str, port: int) -> None:
    assert endpoint_of(addresses) == (bytes.fromhex(ip), port)


@pytest.mark.parametrize(
    "address",
    [
        *("", "10.171.14.140:4000", "http://1.2.3.4:5", "ws://1.2.3.4", "ws://1.2.3:4"),
        *("ws://256.2.3.4:5", "ws://1.2.3.4:0", "ws://1.2.3.4:65536", "ws://1.2.3.4:99999"),
        *("ws://01.2.3.4:5", "ws://1.2.3.4:05", "ws://00.00.00.00:00"),
        *("ws://1.2.3.4:5@6.7.8.9:1", "ws://1.2.3.4:5\n", " ws://1.2.3.4:5", "ws://\u0661.2.3.4:5"),
    ],
)
def test_anything_else_is_nowhere(address: str) -> None:
    assert endpoint_of((address,)) == NOWHERE
    assert endpoint_of((address, "ws://1.2.3.4:5")) == (bytes([1, 2, 3, 4]), 5)


def test_no_address_is_nowhere() -> None:
    assert endpoint_of(()) == NOWHERE == (bytes(4), 0)
