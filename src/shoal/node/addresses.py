"""Where addresses lead: to this machine, to a network of one's own, or into the Internet."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from shoal.base.errors import ConfigError
from shoal.base.page_guard import is_loopback_name
from shoal.node.webrtc_section import WEBRTC_ADDRESS


def is_local(listen: Sequence[str]) -> bool:
    """Whether a node that listens there is in a network on one machine. That it can be called says
    nothing of that; and where one is that can only be called, nobody knows."""
    dialled = [address for address in listen if address != WEBRTC_ADDRESS]
    return all(is_loopback(address) for address in dialled or listen)


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return is_loopback_name(urlsplit(address).hostname or "")
    except ValueError:
        return False


def is_everywhere(address: str) -> bool:
    """Whether it is all addresses of a machine, as 0.0.0.0 and ::, and so none to go to."""
    try:
        return ip_address(urlsplit(address).hostname or "").is_unspecified
    except ValueError:
        return False


def is_public(address: str) -> bool:
    """Whether an address is one of the Internet; a name is not: who knows what it stands for."""
    try:
        return ip_address(urlsplit(address).hostname or "").is_global
    except ValueError:
        return False


def is_url(text: str, *schemes: str, port: bool) -> bool:
    """Whether it is an address with one of these schemes; whether it has to have a port."""
    try:
        url = urlsplit(text)
        return url.scheme in schemes and bool(url.hostname) and (url.port is not None or not port)
    except ValueError:
        return False


def check_origins(origins: Sequence[str]) -> None:
    """Refuse what is no origin of web pages, as a browser writes them."""
    for origin in origins:
        listable = is_url(origin, "http", "https", port=False) and origin.count("/") == 2
        if origin != "*" and not listable:
            raise ConfigError(
                f"origins: {origin!r} is none: write https://HOST, or https://HOST:PORT"
            )
