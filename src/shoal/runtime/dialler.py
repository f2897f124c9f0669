"""Dialling with backoff: one attempt per peer at a time, and ever longer pauses after failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

import msgspec

from shoal.base.ids import Contact, NodeId
from shoal.base.units import MS_NS, S_NS, seconds
from shoal.transport.port import DialFailed, Link, Transport

Opened = Callable[[Link], None]
Failed = Callable[[str], None]


class DialLimits(msgspec.Struct, frozen=True):
    """Bounds of dialling, with their reasons."""

    backoff_min_ns: int = 100 * MS_NS
    backoff_max_ns: int = 3 * S_NS
    """A peer that is down is not hammered. One that comes back is found as soon as the machines
    look for it: they ask for a tracker every three seconds, and a longer pause here would be added
    to that. Whoever is dialled by the peer itself meanwhile does not wait at all."""

    unreachable_wait_ns: int = 5 * S_NS
    """A peer at whose addresses nobody can dial, such as one behind a NAT, may dial us: it was told
    when we were, and is waited for as long as a dial may take."""

    remembered_max: int = 10_000
    """Peers whose failures are remembered."""


class _Attempt(msgspec.Struct, eq=False):
    contact: Contact
    task: asyncio.Task[None] | None = None
    pausing: bool = True


class _Failures(msgspec.Struct, frozen=True):
    """What went wrong at these addresses of a peer."""

    addresses: tuple[str, ...]
    count: int
    retry_s: float
    reason: str


class Dialler:
    """Opens links through whichever transport serves an address."""

    def __init__(
        self, transports: Sequence[Transport], rng: Random, limits: DialLimits | None = None
    ) -> None:
        self._transports = tuple(transports)
        self._rng = rng
        self._limits = limits or DialLimits()
        self._attempts: dict[NodeId, _Attempt] = {}
        self._failures: dict[NodeId, _Failures] = {}
        self._closed = False

    def dial(self, contact: Contact, opened: Opened, failed: Failed) -> None:
        """Connect to a peer; one of the two is called, unless the peer connects to us meanwhile.

        Asked again while an attempt is under way, that one answers; if it has not begun to
        connect, it goes to the new addresses.
        """
        if self._closed:
            return
        attempt = self._attempts.get(contact.node)
        if attempt is not None:
            attempt.contact = contact
            return
        attempt = self._attempts[contact.node] = _Attempt(contact)
        loop = asyncio.get_running_loop()
        attempt.task = loop.create_task(self._dial(attempt, opened, failed))

    def connected(self, peer: NodeId) -> None:
        """A link is up, whoever dialled: forget failures, and what has not begun to connect.

        A dial that has begun goes on: the peer may have it for good already.
        """
        self._failures.pop(peer, None)
        attempt = self._attempts.get(peer)
        if attempt is not None and attempt.pausing:
            del self._attempts[peer]
            _cancel(attempt)

    def problem(self, peer: NodeId) -> str | None:
        """Why the last dial failed, if it did."""
        failures = self._failures.get(peer)
        return None if failures is None else failures.reason

    def is_dialling(self, peer: NodeId) -> bool:
        """Whether an attempt is under way, or waits for its turn."""
        return peer in self._attempts

    async def close(self) -> None:
        """Give up all attempts, and begin no more."""
        self._closed = True
        attempts = list(self._attempts.values())
        self._attempts.clear()
        tasks = [_cancel(attempt) for attempt in attempts]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _dial(self, attempt: _Attempt, opened: Opened, failed: Failed) -> None:
        peer = attempt.contact.node
        try:
            await asyncio.sleep(self._pause_s(attempt.contact))
            if attempt.contact.addresses and not self._ways(attempt.contact):
                await asyncio.sleep(seconds(self._limits.unreachable_wait_ns))
            attempt.pausing = False
            link = await self._connect(attempt.contact)
        except Exception as error:  # whatever an address of a peer's choice brings about
            del self._attempts[peer]
            self._remember(attempt.contact, str(error))
            failed(str(error))
        else:
            del self._attempts[peer]
            opened(link)

    async def _connect(self, contact: Contact) -> Link:
        problem = "it gives no address"
        if contact.addresses:
            problem = f"{contact.addresses[-1]}: no transport for it"
        for address, transport in self._ways(contact):
            try:
                return await transport.dial(address, contact.node)
            except Exception as error:
                problem = f"{address}: {error}"
        raise DialFailed(problem)

    def _ways(self, contact: Contact) -> list[tuple[str, Transport]]:
        """How a peer can be dialled: in the order of our transports, what costs least comes
        first, and within one in the peer's own order."""
        return [
            (address, transport)
            for transport in self._transports
            for address in contact.addresses
            if address.partition(":")[0] in transport.schemes
        ]

    def _pause_s(self, contact: Contact) -> float:
        """What is left of the pause after the last failure; none for new addresses."""
        failures = self._failures.get(contact.node)
        if failures is None or failures.addresses != contact.addresses:
            return 0.0
        return max(0.0, failures.retry_s - asyncio.get_running_loop().time())

    def _remember(self, contact: Contact, reason: str) -> None:
        before = self._failures.pop(contact.node, None)
        count = 1 if before is None or before.addresses != contact.addresses else before.count + 1
        longest_ns = min(self._limits.backoff_min_ns << min(count, 16), self._limits.backoff_max_ns)
        pause_s = seconds(longest_ns) * (0.5 + self._rng.random() / 2)
        retry_s = asyncio.get_running_loop().time() + pause_s
        self._failures[contact.node] = _Failures(contact.addresses, count, retry_s, reason)
        if len(self._failures) > self._limits.remembered_max:
            del self._failures[next(iter(self._failures))]


def _cancel(attempt: _Attempt) -> asyncio.Task[None]:
    assert attempt.task is not None  # it is there as soon as the attempt is known
    attempt.task.cancel()
    return attempt.task
