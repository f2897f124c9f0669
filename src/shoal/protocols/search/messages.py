"""What search nodes say to each other: the thesis' messages, and those that Shoal needs besides.

Edges of the circle share Shoal's links, where the thesis gives each its own TCP connection: so a
message names the edge it travels on. Decoded is not believed: records and headers carry
signatures that somebody has to check.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.protocols.search.config import INT32_MAX, INT32_MIN
from shoal.protocols.search.signed_records import AddressRecord, BubbleHeader, bubble_id

Location = Annotated[int, Meta(ge=INT32_MIN, le=INT32_MAX)]


class EdgeName(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The edge that a message travels on, as its sender sees it."""

    sender: Location
    """The sender's location."""
    receiver: Location
    master: bool
    """Whether the sender is the edge's master."""


class Totals(msgspec.Struct, frozen=True, gc=False):
    """Sums over the nodes: D0, D1 and D2, or a part of them. 32-bit floats on the wire."""

    nodes: float
    degrees: float
    squares: float


# The circle: join, leave, and the end of an edge


class SplitEdge(msgspec.Struct, frozen=True, gc=False):
    """Looks for an edge to put the origin's location into, by a random walk."""

    edge: EdgeName | None
    """None: from a client, or from a joiner on its first link."""
    origin: AddressRecord
    location: int
    hops: int


class MasterHello(msgspec.Struct, frozen=True, gc=False):
    """The sender is now the master of the edge between these locations."""

    sender: int
    receiver: int
    expect_slave: bool
    """A slave was told to call as well."""
    bootstrap: Totals
    record: AddressRecord


class SlaveHello(msgspec.Struct, frozen=True, gc=False):
    """The sender is now the slave of the edge between these locations."""

    sender: int
    receiver: int
    bootstrap: Totals
    record: AddressRecord


class Redirect(msgspec.Struct, frozen=True, gc=False):
    """From master to slave: your new master is that one, at this location of its."""

    edge: EdgeName
    remote: AddressRecord
    location: int


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """From slave to master: the Redirect failed, we stay as we were."""

    edge: EdgeName


class MergeEdge(msgspec.Struct, frozen=True, gc=False):
    """From slave to master: I leave this location; my slave is yours now."""

    edge: EdgeName
    remote: AddressRecord | None
    """None: there is no slave, and the location is 0."""
    location: int


class BreakEdge(msgspec.Struct, frozen=True, gc=False):
    """From master to slave: I leave this location, and have no master to give you."""

    edge: EdgeName


class EdgeClosed(msgspec.Struct, frozen=True, gc=False):
    """The end of an edge; the thesis closes its TCP connection (FIN)."""

    edge: EdgeName


# Measurement


class Ping(msgspec.Struct, frozen=True, gc=False):
    """I am alive; and a part of what I measure."""

    edge: EdgeName | None
    """None: a leaver hands over all it has, as a client."""
    round: int
    fish_size: int
    totals: Totals
    fish: float
    extras: tuple[tuple[str, float], ...] = ()
    """More columns: sums "s:name", minima "min:name", maxima "max:name". 64-bit floats."""


# Bubbles


class BubbleCast(msgspec.Struct, frozen=True, gc=False):
    """A part of a bubble: handle its positions start to end, of size."""

    edge: EdgeName | None
    """None: from a client."""
    size: int
    total: int
    start: int
    end: int
    kind: int
    header: BubbleHeader
    payload: bytes

    @property
    def id(self) -> bytes:
        """The id of the whole bubble."""
        header = self.header
        return bubble_id(header.origin.node, self.kind, self.total, header.nonce, self.payload)

    @property
    def signed(self) -> bytes:
        """The header's signature and what it covers, as Verify takes them."""
        return self.header.signed(self.kind, self.total, self.payload)


class Match(msgspec.Struct, frozen=True, gc=False):
    """Answers to a bubble; only the ends know what the items mean."""

    bubble: bytes
    items: tuple[bytes, ...]
    via: bool
    """Goes back hop by hop, the way that the bubble came, instead of directly to its origin."""


# Clients: they search without a location


class ClientHello(msgspec.Struct, frozen=True, gc=False):
    """May I be your client?"""

    record: AddressRecord


class ClientOk(msgspec.Struct, frozen=True, gc=False):
    """You may; and so large is the network."""

    bootstrap: Totals


class ClientDeny(msgspec.Struct, frozen=True, gc=False):
    """You may not, or no longer."""

    reason: str


class ClientRedirect(msgspec.Struct, frozen=True, gc=False):
    """I leave: ask one of these."""

    others: tuple[AddressRecord, ...]


# User connections: two applications talk over the link of their nodes


class UserConnect(msgspec.Struct, frozen=True, gc=False):
    """Opens a connection of this type, under a number of the opener's."""

    connection: int
    type: str


class UserAccept(msgspec.Struct, frozen=True, gc=False):
    """The connection is open."""

    connection: int


class UserRefuse(msgspec.Struct, frozen=True, gc=False):
    """It is not: any answer but the one of UserAccept."""

    connection: int
    answer: str


class UserData(msgspec.Struct, frozen=True, gc=False):
    """Content, whatever the applications make of it."""

    connection: int
    content: bytes


class UserEnd(msgspec.Struct, frozen=True, gc=False):
    """The connection is closed."""

    connection: int


Message = (
    SplitEdge
    | MasterHello
    | SlaveHello
    | Redirect
    | Cancel
    | MergeEdge
    | BreakEdge
    | EdgeClosed
    | Ping
    | BubbleCast
    | Match
    | ClientHello
    | ClientOk
    | ClientDeny
    | ClientRedirect
    | UserConnect
    | UserAccept
    | UserRefuse
    | UserData
    | UserEnd
)
