"""Inputs: past-tense facts that a driver tells a machine."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec

from shoal.base.ids import NodeId, StreamId
from shoal.kernel.access import Verdict


class Input(msgspec.Struct, frozen=True, gc=False):
    """A fact. Handled one at a time, never re-entered."""


class Started(Input, frozen=True, gc=False):
    """The first input of every incarnation: set timers, ask for links, load state."""

    addresses: tuple[str, ...] = ()
    """Where peers can dial this node; none if it can only dial out."""


class LinkOpened(Input, frozen=True, gc=False):
    """A link that this machine claimed is up. Told once for each claim."""

    peer: NodeId
    purpose: str


class LinkClosed(Input, frozen=True, gc=False):
    """A claimed link that was up is down. The claim is gone with it."""

    peer: NodeId
    purpose: str
    reason: str


class LinkFailed(Input, frozen=True, gc=False):
    """A claimed link could not be opened, or broke with messages unsent. The claim is gone.

    `unsent` are messages of this machine that never left, oldest first; what had left may be
    lost as well. Over real links they are those of the kinds that it wants back, as far as they
    waited in the queue of the link: not what the system's own buffers held.
    """

    peer: NodeId
    purpose: str
    reason: str
    unsent: tuple[Any, ...] = ()


class MessageReceived(Input, frozen=True, gc=False):
    """A peer sent one message, decoded but not believed."""

    peer: NodeId
    message: Any


class TimerFired(Input, frozen=True, gc=False):
    """A timer ran out. Never told for a timer that was cancelled or set again."""

    key: Hashable


class CommandIssued(Input, frozen=True, gc=False):
    """The local application wants something; answers name the token in a Notify."""

    command: Any
    token: Hashable = None


class Verified(Input, frozen=True, gc=False):
    """Result of Verify, first in first out per machine."""

    token: Hashable
    valid: bool


class Stored(Input, frozen=True, gc=False):
    """Result of Store: the value survives a crash from now on."""

    token: Hashable


class StoreFailed(Input, frozen=True, gc=False):
    """Result of Store in place of Stored: nothing of it was kept; another try may do better."""

    token: Hashable
    reason: str


class Loaded(Input, frozen=True, gc=False):
    """Result of Load: the newest value stored before it, or None; None too if the disk fails."""

    token: Hashable
    value: bytes | None


class AccessChecked(Input, frozen=True, gc=False):
    """Result of CheckAccess. Never older than an AccessChanged that was told before."""

    stream: StreamId
    who: NodeId
    verdict: Verdict


class AccessChanged(Input, frozen=True, gc=False):
    """Verdicts may be different from now on. Told to machines that have asked for any."""

    stream: StreamId | None = None
    """None: of all streams."""
    who: NodeId | None = None
    """None: everybody's."""


class SendQueueHigh(Input, frozen=True, gc=False):
    """What waits to be sent to this peer passed the high mark."""

    peer: NodeId


class SendQueueLow(Input, frozen=True, gc=False):
    """What waits to be sent to this peer fell below the low mark again."""

    peer: NodeId
