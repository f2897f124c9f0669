"""A client has its share of a store's leases, and no more."""

from __future__ import annotations

from uuid import UUID

import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import StreamId
from shoal.gateway.endpoints.storage_log import ClientLeases, LeaseKey


def key(number: int) -> LeaseKey:
    return f"q{number}", UUID(int=1), StreamId("0x" + "ab" * 20 + "/x"), 0


def test_one_that_has_its_share_gets_no_more_until_one_is_given_back_or_expires() -> None:
    leases = ClientLeases(most=2)
    for number, expires_ns in ((1, 100), (2, 50)):
        leases.check("a", key(number), now_ns=0)
        leases.taken("a", key(number), expires_ns)
    with pytest.raises(UsageError, match=r"a has 2 leases here.*release"):
        leases.check("a", key(3), now_ns=49)
    leases.check("a", key(1), now_ns=49)  # renewed
    leases.check("b", key(3), now_ns=49)  # others have their own
    leases.check("a", key(3), now_ns=50)  # the second has expired
    leases.taken("a", key(3), 200)
    with pytest.raises(UsageError, match="no client gets more"):
        leases.check("a", key(4), now_ns=60)
    leases.released(key(1))
    leases.check("a", key(4), now_ns=60)


def test_clients_that_never_come_back_are_forgotten_when_their_leases_are_over() -> None:
    leases = ClientLeases(10)
    for number in range(1000):
        leases.check(f"client {number}", key(1), now_ns=number)
        leases.taken(f"client {number}", key(1), number + 50)
    assert len(leases) <= 60
    for number in range(10):  # those that last are counted all the while
        leases.check("client 999", key(number), now_ns=1000)
        leases.taken("client 999", key(number), 2000)
    with pytest.raises(UsageError, match="no client gets more"):
        leases.check("client 999", key(10), now_ns=1000)
