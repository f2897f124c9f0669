"""The IPv4 address and TCP port that the thesis' messages have room for.

A record of Shoal has up to four addresses, names and IPv6 among them. The tables get the first one
that fits, or zeros: they repeat the record, which alone is signed and dialled, and must agree with
it. So a frame has one meaning, whichever of the two somebody reads.
"""

from __future__ import annotations

import re
from functools import lru_cache

from shoal.base.errors import MalformedMessage
from shoal.protocols.search.addresses import AddressRecord

Endpoint = tuple[bytes, int]

NOWHERE: Endpoint = (bytes(4), 0)

_PART = "([0-9]{1,3})"
_URL = re.compile(rf"wss?://{_PART}\.{_PART}\.{_PART}\.{_PART}:([0-9]{{1,5}})(?:/.*)?")
_PORT_MAX = 65_535
_REMEMBERED_MAX = 4096  # addresses of nodes seen lately: every bubble of theirs asks for them


@lru_cache(maxsize=_REMEMBERED_MAX)
def endpoint_of(addresses: tuple[str, ...]) -> Endpoint:
    """Of the first ws or wss address with an IPv4 host and a port; NOWHERE without one."""
    for address in addresses:
        found = _URL.fullmatch(address)
        if found is None:
            continue
        if not all(_canonical(digits) for digits in found.groups()):
            continue
        *parts, port = [int(digits) for digits in found.groups()]
        if max(parts) <= 255 and 0 < port <= _PORT_MAX:
            return bytes(parts), port
    return NOWHERE


def expect_endpoint(record: AddressRecord, ip: bytes, port: int) -> None:
    """MalformedMessage unless a table says the same as the record behind it."""
    if endpoint_of(record.addresses) != (ip, port):
        shown = ".".join(str(part) for part in ip)
        raise MalformedMessage(f"{shown} port {port}, but the record behind has {record.addresses}")


def expect_port(record: AddressRecord, port: int) -> None:
    """The same for the hellos, which only have a port."""
    if endpoint_of(record.addresses)[1] != port:
        raise MalformedMessage(f"port {port}, but the record behind has {record.addresses}")


def _canonical(digits: str) -> bool:
    # 010 is 10 to some and 8 to others.
    return digits == "0" or not digits.startswith("0")
