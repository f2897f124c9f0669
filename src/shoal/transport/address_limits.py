"""Where connections come from, and how many there are from each place.

A link is authenticated, but keys cost nothing: whoever makes up one for each link can hold as many
sockets as it can open connections. Addresses are dearer.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

IPV6_NETWORK_BYTES = 8  # whoever has one address has the 2**64 that begin alike
IPV4_PREFIX_BITS = 24
IPV6_PREFIX_BITS = 48

Origin = bytes


class Origins:
    """Counts connections from their first packet to the end of their socket."""

    def __init__(self, connections_max: int) -> None:
        """So many from one place at a time."""
        self._connections_max = connections_max
        self._counts: dict[Origin, int] = {}

    def enter(self, origin: Origin | None) -> bool:
        """Count one more; False, and not counted, if there are as many as may be."""
        if origin is None:
            return True
        count = self._counts.get(origin, 0)
        if count >= self._connections_max:
            return False
        self._counts[origin] = count + 1
        return True

    def leave(self, origin: Origin | None) -> None:
        """One that was counted is over."""
        if origin is None:
            return
        count = self._counts.pop(origin) - 1
        if count:
            self._counts[origin] = count


def prefix_of(address: str) -> str | None:
    """Which part of the Internet an address is in, as it is rented by the block: 256 addresses of
    IPv4, or 2**80 of IPv6. None for this machine, private networks and names: these are no sign of
    a stranger, or of none in particular."""
    try:
        ip = ip_address(urlsplit(address).hostname or "")
    except ValueError:
        return None
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if not ip.is_global:
        return None
    bits = IPV4_PREFIX_BITS if ip.version == 4 else IPV6_PREFIX_BITS
    return str(ip_network((ip, bits), strict=False))


def origin_of(host: str) -> Origin | None:
    """What a connection counts under. None if it is not counted: it comes from this machine, whose
    processes, or a proxy in front of us, share one address."""
    address = ip_address(host)
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return None if address.is_loopback else address.packed[:IPV6_NETWORK_BYTES]
        address = address.ipv4_mapped
    return None if address.is_loopback else address.packed
