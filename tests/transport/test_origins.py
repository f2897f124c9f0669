"""Where connections come from, and how many there may be from each place."""

from __future__ import annotations

import pytest

from shoal.transport.address_limits import Origins, origin_of

HERE, THERE = b"here", b"there"


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2", True),
    ],
)
def test_an_origin_is_an_address_and_of_ipv6_a_network(one: str, other: str, alike: bool) -> None:
    assert origin_of(one) is not None
    assert (origin_of(one) == origin_of(other)) is alike


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_this_machine_is_not_counted(host: str) -> None:
    assert origin_of(host) is None


def test_each_place_has_its_number() -> None:
    origins = Origins(2)
    assert [origins.enter(HERE) for _ in range(3)] == [True, True, False]
    assert origins.enter(THERE)
    origins.leave(HERE)
    assert [origins.enter(HERE) for _ in range(2)] == [True, False]
    assert all(origins.enter(None) for _ in range(100))
    origins.leave(None)


def test_places_that_are_left_are_forgotten() -> None:
    origins = Origins(2)
    for _ in range(2):
        origins.enter(HERE)
    for _ in range(2):
        origins.leave(HERE)
    assert origins._counts == {}
