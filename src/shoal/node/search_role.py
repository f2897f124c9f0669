"""The search role of a node: its machine, and the nodes through which it enters the network.

Whoever names nobody under [[search.bootstrap]], and no web cache, is the first of its network: it
begins one of its own, and meets those whom its host cache names from there. If they live, it moves
over to them; if not, it is there for others. Everybody else enters through whomever it knows. Of
the bootstrap nodes of one list, if none has a place, the one with the lowest id begins the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from shoal.base.units import KIB
from shoal.identity import PrivateKey
from shoal.kernel.contact import Contact
from shoal.node.addresses import is_local
from shoal.node.host_cache import fetch_web_cache, read_host_cache
from shoal.node.network_file import NetworkFile, SearchSection
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.node import SearchNode
from shoal.protocols.search.wire.codec import SearchCodec


async def cached_hosts(network: NetworkFile) -> list[Contact]:
    """Nodes of the search network that this node's caches name. The web cache is asked at once only
    if there is nobody else to ask."""
    section = network.search
    if section is None:
        return []
    found = []
    if section.host_cache is not None:
        found = read_host_cache(network.path(section.host_cache))
    if section.web_cache is not None and not found and not section.bootstrap:
        found = await fetch_web_cache(section.web_cache, local=is_local(network.node.listen))
    return found


class SearchRole:
    """The machine of a node that takes part in search. Made before the host."""

    def __init__(
        self,
        network: NetworkFile,
        section: SearchSection,
        key: PrivateKey,
        rng: Random,
        cached: Sequence[Contact] = (),
    ) -> None:
        self.section = section
        self.codec = SearchCodec()
        named = [entry.contact() for entry in section.bootstrap]
        founders = [contact.node for contact in named]
        named = [contact for contact in named if contact.node != key.address]
        cached = [contact for contact in cached if contact.node != key.address]
        first = not named and section.web_cache is None and not section.client
        self.bootstrap = named if first else [*named, *cached]
        """Whom this node asks to be let in; nobody: it is the first."""
        self.later = cached if first else []
        """Whom it looks for once it has begun a network of its own."""
        self.machine = SearchNode(
            key,
            self.bootstrap,
            rng,
            _search_config(section),
            client=section.client,
            founders=founders if key.address in founders else (),
        )
        self.host_cache = None if section.host_cache is None else network.path(section.host_cache)
        self.local = is_local(network.node.listen)


def _search_config(section: SearchSection) -> SearchConfig:
    defaults = SearchConfig()
    upload, download = section.upload_kib_s, section.download_kib_s
    return SearchConfig(
        locations=section.locations or defaults.locations,
        confidence=section.confidence or defaults.confidence,
        upload_bytes_s=None if upload is None else upload * KIB,
        download_bytes_s=None if download is None else download * KIB,
    )
