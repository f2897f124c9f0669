"""The registry port: which streams there are, who may do what with them, where nodes are found.

Reads come from a cache that follows the chain. How old it may be is bounded: see follower.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from enum import Enum, StrEnum
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

from shoal.base.ids import PARTITIONS_MAX, Contact, NodeId, StreamId
from shoal.kernel.access import Permission, Verdict

EVERYBODY = NodeId(bytes(20))
"""Permissions of this address are everybody's."""

_EXPIRY_BITS = 48
FOREVER = 2**_EXPIRY_BITS - 1
METADATA_BYTES_MAX = 2048
PATH_BYTES_MAX = 213
NODES_MAX = 16  # trackers, and storage nodes, of one stream
DEGREE_MIN, DEGREE_MAX = 3, 64
WHOM_MAX = 64  # addresses in one change of permissions


class Permissions(msgspec.Struct, frozen=True):
    """What an address may do with a stream, and until when."""

    expiries_s: tuple[int, ...]
    """For each kind, in the order of its bits: the second from 1970 on in which it ends; 0: never
    had, FOREVER: never ends."""

    @classmethod
    def unpacked(cls, packed: int) -> Permissions:
        """As the contract keeps them."""
        places = range(len(Permission))
        return cls(tuple((packed >> (place * _EXPIRY_BITS)) & FOREVER for place in places))

    def expiry_s(self, kind: Permission) -> int:
        """When one kind ends."""
        return self.expiries_s[kind.bit_length() - 1]

    def holds(self, kind: Permission, now_s: float) -> bool:
        """Whether one kind is there at a time."""
        return now_s < self.expiries_s[kind.bit_length() - 1]

    def joined(self, other: Permissions) -> Permissions:
        """What either allows."""
        pairs = zip(self.expiries_s, other.expiries_s, strict=True)
        return Permissions(tuple(max(pair) for pair in pairs))


class StreamTerms(msgspec.Struct, frozen=True):
    """What the owner of a stream decides."""

    metadata: str = ""
    """Anything, by custom JSON; METADATA_BYTES_MAX bytes at most."""
    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)] = 1
    degree: Annotated[int, Meta(ge=DEGREE_MIN, le=DEGREE_MAX)] | None = None
    """None: the tracker's own."""
    trackers: Annotated[tuple[NodeId, ...], Meta(max_length=NODES_MAX)] = ()
    """In order of preference; none: by hash, over all of them."""
    storage_nodes: Annotated[tuple[NodeId, ...], Meta(max_length=NODES_MAX)] = ()


class Directory(StrEnum):
    """A list of nodes that anybody may find."""

    TRACKERS = "trackers"
    STORAGE_NODES = "storage_nodes"


class Answer(Enum):
    """What is known, without asking anybody, of whether somebody may do something now."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """Await `permissions`: it asks, and it will be known."""
    STALE = "stale"
    """The chain has been out of reach for too long. `permissions` says why, or finds it back."""


class Change(msgspec.Struct, frozen=True):
    """Something that a contract said."""

    what: Literal["created", "edited", "deleted", "permissions", "key", "directory", "unknown"]
    """unknown: blocks were replaced, or too many changes waited to be taken. Anything may be
    different: read again what matters."""
    block: int
    stream: StreamId | None = None
    who: NodeId | None = None
    """Whose permissions, or public key; or which node of a directory."""


class Registry(Protocol):
    """RegistryUnavailable: the chain cannot be reached. RegistryRefused: a contract says no."""

    def permitted(self, stream: StreamId, who: NodeId, kind: Permission) -> Answer:
        """Whether somebody may do something now; one look into the cache."""
        ...

    async def permissions(self, stream: StreamId, who: NodeId) -> Permissions:
        """What somebody may do, what everybody may included. None at all, if there is no such
        stream. From then on `permitted` knows it."""
        ...

    async def verdict(self, stream: StreamId, who: NodeId) -> Verdict:
        """The same for machines: what somebody may do now, and until when that counts. A chain
        that is out of reach is a verdict, too."""
        ...

    async def stream(self, stream: StreamId) -> StreamTerms:
        """What was decided for a stream; NotFound."""
        ...

    async def nodes(self, directory: Directory) -> tuple[Contact, ...]:
        """The trackers, or the storage nodes, in the order of their ids."""
        ...

    async def create(self, path: str, terms: StreamTerms) -> StreamId:
        """Make a stream of this key."""
        ...

    async def edit(self, stream: StreamId, terms: StreamTerms) -> None:
        """Replace what was decided for a stream."""
        ...

    async def delete(self, stream: StreamId) -> None:
        """End a stream, and all permissions on it."""
        ...

    async def grant(
        self,
        stream: StreamId,
        whom: Sequence[NodeId],
        kinds: Permission,
        expires_s: int = FOREVER,
    ) -> None:
        """Give permissions until a time; other kinds stay as they are."""
        ...

    async def revoke(self, stream: StreamId, whom: Sequence[NodeId], kinds: Permission) -> None:
        """Take permissions away."""
        ...

    async def put_node(self, directory: Directory, contact: Contact) -> None:
        """List a node, or change where it is reached."""
        ...

    async def remove_node(self, directory: Directory, node: NodeId) -> None:
        """Take a node off the list."""
        ...

    async def hand_over(self, directory: Directory, admin: NodeId) -> None:
        """Have somebody else list and remove nodes."""
        ...

    async def refresh(self) -> None:
        """See now what is new, instead of soon."""
        ...

    def watch(self, since: int | None = None) -> AsyncIterator[Change]:
        """Changes as they become final, from a block on, or from now on."""
        ...

    async def close(self) -> None:
        """Let go of the chain."""
        ...
