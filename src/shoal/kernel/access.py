"""Who may do what with a stream: what machines ask, and the port that drivers ask for them.

A machine that hands out CheckAccess hears AccessChecked, with a verdict on all that somebody may
do. A verdict counts until its end, unless an AccessChanged names it before: then it is to be asked
for again. A verdict is never older than an AccessChanged that was told before it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntFlag
from typing import Protocol

import msgspec

from shoal.base.ids import NodeId, StreamId


class Permission(IntFlag):
    """A kind of permission, or several. The bits are those of the registry's contract."""

    EDIT = 1
    DELETE = 2
    PUBLISH = 4
    SUBSCRIBE = 8
    GRANT = 16


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What somebody may do with a stream, for now."""

    permissions: int
    """The bits of Permission that are there."""
    until_ns: int
    """From then on it does not count, by Unix time: a permission ends, or it is too old."""
    problem: str = ""
    """Why nobody knows, for people: then nothing is permitted, and asking again may help."""

    def allows(self, kinds: int) -> bool:
        """Whether one of these kinds is there."""
        return bool(self.permissions & kinds)


Tell = Callable[[Verdict], None]


class AccessPort(Protocol):
    """Answers the questions of one node's machines. Never raises: a problem is a verdict."""

    def check(self, stream: StreamId, who: NodeId, tell: Tell) -> None:
        """Find out, and tell; at once if it is known."""
        ...


class EverythingAllowed:
    """The fake of the port: everybody may do everything, unless a test says otherwise."""

    def __init__(self) -> None:
        self.verdicts: dict[tuple[StreamId, NodeId], Verdict] = {}

    def check(self, stream: StreamId, who: NodeId, tell: Tell) -> None:
        everything = Verdict(sum(Permission), until_ns=2**63 - 1)
        tell(self.verdicts.get((stream, who), everything))
