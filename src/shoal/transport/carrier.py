"""What a link stands on, and who it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from shoal.transport.port import LinkHandler, TransportLimits

if TYPE_CHECKING:
    from shoal.transport.link import AuthenticatedLink


class Carrier(Protocol):
    """One connection. It tells its link: received, set_blocked, rejected, carrier_gone."""

    link: AuthenticatedLink | None

    def write(self, message: bytearray) -> None:
        """Send a message, which begins at HEAD_ROOM_BYTES; the buffer is the carrier's now."""
        ...

    def backlog_bytes(self) -> int:
        """What was written and has not left this process."""
        ...

    def pause_reading(self) -> None:
        """Tell the link nothing more, for now."""
        ...

    def resume_reading(self) -> None:
        """Go on."""
        ...

    def finish(self) -> None:
        """Say goodbye behind what was written, and wait for the peer to hang up."""
        ...

    def abort(self, reason: str) -> None:
        """Hang up at once."""
        ...


class LinkOwner(Protocol):
    """The transport, as its links see it."""

    @property
    def handler(self) -> LinkHandler: ...

    @property
    def limits(self) -> TransportLimits: ...

    def link_established(self, link: AuthenticatedLink) -> None:
        """The handshake is done."""
        ...

    def link_closing(self, link: AuthenticatedLink, carrier: Carrier) -> None:
        """We close it; its carrier is there until the peer has hung up, or had its time."""
        ...

    def link_refused(self, link: AuthenticatedLink, reason: str, detail: str) -> None:
        """The handshake failed; the carrier is hanging up."""
        ...
