"""Those sections of a network file that say who a node is, and who its peers are."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.errors import ConfigError
from shoal.base.ids import parse_node_id
from shoal.identity import split_secret_source
from shoal.kernel.contact import ADDRESSES_MAX, Contact
from shoal.node.addresses import check_origins, is_everywhere, is_url
from shoal.node.webrtc_section import WEBRTC_ADDRESS


def _check_address(field: str, address: str) -> None:
    if not is_url(address, "ws", "wss", port=True):
        raise ConfigError(f"{field}: {address!r} is no address: write ws://HOST:PORT")
    if is_everywhere(address):
        raise ConfigError(
            f"{field}: {address!r} is told to others, who cannot dial it: write the address at"
            " which they reach this machine, as in ws://10.0.0.1:7700; several, if it has several"
        )


Latitude = Annotated[float, Meta(ge=-90, le=90)]
Longitude = Annotated[float, Meta(ge=-180, le=180)]


class NodeSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[node]"""

    key: str | None = None
    passphrase: str | None = None
    listen: Annotated[tuple[str, ...], Meta(max_length=ADDRESSES_MAX)] = ("ws://127.0.0.1:0",)
    certificate: str | None = None
    """PEM file with certificate and key, for wss:// addresses."""
    origins: tuple[str, ...] = ()
    """Web pages of these origins may be peers; "*" is all of them. Nodes are no web pages."""
    hosts: tuple[str, ...] = ()
    """More names under which peers on this machine reach it, as through a proxy."""
    region: Annotated[str, Meta(max_length=64)] = ""
    """Where it is, for people: a name, as in eu-north-1; the explorer knows where some are."""
    location: tuple[Latitude, Longitude] | None = None
    """Where it is on a map, if the region does not say it."""
    clock_limit_s: Annotated[float, Meta(gt=0)] = 60.0
    """A node whose clock differs by more from the trackers and storage nodes that are named here
    publishes nothing. Nodes refuse messages from more than 60 s ahead."""
    spare_key: bool = False
    """Whether a process that finds the key in use runs under a new one, instead of not at all."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for address in self.listen:
            if address != WEBRTC_ADDRESS:
                _check_address("listen", address)
            if address.startswith("wss:") and self.certificate is None:
                raise ConfigError(f"listen: {address!r} needs a certificate: name its PEM file")
        if self.passphrase is not None:
            split_secret_source("passphrase", self.passphrase)
        check_origins(self.origins)


class PeerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[trackers]], [[storage_nodes]], [[dht.bootstrap]], [[search.bootstrap]]: pinned by id."""

    id: str
    addresses: Annotated[tuple[str, ...], Meta(min_length=1, max_length=ADDRESSES_MAX)]
    gateway: str | None = None
    """Where its gateway is, for commands that ask a tracker for its topology."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        parse_node_id(self.id)
        for address in self.addresses:
            _check_address("addresses", address)
        if self.gateway is not None and not is_url(self.gateway, "http", "https", port=False):
            raise ConfigError(f"gateway: {self.gateway!r} is no address: write http://HOST:PORT")

    def contact(self) -> Contact:
        """The peer, as machines know it."""
        return Contact(parse_node_id(self.id), self.addresses)
