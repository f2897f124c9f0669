"""The muscles of one node in the real world.

One connection per peer. When two nodes dial each other at once there are two for a while
(pairs.py); if one of them is lost the other takes its place. A peer that dials again the same way,
or much later, has lost its end of the old connection: the new one takes its place.

Two connections may also come from two sessions of one key: a node that was started anew, or two
copies of it that run at once (identity/session.py). The newer session keeps the connection. The
older one is shown the signed record of the newer one, and believes it because its own key signed
it; a session that is dead hears nothing. If the older one is the newcomer, the newer one is first
asked whether it is alive: records prove the order of two sessions, not that both run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from typing import Any

from shoal.base.errors import (
    MalformedMessage,
    OversizedMessage,
    RemoteError,
    SessionReplaced,
    UsageError,
)
from shoal.base.ids import Contact, NodeId, short_node_id, show_node_id
from shoal.base.log_line_limit import MINUTE_S, log_of_others, settle_logs
from shoal.base.units import S_NS, seconds
from shoal.identity.session_record import NO_SESSION, SessionRecord, decode_session, encode_session
from shoal.kernel.access import AccessPort, Verdict
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
from shoal.kernel.link_table import Unsent
from shoal.kernel.machine import Codec, Machine
from shoal.kernel.records import Record
from shoal.kernel.wall_clock import ReadsWall, WallClock
from shoal.runtime.clock import Clock, Timers
from shoal.runtime.dialler import Dialler
from shoal.runtime.duplicate_links import NUMBER, WORDS, Pairs, closed
from shoal.runtime.readiness import ReadinessChecks
from shoal.runtime.send_backpressure import Room
from shoal.runtime.workers import DiskThread, Verifier
from shoal.transport.address_limits import prefix_of
from shoal.transport.port import Frame, Link, Listener, Transport

SIMULTANEOUS_NS = 5 * S_NS  # two dials this close together were meant at the same time
SESSIONS = 254  # the number of the protocol in which sessions of one key are shown to each other
SESSION_SHOWN_NS = 1 * S_NS
"""A peer may show us an older session of ours this often: its signature is checked on the event
loop, and an answer goes out. One with a higher number that is not ours ends the link sooner."""
SESSION_ALIVE_NS = 10 * S_NS
"""A session that has answered counts as alive for this long: three pauses between two dials."""
MALFORMED_MAX = 16  # messages that make no sense, before we stop listening to a peer

Observer = Callable[[int, Record], None]

log = logging.getLogger("shoal.runtime")
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
        session: SessionRecord = NO_SESSION,
    ) -> None:
        """Of the messages that are wanted back, a machine gets those that never left."""
        super().__init__(node, machines, limits)
        self.connections: dict[NodeId, Link] = {}
        self.observers: list[Observer] = []
        self.listeners: list[Callable[[Any], None]] = []
        self.readiness = ReadinessChecks()
        """Whether each role works; parts of the node add their checks."""
        self.session = session
        self.newer_session: SessionRecord | None = None
        """Another session of our key, which has taken our place."""
        self.on_replaced: list[Callable[[SessionRecord], None]] = []
        """Told of it, once."""
        self._loop = asyncio.get_running_loop()
        self._clock = Clock(self.wall_stepped)
        self.now_ns = self._clock.now_ns  # type: ignore[method-assign]  # a call less per input
        self.check_clock: Callable[[], Awaitable[None]] | None = None
        """Raises ClockWrong while what is published would carry a wrong time; None: nobody knows.
        """
        self.wall = WallClock()
        """The time of day, for this node's other parts."""
        self._walls.append(self.wall)
        if isinstance(disk, ReadsWall):
            self._walls.append(disk.wall)
        self._rng = rng
        self._codec_of = {kind: codec for codec in codecs for kind in codec.messages}
        self._codecs = {codec.number: codec for codec in codecs}
        self._wanted_back = WantedBack(codecs, self.machines, wanted_back or {})
        self._timers = Timers(partial(self._guard, self.timer_fired))
        self._since_s: dict[NodeId, float] = {}
        self._pairs = Pairs(self._keep, self._pausing)
        self._malformed: dict[NodeId, int] = {}
        self._alive_s: dict[NodeId, float] = {}
        """When the session that a peer's link is of said that it is alive."""
        self._shown_s: dict[NodeId, float] = {}
        """When a peer last showed us an older session of our own key."""
        self._older_told = False
        self._verifier = Verifier(self._verified)
        self._disk = (
            None
            if disk is None
            else DiskThread(disk, partial(self._guard, self.feed), self._clock.steady_ns)
        )
        self._access = access
        self._transports: list[Transport] = []
        self._doors: list[Listener] = []
        self._dialler = Dialler((), rng)
        self._running = False
        self._settling: asyncio.TimerHandle | None = None
        self._room = Room(lambda: len(self.connections), self._loop.time)

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

    def wall_ns(self) -> int:
        """The time of day, in Unix nanoseconds."""
        return self.wall.read(self.now_ns())

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

    def is_dialling(self, peer: NodeId) -> bool:
        """Whether a dial to a peer is under way, or pauses after the last one."""
        return self._dialler.is_dialling(peer)

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

    def prefix_of(self, peer: NodeId) -> str | None:
        """Which part of the Internet a peer's link comes from; None: nobody can say, or it is of no
        use to tell strangers apart."""
        link = self.connections.get(peer)
        return None if link is None else prefix_of(link.address)

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
                if number == SESSIONS:
                    self._session_shown(link, payload)
                elif number != NUMBER:
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

    def store(self, slot: int, effect: Store | Load) -> None:
        if self._disk is None:
            raise UsageError("this node has no disk: no machine of it may use one")
        self._disk.ask(slot, effect)

    load = store

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
        if old is not None and _is_older(link, old):
            self._refuse_older(old, link)
        elif old is None:
            self._adopt(link)
        elif _is_older(old, link):
            self.rejected(peer, "older-session")
            old.send(SESSIONS, encode_session(link.peer.session))
            self._replace(link)
        elif old.dialled != link.dialled and self._is_young(peer):
            self._pair(old, link)
        else:
            self._replace(link)

    def _replace(self, link: Link) -> None:
        """A peer has lost its end of the connection that we have, or is another session."""
        peer = link.peer.node
        self.hang_up(peer)
        self._guard(self.link_closed, peer, "replaced")
        self._adopt(link)

    def _adopt(self, link: Link) -> None:
        peer = link.peer.node
        self.connections[peer] = link
        self._since_s[peer] = self._loop.time()
        self._dialler.connected(peer)
        self._guard(self.link_opened, peer)

    # Sessions of one key

    def _refuse_older(self, newer: Link, older: Link) -> None:
        """An older session dials while we have a link to a newer one. If that is known to be alive,
        the older one is shown its record; otherwise it is asked, and the older one dials again."""
        peer = newer.peer.node
        self.rejected(peer, "older-session")
        alive_s = self._alive_s.get(peer)
        if alive_s is not None and self._loop.time() - alive_s <= seconds(SESSION_ALIVE_NS):
            older.send(SESSIONS, encode_session(newer.peer.session))
        newer.send(SESSIONS, encode_session(older.peer.session))
        older.close("closed")

    def _session_shown(self, link: Link, payload: bytes) -> None:
        """A peer shows a session: its own, which says that it is alive, or another one of ours."""
        peer = link.peer.node
        try:
            shown = decode_session(payload)
        except MalformedMessage:
            self._reject(peer, "malformed")
            return
        if shown == link.peer.session:
            self._alive_s[peer] = self._loop.time()
            return
        known = self.session.number if self.newer_session is None else self.newer_session.number
        if not self.session.number or shown.number in (self.session.number, known):
            return
        if shown.number < self.session.number and not self._may_show_older(peer):
            return
        if not shown.is_signed_by(self.node):
            self._reject(peer, "not-our-session")
        elif shown.number < self.session.number:
            link.send(SESSIONS, encode_session(self.session))
            if not self._older_told:
                self._older_told = True
                log.warning(
                    "an older session of %s runs too, says %s: a copy of this node, which is told"
                    " to publish nothing",
                    show_node_id(self.node),
                    show_node_id(peer),
                )
        elif shown.number > known:
            self._session_replaced(shown)

    def _may_show_older(self, peer: NodeId) -> bool:
        now_s, last_s = self._loop.time(), self._shown_s.get(peer)
        if last_s is not None and now_s - last_s < seconds(SESSION_SHOWN_NS):
            return False
        self._shown_s[peer] = now_s
        return True

    def _session_replaced(self, newer: SessionRecord) -> None:
        first, self.newer_session = self.newer_session is None, newer
        if first:
            log.error("%s", self.session_problem())
            for tell in self.on_replaced:
                self._guard(tell, newer)

    def session_problem(self) -> str | None:
        """Why this session must not publish, for people; None if it may."""
        if self.newer_session is None:
            return None
        return (
            f"a newer session of {show_node_id(self.node)} runs elsewhere, from a copy of this"
            " node's key: this one publishes and keeps nothing any more; stop one of the two, and"
            " restart this one if it is the one to go on (or give it a key of its own:"
            " `shoal key new`)"
        )

    def demand_session(self) -> None:
        """SessionReplaced if a newer session has taken our place."""
        problem = self.session_problem()
        if problem is not None:
            raise SessionReplaced(problem)

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
        self._alive_s.pop(peer, None)
        self._shown_s.pop(peer, None)
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


def _is_older(one: Link, other: Link) -> bool:
    """Whether a link is of an older session than another one to the same peer. A peer that does not
    say has one session only."""
    first, second = one.peer.session.number, other.peer.session.number
    return bool(first) and bool(second) and first < second


# What goes back to machines when a link is lost: what waited in its queue, and never left.
#
# The queue holds bytes, by reference, and not the messages: keeping those as well would cost every
# send, for the sake of few links that are lost with anything in their queues. So the bytes are read
# again at the end, and only where a machine wants something back: a queue can be long.


class WantedBack:
    """The kinds of messages that go back, each to the one machine that sends it."""

    def __init__(
        self, codecs: Sequence[Codec], machines: Sequence[Machine], senders: Mapping[type, Machine]
    ) -> None:
        self._slots = {kind: machines.index(sender) for kind, sender in senders.items()}
        self._codecs = {
            codec.number: codec
            for codec in codecs
            if not self._slots.keys().isdisjoint(codec.messages)
        }

    def of(self, link: Link) -> Unsent:
        """What a link that is over held of them, oldest first."""
        if not self._slots:
            return ()
        found = []
        for number, payload in link.unsent():
            codec = self._codecs.get(number)
            if codec is None:
                continue
            try:
                message = codec.decode(payload)
            except RemoteError:  # a peer would have refused it as well
                continue
            slot = self._slots.get(type(message))
            if slot is not None:
                found.append((slot, message))
        return found
