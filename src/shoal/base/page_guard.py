"""Which requests of web pages may come in: one rule for every port that speaks HTTP.

A browser asks what any page tells it to ask, from its user's machine. A page cannot change what the
browser says of it in these headers:

    Host             the name that the page used. An attacker can have a name of his own lead to
                     this machine (DNS rebinding), and the page then counts as one of ours.
    Origin           whose page it is: with WebSockets, with what may change something, and with
                     what the page wants to read.
    Sec-Fetch-Site   whether the page is of this very server: also with images, frames and links,
                     which have no Origin.

Programs send no Origin and no Sec-Fetch-Site. A browser leaves Sec-Fetch-Site out where it asks
over plain HTTP beyond this machine: so no GET may have an effect that lasts, whoever asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from typing import Literal
from urllib.parse import urlsplit

import msgspec

ALL = "*"
OWN_SITES = (None, "none", "same-origin")
"""Values of Sec-Fetch-Site with which no other page asks: none is what the user typed."""
SHOWN_CHARS_MAX = 200  # of a header, in an answer


class PageRefusal(msgspec.Struct, frozen=True):
    """Why a request may not come in, and what to do instead."""

    reason: Literal["foreign-host", "foreign-page"]
    text: str


class PageGuard(msgspec.Struct, frozen=True):
    """Says which pages may come in at one port."""

    section: str
    """Of the network file, where origins and hosts are listed: the remedy names it."""
    origins: tuple[str, ...] = ()
    """Pages of these origins may come in; "*" is all of them."""
    hosts: tuple[str, ...] = ()
    """More names of this machine, as behind a proxy."""

    def refusal(
        self,
        headers: Mapping[str, str],
        *,
        loopback: bool,
        own: str | None = None,
        entry: bool = False,
    ) -> PageRefusal | None:
        """Why a request with these headers may not come in, or None.

        `loopback`: it came in at an address of loopback. `own` is the origin of this server's own
        pages, if it has any. `entry`: it gets a page without data, which pages of others may link
        to.
        """
        name = _host_of(f"//{headers.get('Host', '')}")
        if loopback and not is_loopback_name(name) and name not in self.hosts:
            return PageRefusal(
                "foreign-host",
                f"{name[:SHOWN_CHARS_MAX]!r} is no name of this machine: ask for 127.0.0.1, or add"
                f" the name to hosts under [{self.section}]",
            )
        origin = headers.get("Origin")
        if self.lists(origin) or ALL in self.origins:
            return None
        if origin is not None and origin != own:
            return self._foreign(f"pages of {origin[:SHOWN_CHARS_MAX]!r} may not ask here: add it")
        if headers.get("Sec-Fetch-Site") in OWN_SITES:
            return None
        if entry and _is_link_followed(headers):
            return None
        return self._foreign(
            "a page of another origin may not ask here: have it ask with fetch, and add its origin"
        )

    def lists(self, origin: str | None) -> bool:
        """Whether pages of an origin may come in."""
        return origin is not None and (ALL in self.origins or origin in self.origins)

    def _foreign(self, text: str) -> PageRefusal:
        return PageRefusal("foreign-page", f"{text} to origins under [{self.section}]")


def is_loopback_name(host: str) -> bool:
    """Whether a name can only be this machine's own; others may be anybody's."""
    return host.lower() == "localhost" or is_loopback_address(host)


def is_loopback_address(host: str) -> bool:
    """Whether an IP address leads to this machine; also one of IPv4 that is written as IPv6."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def _is_link_followed(headers: Mapping[str, str]) -> bool:
    """Whether the answer becomes what the user looks at, and no part of another page."""
    asked = (headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest"))
    return asked == ("navigate", "document")


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
