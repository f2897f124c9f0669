"""The door to a node's search machine.

Every command carries a token that hears what the machine says to it. Who waits is never left
waiting: an answer, the end of the node, or the end of patience comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from shoal.base.errors import SearchUnavailable, ShoalError, UsageError
from shoal.base.ids import NodeId, show_node_id
from shoal.kernel.contact import Contact
from shoal.node.host_cache import fetch_web_cache, write_host_cache
from shoal.node.search_role import SearchRole
from shoal.node.tasks import Tasks
from shoal.protocols.search.commands import (
    FindDocuments,
    Joined,
    Leave,
    Left,
    Meet,
    WatchDocuments,
)
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
