"""What applications and other machines of this node ask of the DHT, and what they are told.

The application issues a command and is told by Notify. Another machine sends the same struct to
its own node, with a token of its own, and gets the answer as a message; these never go on a wire.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from shoal.base.ids import Contact
from shoal.protocols.dht.key_space import DhtId


class Find(msgspec.Struct, frozen=True, gc=False):
    """Which nodes are nearest to a place? Answered by FindDone."""

    target: DhtId
    local: bool = False
    """Only those that the routing table knows, at once."""
    token: Hashable = None


class Get(msgspec.Struct, frozen=True, gc=False):
    """What is kept under a key? Answered by GetDone."""

    key: bytes
    token: Hashable = None
    patient: bool = False
    """Wait for slow nodes, also when a record was found: they may have a newer one."""


class Put(msgspec.Struct, frozen=True, gc=False):
    """Keep a value; answered by PutDone when so many replicas hold it, or no more will."""

    key: bytes
    value: bytes
    replicas: int | None = None
    """None: all k. It goes to all of them, however many are waited for."""
    token: Hashable = None
    progress: bool = False
    """Tell each time that one more holds it: nobody need wait for the slowest."""


class FindDone(msgspec.Struct, frozen=True, gc=False):
    """Told: the nearest nodes, nearest first; of a lookup, those that answered."""

    target: DhtId
    contacts: tuple[Contact, ...]
    token: Hashable = None


class GetDone(msgspec.Struct, frozen=True, gc=False):
    """Told: what was found and is valid; of signed records the newest of each signer, the highest
    number first."""

    key: bytes
    values: tuple[bytes, ...]
    token: Hashable = None
    alone: bool = False
    """No other node answered: nothing is known of what others keep."""


class PutDone(msgspec.Struct, frozen=True, gc=False):
    """Told: so many other nodes said that they hold it."""

    key: bytes
    replicas: int
    token: Hashable = None
    over: bool = True
    """No more will; others may still be told, if progress was asked for."""


class DhtReady(msgspec.Struct, frozen=True, gc=False):
    """Told once: this node has found its place, and fills its routing table."""

    contacts: int


class Meet(msgspec.Struct, frozen=True):
    """Nodes through which the DHT may be entered from now on, instead of those of the start."""

    contacts: tuple[Contact, ...]


COMMANDS = (Find, Get, Put, Meet)
