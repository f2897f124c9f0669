"""What transports share: dials within a time, strangers within a number, and an end of it all."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from typing import Self

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId
from shoal.base.units import seconds
from shoal.transport.handshake import Handshake
from shoal.transport.link import AuthenticatedLink, Carrier
from shoal.transport.port import (
    Credentials,
    DialFailed,
    Link,
    LinkHandler,
    Listener,
    TransportLimits,
)

Outcome = asyncio.Future[AuthenticatedLink]


class Endpoint(ABC):
    """The part of a Transport that does not depend on what carries the bytes."""

    def __init__(
        self,
        credentials: Credentials,
        handler: LinkHandler,
        limits: TransportLimits | None = None,
    ) -> None:
        self.credentials = credentials
        self.handler = handler
        self.limits = limits or TransportLimits()
        self._handshake_timeout_s = seconds(self.limits.handshake_timeout_ns)
        self._closed = False
        self._links: dict[Carrier, AuthenticatedLink] = {}
        self._outcomes: dict[AuthenticatedLink, Outcome] = {}
        self._strangers: set[AuthenticatedLink] = set()
        """Inbound links that nobody has heard of yet, or that are being closed: their sockets are
        held by peers that need not be anybody."""
        self._listeners: list[Listener] = []
        self._attempts: set[asyncio.Task[AuthenticatedLink]] = set()
        self._empty = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def listen(self, address: str) -> Listener:
        """Open a door."""
        if self._closed:
            raise UsageError(f"cannot listen on {address!r}: this transport is closed")
        listener = await self._listen(address)
        self._listeners.append(listener)
        return listener

    async def dial(self, address: str, peer: NodeId) -> Link:
        """Connect, and make sure that it is this peer."""
        if self._closed:
            raise DialFailed("closed: this transport is closed")
        attempt = asyncio.get_running_loop().create_task(self._attempt(address, peer))
        self._attempts.add(attempt)
        attempt.add_done_callback(self._attempts.discard)
        try:
            link = await attempt
        except asyncio.CancelledError:
            if attempt.done() and not attempt.cancelled() and attempt.exception() is None:
                attempt.result().close("cancelled")
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                raise DialFailed("closed: this transport was closed meanwhile") from None
            raise
        link.release_soon()
        return link

    async def close(self) -> None:
        """Close every door and link, flushed; links that cannot be flushed in time are cut. So it
        is if this is cancelled, but nobody waits for it then."""
        self._closed = True
        async with AsyncExitStack() as stack:  # which begins with the last
            stack.push_async_callback(self._close_links)
            stack.push_async_callback(self._give_up_dials)
            for listener in self._listeners:
                stack.push_async_callback(listener.close)

    async def _give_up_dials(self) -> None:
        attempts = list(self._attempts)
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)

    async def _close_links(self) -> None:
        for link in list(self._links.values()):
            link.close("closed")
        if self._links:
            self._empty.clear()
            await self._empty.wait()

    # What a kind of transport adds

    @abstractmethod
    async def _listen(self, address: str) -> Listener:
        """Open a door."""

    @abstractmethod
    async def _connect(self, address: str, peer: NodeId) -> AuthenticatedLink:
        """Connect, shake_hands, and wait for the _outcome_of it."""

    # What it uses

    def may_enter(self, waiting: int = 0) -> bool:
        """Whether one more stranger may begin a handshake, beside so many who have not yet."""
        return not self._closed and len(self._strangers) + waiting < self.limits.handshakes_max

    def shake_hands(
        self,
        carrier: Carrier,
        address: str,
        *,
        expects: NodeId | None = None,
        outcome: Outcome | None = None,
        binding: bytes = b"",
        timeout_s: float | None = None,
        accepts: bool = False,
    ) -> None:
        """Begin the handshake over a new connection; a dialler gives what it expects, and so does
        who accepts a call, and knows whose it is."""
        handshake = Handshake(
            self.credentials, expects, binding, side="acceptor" if accepts else None
        )
        timeout_s = self._handshake_timeout_s if timeout_s is None else timeout_s
        link = AuthenticatedLink(self, carrier, handshake, address, timeout_s)
        self._links[carrier] = link
        if outcome is not None:
            self._outcomes[link] = outcome
        else:
            self._strangers.add(link)
        carrier.link = link
        link.start()

    async def _outcome_of(self, carrier: Carrier, outcome: Outcome) -> AuthenticatedLink:
        """Wait for a dialled link to be up; DialFailed if it does not come to that."""
        try:
            return await outcome
        except asyncio.CancelledError:
            if carrier.link is not None:
                carrier.link.close("cancelled")
            raise

    def carrier_closed(self, carrier: Carrier) -> None:
        """The connection's resources are free."""
        link = self._links.pop(carrier, None)
        if link is not None:
            self._strangers.discard(link)
            self._outcomes.pop(link, None)
        if not self._links:
            self._empty.set()

    def tell_failure(self, address: str, reason: str) -> None:
        """A stranger got no further; a handler that fails must not take the door with it."""
        if self._closed:
            return
        try:
            self.handler.handshake_failed(address, reason)
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a link handler failed", "exception": error}
            )

    # What links tell

    def link_established(self, link: AuthenticatedLink) -> None:
        """A peer has proven who it is."""
        if not link.dialled:
            self._strangers.discard(link)
            if self._closed:
                link.close("closed")
            else:
                link.tell(self.handler.link_ready, link)
            return
        link.hold()
        outcome = self._outcomes.pop(link, None)
        if outcome is None or outcome.done():
            link.close("cancelled")
        else:
            outcome.set_result(link)

    def link_closing(self, link: AuthenticatedLink, carrier: Carrier) -> None:
        """We close it, and the peer may take its time."""
        if not link.dialled and carrier in self._links:
            self._strangers.add(link)

    def link_refused(self, link: AuthenticatedLink, reason: str, detail: str) -> None:
        """A peer has not proven who it is."""
        if not link.dialled:
            self._strangers.discard(link)
            self.tell_failure(link.address, reason)
            return
        outcome = self._outcomes.pop(link, None)
        if outcome is not None and not outcome.done():
            outcome.set_exception(DialFailed(detail))
            outcome.exception()  # seen: the dial may have been cancelled, and nobody waits for it

    async def _attempt(self, address: str, peer: NodeId) -> AuthenticatedLink:
        try:
            async with asyncio.timeout(self._handshake_timeout_s):
                return await self._connect(address, peer)
        except TimeoutError:
            raise DialFailed(f"timeout: {address} gave no proof in time") from None
