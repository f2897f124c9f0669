"""Effects: imperatives that a machine hands to its driver.

Effects run after `handle` returned, in the order of the list, with no promise on completion:
where durability or an answer matters, a machine waits for the result input.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec

from shoal.base.ids import Contact, NodeId, StreamId


class Effect(msgspec.Struct, frozen=True, gc=False):
    """Something to be done outside the machine."""


class OpenLink(Effect, frozen=True, gc=False):
    """Claim a link for a purpose; answered by LinkOpened or LinkFailed, also if it is held already.

    Links are shared: one connection per peer, whoever asked for it. A soft claim may be taken
    away again (reason "evicted") when soft links exceed the driver's cap: the one that was claimed
    or sent to least recently goes first. A link may break while this effect waits in a list: then
    LinkClosed comes first, and the answer after it.
    """

    contact: Contact
    purpose: str
    soft: bool = False


class CloseLink(Effect, frozen=True, gc=False):
    """Give a claim back. The link goes away, flushed, when nobody claims it any more."""

    peer: NodeId
    purpose: str


class Send(Effect, frozen=True, gc=False):
    """One message to many peers, encoded once."""

    message: Any
    peers: tuple[NodeId, ...]


class SetTimer(Effect, frozen=True, gc=False):
    """Fire once, delay_ns (not negative) from now. Setting a key again replaces it."""

    key: Hashable
    delay_ns: int


class CancelTimer(Effect, frozen=True, gc=False):
    """A cancelled timer never fires."""

    key: Hashable


class Store(Effect, frozen=True, gc=False):
    """Make a value durable (None deletes); first in first out per key; answered by Stored."""

    key: bytes
    value: bytes | None
    token: Hashable


class Load(Effect, frozen=True, gc=False):
    """Read a value; sees every earlier Store of this machine; answered by Loaded."""

    key: bytes
    token: Hashable


class Verify(Effect, frozen=True, gc=False):
    """Check that `signer` signed it: a signature, and behind it the body; answered by Verified, in
    order. In one piece, as it came: whoever checks takes it apart."""

    signer: NodeId
    signed: bytes
    token: Hashable


class CheckAccess(Effect, frozen=True, gc=False):
    """Find out what somebody may do with a stream; answered by AccessChecked. From then on this
    machine hears every AccessChanged. Only for machines of nodes that have a registry."""

    stream: StreamId
    who: NodeId


class Notify(Effect, frozen=True, gc=False):
    """Tell the local application."""

    event: Any


class PauseReading(Effect, frozen=True, gc=False):
    """Take no more messages from this peer, of any kind: let its own queue fill. What was read
    already still comes. The link is read again when every machine that paused it has resumed; its
    end ends the pause."""

    peer: NodeId


class ResumeReading(Effect, frozen=True, gc=False):
    """Read from this peer again, as far as this machine is concerned."""

    peer: NodeId
