"""Which part of the Internet an address belongs to: addresses are cheap there only by the block."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from shoal.protocols.dht.config import DhtConfig


def prefixes_of(addresses: tuple[str, ...], config: DhtConfig) -> tuple[str, ...]:
    """The prefixes of a node's addresses, each once. They are what the node says: one that gives
    addresses of others cannot be dialled, and leaves the table for that."""
    bits = (config.prefix_bits_v4, config.prefix_bits_v6)
    return tuple(dict.fromkeys([_prefix(address, *bits) for address in addresses]))


@lru_cache(maxsize=16_384)
def _prefix(address: str, bits_v4: int, bits_v6: int) -> str:
    try:
        host = urlsplit(address).hostname or address
    except ValueError:
        return address
    try:
        ip = ip_address(host)
    except ValueError:
        return host  # a name: its owner may have many, but has to register the domain
    if ip.version == 6 and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return str(ip_network((ip, bits_v4 if ip.version == 4 else bits_v6), strict=False))
