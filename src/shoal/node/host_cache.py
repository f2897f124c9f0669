"""Caches of nodes through which the search network can be entered.

A cache is text, one node a line: where it listens, and who must answer there.

    192.0.2.7:7700 0x7e5f4552091a69125d5dfcb7b8c2659029395bdf

Addresses that are no ws:// are written in full. A node keeps such a file for its next start, and
somebody may serve such lines over HTTP for all who know nobody. What makes no sense is left out:
an old file must not keep a node from starting, and ids are proven when a node is dialled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from shoal.base.errors import UsageError
from shoal.base.ids import parse_node_id, show_node_id
from shoal.base.log_limit import log_of_others
from shoal.base.units import KIB
from shoal.kernel.contact import ADDRESS_CHARS_MAX, Contact
from shoal.node.addresses import is_public
from shoal.node.network_file import PeerEntry

HOSTS_MAX = 64  # as many as a node remembers; one that lives is enough
CACHE_BYTES_MAX = 64 * KIB  # a thousand lines
FETCH_TIMEOUT_S = 10.0
REDIRECTS_MAX = 3
_PLAIN = "ws://"

log = logging.getLogger("shoal.node")
log_others = log_of_others("shoal.node")


def parse_hosts(text: str, source: str) -> list[Contact]:
    """The nodes that a cache names, each once; the source is for the log."""
    found: dict[bytes, Contact] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line or len(found) == HOSTS_MAX:
            continue
        try:
            contact = _contact(line)
        except UsageError as error:
            log_others.warning("%s, line %d is left out: %s", source, number, error)
        else:
            found.setdefault(contact.node, contact)
    return list(found.values())


def show_hosts(contacts: Iterable[Contact]) -> str:
    """The text of a cache."""
    lines = [
        f"{contact.addresses[0].removeprefix(_PLAIN)} {show_node_id(contact.node)}\n"
        for contact in contacts
        if contact.addresses
    ]
    return "".join(lines[:HOSTS_MAX])


def read_host_cache(path: Path) -> list[Contact]:
    """Whom a node had met when it ran last; nobody, if there is no such file."""
    try:
        with path.open("rb") as file:
            text = file.read(CACHE_BYTES_MAX).decode(errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        log.warning("the host cache %s cannot be read: %s", path, error.strerror)
        return []
    return parse_hosts(text, str(path))


def write_host_cache(path: Path, contacts: Sequence[Contact]) -> None:
    """Write the file anew, whole or not at all; what is there stays if there is nobody to name."""
    if not contacts:
        return
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_text(show_hosts(contacts))
        new.replace(path)
    except OSError as error:
        log.warning("the host cache %s cannot be written: %s", path, error.strerror)
        with suppress(OSError):
            new.unlink()


async def fetch_web_cache(url: str, *, local: bool) -> list[Contact]:
    """The nodes that a web cache names; nobody, if it does not answer in time. Of strangers we take
    no address of our own network, unless we are in a local one: nobody shall have us dial our
    neighbours' printers."""
    import aiohttp  # it takes as long to load as the rest of a node, and few need it

    timeout = aiohttp.ClientTimeout(total=FETCH_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, max_redirects=REDIRECTS_MAX) as answer,
        ):
            answer.raise_for_status()
            raw = b""
            async for chunk in answer.content.iter_any():
                raw += chunk
                if len(raw) > CACHE_BYTES_MAX:
                    break
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        problem = str(error) or type(error).__name__
        log_others.warning("the web cache %s does not answer: %s", url, problem)
        return []
    found = parse_hosts(raw[:CACHE_BYTES_MAX].decode(errors="replace"), url)
    return [contact for contact in found if local or is_public(contact.addresses[0])]


def _contact(line: str) -> Contact:
    where, _, id = line.partition(" ")
    address = where if "://" in where else f"{_PLAIN}{where}"
    if len(address) > ADDRESS_CHARS_MAX:
        raise UsageError(f"{address[:40]!r}... is no address: write IP:PORT 0xID")
    try:
        return PeerEntry(show_node_id(parse_node_id(id.strip())), (address,)).contact()
    except UsageError as error:
        raise UsageError(f"{line[:120]!r} is no node ({error}): write IP:PORT 0xID") from None
