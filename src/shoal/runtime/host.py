"""The muscles of one node in the real world.

One connection per peer. When two nodes dial each other at once there are two for a while
(pairs.py); if one of them is lost the other takes its place. A peer that dials again the same way,
or much later, has lost its end of the old connection: the new one takes its place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from typing import Any

from shoal.base.errors import OversizedMessage, RemoteError, UsageError
from shoal.base.ids import NodeId, short_node_id
from shoal.base.log_limit import MINUTE_S, log_of_others, settle_logs
from shoal.base.units import S_NS, seconds
from shoal.kernel.access import AccessPort, Verdict
from shoal.kernel.codec import Codec
from shoal.kernel.contact import Contact
from shoal.kernel.disk import Disk
from shoal.kernel.effects import CheckAccess, Load, Notify, Send, Store, Verify
from shoal.kernel.host import Host, HostLimits
from shoal.kernel.inputs import (
    AccessChanged,
    AccessChecked,
    CommandIssued,
    MessageReceived,
    Verified,
)
from shoal.kernel.machine import Machine
from shoal.kernel.records import Record
from shoal.runtime.clock import Clock
from shoal.runtime.dialler import Dialler
from shoal.runtime.disk import DiskThread
from shoal.runtime.pairs import NUMBER, WORDS, Pairs, closed
from shoal.runtime.room import Room
from shoal.runtime.timers import Timers
from shoal.runtime.unsent import WantedBack
from shoal.runtime.verifier import Verifier
from shoal.transport.port import Frame, Link, Listener, Transport

SIMULTANEOUS_NS = 5 * S_NS  # two dials this close together were meant at the same time
MALFORMED_MAX = 16  # messages that make no sense, before we stop listening to a peer

Observer = Callable[[int, Record], None]

log_others = log_of_others("shoal.runtime")


class RuntimeHost(Host):
    """A Host whose effects happen over asyncio. Built and used inside one event loop."""

    def __init__(
        self,
        node: NodeId,
        machines: Sequence[Machine],
        codecs: Sequence[Codec],
        *,
        rng: Random,
        limits: HostLimits | None = None,
        disk: Disk | None = None,
        access: AccessPort | None = None,
        wanted_back: Mapping[type, Machine] | None = None,
    ) -> None:
        """Of the messages that are wanted back, a machine gets those that never left."""
        super().__init__(node, machines, limits)
        self.connections: dict[NodeId, Link] = {}
        self.observers: list[Observer] = []
        self.listeners: list[Callable[[Any], None]] = []
        self._loop = asyncio.get_running_loop()
        self._clock = Clock()
        self._rng = rng
        self._codec_of = {kind: codec for codec in codecs for kind in codec.messages}
        self._codecs = {codec.number: codec for codec in codecs}
        self._wanted_back = WantedBack(codecs, self.machines, wanted_back or {})
        self._timers = Timers(partial(self._guard, self.timer_fired))
        self._since_s: dict[NodeId, float] = {}
        self._pairs = Pairs(self._keep, self._pausing)
        self._malformed: dict[NodeId, int] = {}
        self._verifier = Verifier(self._verified)
        self._disk = None if disk is None else DiskThread(disk, partial(self._guard, self.feed))
        self._access = access
        self._transports: list[Transport] = []
        self._doors: list[Listener] = []
        self._dialler = Dialler((), rng)
        self._running = False
        self._settling: asyncio.TimerHandle | None = None
        self._room = Room()

    # Life

    async def open(self, transports: Sequence[Transport], listen: Sequence[str]) -> tuple[str, ...]:
        """Open the doors and start the machines; the addresses at which peers reach us."""
        self._transports = list(transports)
        self._dialler = Dialler(transports, self._rng)
        by_scheme = {scheme: t for t in transports for scheme in t.schemes}
        for address in listen:
            transport = by_scheme.get(address.partition(":")[0])
            if transport is None:
                raise UsageError(f"cannot listen on {address!r}: use {', '.join(by_scheme)}")
            self._doors.append(await transport.listen(address))
        addresses = tuple(door.address for door in self._doors)
        self._running = True
        self._settle_logs()
        self.start(addresses)
        return addresses

    async def stop(self) -> None:
        """Close everything, flushed; no task, thread, timer or socket is left. Each part is closed
        also if one fails, or if this is cancelled, which cuts off the waiting for one of them."""
        self._running = False
        self._timers.clear()
        if self._settling is not None:
            self._settling.cancel()
            settle_logs(float("inf"))
        first = [self.connections[peer] for peer in self._pairs.part_all()]
        self.connections.clear()
        async with AsyncExitStack() as stack:  # which begins with the last
            if self._disk is not None:
                stack.push_async_callback(self._disk.close)
            stack.push_async_callback(self._verifier.close)
            for transport in reversed(self._transports):
                stack.push_async_callback(transport.close)
            await self._dialler.close()
            await asyncio.gather(*map(closed, first))

    def _settle_logs(self) -> None:
        """Have lines that were left out of the log counted there, also if no others come."""
        settle_logs(time.time())
        self._settling = self._loop.call_later(MINUTE_S, self._settle_logs)

    async def issue(self, machine: Machine, command: Any, token: Hashable = None) -> None:
        """The local application wants something: what the machine says of it at once has been
        said on return, and what it raises is raised here. Faults of others stay with them."""
        if self._busy:
            await asyncio.sleep(0)  # called from within a machine's step, which comes first
        self._busy = True
        try:
            self._step(self.machines.index(machine), CommandIssued(command, token))
        finally:
            self._busy = False
            self._guard(self._feed_all, [])

    # Time

    def now_ns(self) -> int:
        return self._clock.now_ns()

    def set_timer(self, slot: int, key: Hashable, delay_ns: int) -> None:
        if self._running:
            self._timers.set(slot, key, delay_ns)

    def cancel_timer(self, slot: int, key: Hashable) -> None:
        self._timers.cancel(slot, key)

    # Links: what the Host asks for

    def dial(self, contact: Contact) -> None:
        failed = partial(self._guard, self.dial_failed, contact.node)
        self._dialler.dial(contact, opened=self._connected, failed=failed)

    def dial_problem(self, peer: NodeId) -> str | None:
        """Why the last dial to a peer failed, for messages to people."""
        return self._dialler.problem(peer)

    def hang_up(self, peer: NodeId) -> None:
        pair, link = self._pairs.part(peer), self._forget(peer)
        if link is not None:
            # The one that we talk over first. The peer may not know it yet: a goodbye on the other
            # would be the end of the link to it.
            then = None if pair is None else partial(pair.other(link).close, "duplicate")
            link.close("closed", then)

    def send(self, slot: int, effect: Send) -> None:
        message = effect.message
        codec = self._codec_of.get(type(message))
        if codec is None:  # between machines of this node, and never on a wire
            for peer in effect.peers:
                self.no_link(peer, message)
            return
        payload = codec.encode(message)
        number = codec.number
        connections = self.connections
        for peer in effect.peers:
            link = connections.get(peer)
            if link is not None:
                link.send(number, payload)
            else:
                self.no_link(peer, message)

    def pause_reading(self, peer: NodeId, *, paused: bool) -> None:
        link = self.connections.get(peer)
        for each in () if link is None else self._pairs.readable(link):
            each.pause_reading() if paused else each.resume_reading()

    # Links: what a transport tells

    def link_ready(self, link: Link) -> None:
        self._connected(link)

    def frames_received(self, link: Link, frames: Sequence[Frame]) -> None:
        peer = link.peer.node
        if self._pairs.hold(link, partial(self.frames_received, link, frames)):
            return
        connections, codecs, routes, feed = self.connections, self._codecs, self._routes, self.feed
        left = iter(frames)
        for number, payload in left:
            if connections.get(peer) is not link and link not in self._pairs:
                return  # we have closed it, over one of the frames before
            codec = codecs.get(number)
            if codec is None:
                if number != NUMBER:
                    self._reject(peer, "no-such-protocol")
                elif payload not in WORDS:
                    self._reject(peer, "malformed")
                elif self._pairs.heard(link, payload):
                    self._pairs.hold(link, partial(self.frames_received, link, list(left)))
                continue
            try:
                message = codec.decode(payload)
            except OversizedMessage:
                self._reject(peer, "oversized")
            except RemoteError:
                self._reject(peer, "malformed")
            else:
                slot = routes.get(type(message))
                if slot is None:
                    self.rejected(peer, "no-such-role")
                    continue
                try:
                    feed(slot, MessageReceived(peer, message))
                except Exception:
                    self._failed()

    def frame_rejected(self, link: Link, reason: str) -> None:
        self.rejected(link.peer.node, reason)

    def link_lost(self, link: Link, reason: str) -> None:
        peer = link.peer.node
        if self._pairs.hold(link, partial(self.link_lost, link, reason)):
            return
        in_use = self.connections.get(peer) is link
        pair = self._pairs.part(peer) if link in self._pairs else None
        if pair is None:
            if in_use:
                self._gone(link, reason)
            return
        if reason == "closed" or not (in_use or pair.moved):
            # All that was said on it is here, or nothing was said: the other one goes on.
            if in_use:
                self._keep(pair.other(link))
        elif in_use:
            self._gone(link, reason)
            self._adopt(pair.other(link))
        else:  # what was said on it last is lost, and only a new link tells both sides so
            self._guard(self.drop_link, peer, reason)
        pair.release()

    def send_queue_changed(self, link: Link, *, high: bool) -> None:
        peer = link.peer.node
        if self.connections.get(peer) is link:
            self._room.note(peer, high=high)
            self._guard(lambda: self.queue_changed(peer, high=high))

    async def wait_for_room(self, patience_ns: int) -> None:
        """Wait until no send queue is high, or patience ends."""
        await self._room.wait(patience_ns)

    def handshake_failed(self, address: str, reason: str) -> None:
        log_others.info("handshake with %s failed: %s", address, reason)
        self.rejected(self.node, "handshake-" + reason)

    # Slow work

    def access_changed(self, event: AccessChanged) -> None:
        self._guard(super().access_changed, event)

    def verify(self, slot: int, effect: Verify) -> None:
        self._verifier.check(slot, effect)

    def _verified(self, slot: int, token: Hashable, valid: bool) -> None:
        if self._running:
            try:
                self.feed(slot, Verified(token, valid))
            except Exception:
                self._failed()

    def check_access(self, slot: int, effect: CheckAccess) -> None:
        if self._access is None:
            raise UsageError("this node has no registry: no machine of it may ask one")
        stream, who = effect.stream, effect.who

        def tell(verdict: Verdict) -> None:
            self._guard(self.feed, slot, AccessChecked(stream, who, verdict))

        self._access.check(stream, who, tell)

    def store(self, slot: int, effect: Store) -> None:
        self._ask_disk(slot, effect)

    def load(self, slot: int, effect: Load) -> None:
        self._ask_disk(slot, effect)

    def _ask_disk(self, slot: int, effect: Store | Load) -> None:
        if self._disk is None:
            raise UsageError("this node has no disk: no machine of it may use one")
        self._disk.ask(slot, effect)

    # Observers

    def notify(self, slot: int, effect: Notify) -> None:
        for listener in self.listeners:
            try:
                listener(effect.event)
            except Exception:
                log_others.exception("a listener of %s failed", short_node_id(self.node))

    def record(self, slot: int, record: Record) -> None:
        if not self.observers:
            return  # five records a delivery, for nobody
        now_ns = self.now_ns()
        for observer in self.observers:
            try:
                observer(now_ns, record)
            except Exception:
                log_others.exception("an observer of %s failed", short_node_id(self.node))

    # Steps

    def _connected(self, link: Link) -> None:
        peer = link.peer.node
        if not self._running or peer == self.node:
            link.close("closed")  # whoever comes before the machines have started dials again
            return
        old = self.connections.get(peer)
        if old is None:
            self._adopt(link)
        elif old.dialled != link.dialled and self._is_young(peer):
            self._pair(old, link)
        else:
            self.hang_up(peer)
            self._guard(self.link_closed, peer, "replaced")
            self._adopt(link)

    def _adopt(self, link: Link) -> None:
        peer = link.peer.node
        self.connections[peer] = link
        self._since_s[peer] = self._loop.time()
        self._dialler.connected(peer)
        self._guard(self.link_opened, peer)

    def _is_young(self, peer: NodeId) -> bool:
        return self._loop.time() - self._since_s[peer] < seconds(SIMULTANEOUS_NS)

    def _pair(self, old: Link, new: Link) -> None:
        """Of two connections to a peer, the one that the smaller id dialled is kept: the other
        end decides alike. Machines need not know."""
        peer = new.peer.node
        before = self._pairs.part(peer)
        if before is not None:
            before.other(old).close("duplicate")
            before.release()
        kept, spare = (new, old) if new.dialled == (self.node < peer) else (old, new)
        self._pairs.join(kept, spare)

    def _keep(self, link: Link) -> None:
        """Another connection to the same peer takes over: machines need not know."""
        peer = link.peer.node
        self.connections[peer] = link
        if peer in self._room:
            self._room.note(peer, high=False)
            self._guard(lambda: self.queue_changed(peer, high=False))

    def _gone(self, link: Link, reason: str) -> None:
        """The connection that we talked over is no more, and not we closed it."""
        peer = link.peer.node
        self._forget(peer)
        self._guard(self.link_closed, peer, reason, self._wanted_back.of(link))

    def _forget(self, peer: NodeId) -> Link | None:
        self._room.note(peer, high=False)
        self._since_s.pop(peer, None)
        self._malformed.pop(peer, None)
        return self.connections.pop(peer, None)

    def _reject(self, peer: NodeId, reason: str) -> None:
        self.rejected(peer, reason)
        self._malformed[peer] = self._malformed.get(peer, 0) + 1
        if self._malformed[peer] >= MALFORMED_MAX:
            self._guard(self.drop_link, peer, "malformed")

    def _guard(self, step: Callable[..., None], *arguments: Any) -> None:
        """A bug in one machine must not take the event loop, or other links, with it: the input
        that it failed on is gone, those behind it are handled. After the end none is."""
        if self._running:
            try:
                step(*arguments)
            except Exception:
                self._failed()

    def _failed(self) -> None:
        """In an exception handler: count it, and go on with the inputs behind the one it was."""
        log_others.exception("a machine of %s failed", short_node_id(self.node))
        self.rejected(self.node, "machine-failed")
        self._guard(self._feed_all, [])
