"""The door to a node's search machine.

Every command carries a token that hears what the machine says to it. Who waits is never left
waiting: an answer, the end of the node, or the end of patience comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from shoal.base.errors import NotFound, SearchUnavailable, ShoalError, UsageError
from shoal.base.ids import ADDRESS_CHARS_MAX, Contact, NodeId, parse_node_id, show_node_id
from shoal.base.log_line_limit import log_of_others
from shoal.base.units import KIB, seconds
from shoal.config.network_file import NetworkFile
from shoal.config.sections import PeerEntry, SearchSection, is_local, is_public
from shoal.identity import PrivateKey
from shoal.node.background import Tasks
from shoal.protocols.search.commands import (
    Contribute,
    FindDocuments,
    Joined,
    Leave,
    Left,
    Meet,
    WatchDocuments,
)
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.machine import SearchNode
from shoal.protocols.search.measuring.measurement import NO_ROUND
from shoal.protocols.search.measuring.measurement_round import MAXIMUM, MINIMUM, SUM
from shoal.protocols.search.wire import SearchCodec
from shoal.runtime import RuntimeHost

REACH_TIMEOUT_S = 15.0  # a dial that times out, and the next one
JOIN_TIMEOUT_S = 60.0  # where many come at once, a walk to a place may have to be begun again twice
LEAVE_TIMEOUT_S = 5.0  # neighbours answer in a round trip; who cannot wait leaves holes
WEB_CACHE_AFTER_S = 5.0  # without an answer of anybody else; doubled from time to time
UPKEEP_S = 300.0  # between two writes of the host cache; and two questions to a web cache at most

CASTS = (FindDocuments, WatchDocuments)  # what they send carries the time of day

A = TypeVar("A")

log = logging.getLogger("shoal.node")


class Token:
    """Hears what the machine says to a command."""

    def heard(self, event: Any) -> None:
        """The machine says something; never waits."""

    def ended(self) -> None:
        """The node is closed: nothing more will be said."""


class _Question(Token):
    """The token of a command that has one answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def heard(self, event: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(event)

    def ended(self) -> None:
        if not self.answer.done():
            self.answer.set_exception(closed())


class NodeSearch:
    """Search on one running node."""

    def __init__(self, host: RuntimeHost, role: SearchRole, rng: Random) -> None:
        self.machine = role.machine
        self.rng = rng
        self.node = host.node
        self.host = host
        self.listeners: list[Callable[[Any], None]] = []
        """They hear what the machine says to nobody in particular."""
        self._role = role
        self._joined = asyncio.Event()
        self._left = asyncio.Event()
        self._tokens: dict[Token, None] = {}
        self._tasks = Tasks()
        self.start: Callable[[Coroutine[Any, Any, None]], Awaitable[None]] = self._tasks.start
        self._running = False
        self._closed = False
        host.listeners.append(self._notified)

    # Life

    async def begin(self) -> None:
        """Meet whom the caches name; the host has started the machine."""
        self._running = True
        if self._role.later:
            await self.host.issue(self.machine, Meet(tuple(self._role.later)))
        if self._role.host_cache is not None:
            self.start(self._keep_host_cache())
        if self._role.section.web_cache is not None:
            self.start(self._ask_web_cache(self._role.section.web_cache))

    async def close(self) -> None:
        """Leave the network in good order, and let nobody wait for a node that is gone."""
        self._closed = True
        self._joined.set()
        await self._tasks.close()
        for token in list(self._tokens):
            token.ended()
        if not self._running:
            return
        self._running = False
        self._write_host_cache()
        await self.host.issue(self.machine, Leave())
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._left.wait()
        except TimeoutError:
            log.warning("left the search network without the answer of all neighbours")

    # What the parts of the API need

    def contact_of(self, node: NodeId) -> Contact | None:
        """Where a node was seen lately, or is said to be."""
        known = {contact.node: contact for contact in self._contacts()}
        return known.get(node)

    async def when_joined(self) -> None:
        """Once this node has its place, and knows how large the network is: before that, nobody
        can be asked."""
        if not await self._joins_within(REACH_TIMEOUT_S):
            peers = [contact.node for contact in self._role.bootstrap]
            if all(self.host.dial_problem(peer) for peer in peers):
                raise SearchUnavailable(self._alone(REACH_TIMEOUT_S))
            if not await self._joins_within(JOIN_TIMEOUT_S - REACH_TIMEOUT_S):
                raise SearchUnavailable(self._alone(JOIN_TIMEOUT_S))
        self.check_open()

    def check_open(self) -> None:
        """Refuse what comes after the end."""
        if self._closed:
            raise closed()

    async def say(self, command: Any, token: Token | None = None) -> None:
        """Have the machine do something; it raises here what is wrong with it. While our clock is
        off, other nodes refuse what we cast: a search would find nothing, and be sure of it."""
        await self.when_joined()
        if self.host.check_clock is not None and isinstance(command, CASTS):
            await self.host.check_clock()
        await self.host.issue(self.machine, command, token)

    async def say_last(self, command: Any, token: Token | None = None) -> None:
        """Take something back; there is nothing to take back after the end."""
        if token is not None:
            self.forget(token)
        if not self._closed:
            await self.host.issue(self.machine, command, token)

    async def ask(self, command: Any, kind: type[A]) -> A:
        """The answer to a command, which is of this kind."""
        question = _Question()
        self.remember(question)
        try:
            await self.say(command, question)
            answer = await question.answer
        finally:
            self.forget(question)
        assert isinstance(answer, kind)  # the machine's answers name their tokens
        return answer

    def remember(self, token: Token) -> None:
        """Tell it of the node's end."""
        self.check_open()
        self._tokens[token] = None

    def forget(self, token: Token) -> None:
        """It waits for nothing any more."""
        self._tokens.pop(token, None)

    # Steps

    def _contacts(self) -> tuple[Contact, ...]:
        return self.machine.parts.circle.acquaintances.recent()

    async def _keep_host_cache(self) -> None:
        while True:
            await asyncio.sleep(UPKEEP_S)
            self._write_host_cache()

    def _write_host_cache(self) -> None:
        if self._role.host_cache is not None:
            write_host_cache(self._role.host_cache, self._contacts())

    async def _ask_web_cache(self, url: str) -> None:
        """As long as we are alone: it may have been away when we began a network of our own."""
        pause_s = WEB_CACHE_AFTER_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, UPKEEP_S)
            if self._has_company():
                continue
            found = await fetch_web_cache(url, local=self._role.local)
            if found:
                await self.host.issue(self.machine, Meet(tuple(found)))

    def _has_company(self) -> bool:
        if self.machine.client:
            return self._joined.is_set()
        return any(edge.peer != self.node for edge in self.machine.parts.circle.edges)

    async def _joins_within(self, patience_s: float) -> bool:
        try:
            async with asyncio.timeout(patience_s):
                await self._joined.wait()
        except TimeoutError:
            return False
        return True

    def _alone(self, waited_s: float) -> str:
        peers = [contact.node for contact in self._role.bootstrap]
        tried = "; ".join(
            [
                f"{show_node_id(peer)}: {self.host.dial_problem(peer) or 'no answer'}"
                for peer in peers
            ]
        )
        return (
            f"not taken into the search network within {waited_s:g} s ({tried}): does one of"
            " these run, at the address under [[search.bootstrap]] in the network file?"
        )

    def _notified(self, event: Any) -> None:
        kind = type(event)
        if kind is Joined:
            self._joined.set()
        elif kind is Left:
            self._left.set()
        elif isinstance(getattr(event, "token", None), Token):
            event.token.heard(event)
        else:
            for listener in self.listeners:
                listener(event)


def closed() -> ShoalError:
    """What is said after the end."""
    return UsageError("this node is closed: open another one")


# The search role of a node: its machine, and the nodes through which it enters the network.
#
# Whoever names nobody under [[search.bootstrap]], and no web cache, is the first of its network: it
# begins one of its own, and meets those whom its host cache names from there. If they live, it
# moves over to them; if not, it is there for others. Everybody else enters through whomever it
# knows. Of the bootstrap nodes of one list, if none has a place, the one with the lowest id begins
# the network.


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


# Caches of nodes through which the search network can be entered.
#
# A cache is text, one node a line: where it listens, and who must answer there.
#
#     192.0.2.7:7700 0x7e5f4552091a69125d5dfcb7b8c2659029395bdf
#
# Addresses that are no ws:// are written in full. A node keeps such a file for its next start, and
# somebody may serve such lines over HTTP for all who know nobody. What makes no sense is left out:
# an old file must not keep a node from starting, and ids are proven when a node is dialled.


HOSTS_MAX = 64  # as many as a node remembers; one that lives is enough
CACHE_BYTES_MAX = 64 * KIB  # a thousand lines
FETCH_TIMEOUT_S = 10.0
REDIRECTS_MAX = 3
_PLAIN = "ws://"
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


# Sums, minima and maxima over the whole network: every node adds what it has.
#
# All nodes measure at once, in rounds that begin one after the other and take a minute or a few.
# What a node contributes is part of every round that begins from then on, until it is withdrawn.


ROUNDS_TIMEOUT_S = 30 * 60.0  # a round that does not come to rest ends after ten minutes
LOOKS_A_BEAT = 10  # rounds take several beats: none passes unseen
OURS = "shoal."  # names of the network's own columns begin with it


class Measure:
    """What is measured. Made by Node.measure."""

    def __init__(self, door: NodeSearch) -> None:
        self._door = door

    async def size(self) -> float:
        """How many nodes the network has, as it was measured last."""
        await self._door.when_joined()
        known = self._door.machine.parts.measurement.known
        assert known is not None  # whoever has joined knows
        return known.nodes

    async def sum(self, name: str, value: float | None = None) -> float:
        """Contribute this node's value, if there is one, and wait for the sum over all nodes of a
        round that it is part of."""
        return await self._measured(SUM + name, value)

    async def minimum(self, name: str, value: float | None = None) -> float:
        """As `sum`, for the smallest of all values."""
        return await self._measured(MINIMUM + name, value)

    async def maximum(self, name: str, value: float | None = None) -> float:
        """As `sum`, for the largest of all values."""
        return await self._measured(MAXIMUM + name, value)

    async def withdraw(self, name: str) -> None:
        """Contribute nothing of this name any more."""
        for kind in (SUM, MINIMUM, MAXIMUM):
            await self._door.say(Contribute(kind + name, None))

    async def _measured(self, column: str, value: float | None) -> float:
        name = column.partition(":")[2]
        if not name or name.startswith(OURS):
            raise UsageError(f"a measurement called {name!r}: give it a name, not {OURS}...")
        if self._door.machine.client:
            raise UsageError(
                f"{name}: a client has no part in measurements: leave out `client = true` in"
                " [search] of its network file"
            )
        await self._door.when_joined()
        if value is not None:
            await self._door.say(Contribute(column, float(value)))
        try:
            async with asyncio.timeout(ROUNDS_TIMEOUT_S):
                results = await self._whole_round()
        except TimeoutError:
            raise SearchUnavailable(
                f"{name}: no round ended within {ROUNDS_TIMEOUT_S:g} s: is this node cut off?"
            ) from None
        if column not in results:
            raise NotFound(
                f"{name}: nobody contributes to it: give a value, or have others give one"
            )
        return results[column]

    async def _whole_round(self) -> dict[str, float]:
        """The results of a round that began after now."""
        measurement = self._door.machine.parts.measurement
        begun = measurement.round
        if begun == NO_ROUND:  # the round in which a newcomer arrives goes on without it
            await self._until(lambda: measurement.round != NO_ROUND)
            begun = measurement.round
        await self._until(lambda: measurement.round != begun)
        before = measurement.extras
        await self._until(lambda: measurement.extras is not before)
        return measurement.extras

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._door.check_open()
            await asyncio.sleep(seconds(self._door.machine.config.beat_ns) / LOOKS_A_BEAT)
