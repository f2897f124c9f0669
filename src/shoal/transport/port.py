"""The transport port: what a driver may ask of any transport, and what it is told.

A transport makes links. A link is authenticated before anybody hears of it: the peer has proven
that it holds the key of its id, and the proof is bound to this very channel (handshake.py). What
is sent during one turn of the event loop leaves in one write.

Back-pressure. What waits to be sent on a link is counted. Above `queue_high_bytes` the handler is
told once; below `queue_low_bytes` once more. At `queue_max_bytes` the link is given up with the
reason "too-slow": a peer that does not read costs at most that much memory (and one payload, and
the buffers of its socket), and stalls nobody.

Reasons are words of a fixed list, fit to be counted by: see REJECTIONS and LOSSES here, and
REFUSALS in handshake.py. What a peer says of its own motives is never one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from shoal.base.errors import ConfigError, ShoalError
from shoal.base.ids import NodeId
from shoal.base.units import KIB, MIB, S_NS
from shoal.identity import Entropy, PrivateKey
from shoal.identity.session_record import NO_SESSION, SessionRecord

Frame = tuple[int, bytes]  # protocol number (1 to 255; 0 is the link's own), payload

PROTOCOL_VERSIONS = (1, 1)
"""The oldest and the newest version of the protocols that this release speaks."""

REJECTIONS = ("forged", "malformed", "oversized")
"""What frame_rejected says; link_lost then says the same."""

LOSSES = (*REJECTIONS, "closed", "idle", "lost", "rejected", "too-slow")
"""What link_lost says. closed: the peer said goodbye. idle: it fell silent. lost: the connection
broke. rejected: it says that we broke the framing. too-slow: it does not take what we send."""


class DialFailed(ShoalError):
    """No link: nobody there, the wrong one there, or the handshake failed."""


class TransportLimits(msgspec.Struct, frozen=True):
    """Bounds of every link, with their reasons."""

    frame_bytes_max: int = 1 * MIB
    """One payload; above twice the largest stream message, so that batches fit as well."""

    queue_high_bytes: int = 512 * KIB
    queue_low_bytes: int = 128 * KIB
    queue_max_bytes: int = 8 * MIB
    """Five seconds of the busiest stream known (653 messages/s of 308 bytes), times eight."""

    handshake_timeout_ns: int = 5 * S_NS
    """Ten round trips around the world."""

    close_timeout_ns: int = 5 * S_NS
    """A flush that takes longer is cut: the peer has stopped reading."""

    handshakes_max: int = 256
    """Inbound links that are half-open, or that we close and the peer does not; more are refused.
    Those in between are bounded by who keeps links, and by the next number."""

    connections_per_address_max: int = 256
    """Inbound sockets that one address may hold: a quarter of the 1,024 files that most systems
    give a process, and more nodes than most share an address. Loopback has no bound."""

    idle_ping_ns: int = 10 * S_NS
    idle_timeout_ns: int = 25 * S_NS
    """A silent peer is asked after the first, and given up after the second. A frame counts when
    all of it is there, so that one byte now and then does not keep a link."""

    socket_buffer_bytes: int = 256 * KIB
    """The kernel's buffers, each way: a link that stands still holds no more, and a link around
    the world still moves a megabyte a second."""

    def __post_init__(self) -> None:
        """Refuse marks that do not follow each other."""
        marks = (self.queue_low_bytes, self.queue_high_bytes, self.queue_max_bytes)
        if not 0 < marks[0] < marks[1] < marks[2]:
            raise ConfigError(
                f"queue marks must rise from low to high to max, these do not: {marks}"
            )
        if not 0 < self.frame_bytes_max < 1 << 32:
            raise ConfigError(f"frame_bytes_max has 32 bits on the wire: {self.frame_bytes_max}")


class Credentials(msgspec.Struct, frozen=True):
    """Who we are, for the handshake."""

    key: PrivateKey
    entropy: Entropy
    roles: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    versions: tuple[int, int] = PROTOCOL_VERSIONS
    """Oldest and newest; another pair is for tests of two versions that talk."""
    session: SessionRecord = NO_SESSION
    """Which run of this node it is."""


class PeerInfo(msgspec.Struct, frozen=True):
    """Who the other side has proven to be, and what it says of itself."""

    node: NodeId
    version: int
    """The protocol version that both speak: the lower of the two newest."""
    roles: tuple[str, ...]
    features: tuple[str, ...]
    """Features that both have."""
    session: SessionRecord = NO_SESSION
    """Which run of that node it is. Its signature is not checked: the handshake was signed by the
    same key. Check it before you show it to others as that key's."""


class Link(Protocol):
    """One authenticated connection."""

    @property
    def peer(self) -> PeerInfo: ...

    @property
    def dialled(self) -> bool:
        """Whether this side opened it."""
        ...

    @property
    def address(self) -> str:
        """Where the other side is, as this side sees it."""
        ...

    @property
    def queued_bytes(self) -> int:
        """What waits to be sent."""
        ...

    def send(self, protocol: int, payload: bytes) -> None:
        """Queue one payload; all of one loop turn leave together. No-op on a closed link.

        UsageError if the payload is above frame_bytes_max, or the protocol not in 1..255.
        """
        ...

    def unsent(self) -> Sequence[Frame]:
        """What was queued and has not left, oldest first: of a link that is lost, what never will.

        Nothing is known of what had left, and nothing is kept that was sent in the very turn in
        which the link was given up.
        """
        ...

    def pause_reading(self) -> None:
        """Take nothing more off the wire: the peer's own queue fills.

        What was read already still comes, and a peer's end is noticed after resume_reading.
        """
        ...

    def resume_reading(self) -> None:
        """Read again."""
        ...

    def close(self, reason: str, then: Callable[[], None] | None = None) -> None:
        """Flush what is queued, then close. The handler is told nothing more about this link.

        `then` is called once it is over: the peer has read all of it and hung up, or it could not
        be flushed in time.
        """
        ...


class LinkHandler(Protocol):
    """What a driver is told. Calls come from the event loop, never from within send or close."""

    def link_ready(self, link: Link) -> None:
        """An inbound link has passed its handshake. (A dialled one is returned by dial.)"""
        ...

    def frames_received(self, link: Link, frames: Sequence[Frame]) -> None:
        """What came in together, in order."""
        ...

    def send_queue_changed(self, link: Link, *, high: bool) -> None:
        """The send queue passed the high mark upwards, or the low mark downwards."""
        ...

    def frame_rejected(self, link: Link, reason: str) -> None:
        """The peer broke the framing (oversized, forged, malformed); the link closes next."""
        ...

    def link_lost(self, link: Link, reason: str) -> None:
        """The link is gone, and it was not we who closed it. Told once."""
        ...

    def handshake_failed(self, address: str, reason: str) -> None:
        """A stranger knocked and could not prove who it is: counted, nothing else."""
        ...


class Listener(Protocol):
    """An open door."""

    @property
    def address(self) -> str:
        """Where it can be dialled, with the real port."""
        ...

    async def close(self) -> None:
        """Take no more connections; links that exist stay."""
        ...


class Transport(Protocol):
    """Makes links of one kind."""

    @property
    def schemes(self) -> tuple[str, ...]:
        """Address prefixes that it serves, such as "ws"."""
        ...

    async def listen(self, address: str) -> Listener:
        """Open a door; port 0 takes any free one."""
        ...

    async def dial(self, address: str, peer: NodeId) -> Link:
        """Connect and make sure that it is this peer; DialFailed otherwise.

        The handler hears of the link after the coroutine that awaits dial has run on.
        """
        ...

    async def close(self) -> None:
        """Close every door and link, flushed; no task or socket is left."""
        ...
