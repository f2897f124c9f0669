"""The port between a tracker and whatever decides its topology.

A policy owns one stream's graph. The tracker tells it facts (a node came, a link failed, a delay
was learned) and gets back the links to make and to cut; it alone turns those into instructions.
`random_policy.py` is the paper's algorithm; a policy that knows delays fits the same port.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

import msgspec

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId


class Pair(msgspec.Struct, frozen=True, order=True, gc=False):
    """Two distinct nodes, the smaller id first, so that one link has one name."""

    a: NodeId
    b: NodeId

    def __post_init__(self) -> None:
        if not self.a < self.b:
            raise UsageError(
                f"a pair names the smaller id first and no node twice: {self.a.hex()}, "
                f"{self.b.hex()}; build it with pair_of"
            )


def pair_of(a: NodeId, b: NodeId) -> Pair:
    """The pair of two distinct nodes, given in any order."""
    return Pair(a, b) if a < b else Pair(b, a)


class LinkChanges(msgspec.Struct, frozen=True):
    """Net effect of one run: no pair is in both lists, none that came and went is in either."""

    added: tuple[Pair, ...] = ()
    removed: tuple[Pair, ...] = ()

    def touched(self) -> tuple[NodeId, ...]:
        """Every node whose neighbour set changed, once, in order of first mention."""
        seen: dict[NodeId, None] = {}
        for pair in (*self.removed, *self.added):
            seen[pair.a] = None
            seen[pair.b] = None
        return tuple(seen)


Probes = tuple[tuple[NodeId, tuple[NodeId, ...]], ...]
"""Members, each with others that it should measure round trips to."""


class Improvement(msgspec.Struct, frozen=True):
    """What came of one round of improvement."""

    changes: LinkChanges = LinkChanges()
    probes: Probes = ()


class TopologyPolicy(Protocol):
    """Decides every link of one stream; pure, and deterministic for one seed and call order.

    After any call no node has more than `degree` links. `join`, `leave`, `link_failed` and
    `delay_learned` touch O(degree) links; `sweep` may cost O(nodes) and is called from a timer.
    """

    @property
    def degree(self) -> int:
        """The most links that a node may have."""
        ...

    @property
    def nodes(self) -> Collection[NodeId]:
        """A live view of the members in order of arrival; membership is O(1)."""
        ...

    def neighbours(self, node: NodeId) -> tuple[NodeId, ...]:
        """The nodes linked to a member, in an order that depends on the calls and seed only."""
        ...

    def join(self, node: NodeId) -> LinkChanges:
        """Take in a node; UsageError if it is a member already."""
        ...

    def leave(self, node: NodeId) -> LinkChanges:
        """Drop a member that left or crashed, with its links; UsageError if it is none."""
        ...

    def link_failed(self, a: NodeId, b: NodeId) -> LinkChanges:
        """Replace a link that could not be made or broke; no changes if it is gone already."""
        ...

    def delay_learned(self, a: NodeId, b: NodeId, rtt_ns: int) -> LinkChanges:
        """Take note of a round trip time between two nodes."""
        ...

    def sweep(self) -> LinkChanges:
        """Fill free slots, reconnect parts, and whatever improvement the policy does slowly."""
        ...

    @property
    def pause_ns(self) -> int | None:
        """How long to wait before the next round of improvement; None: there is nothing to do."""
        ...

    def improve(self, settled: Callable[[NodeId], bool], now_ns: int) -> Improvement:
        """One round of improvement; links of members that have not settled stay as they are."""
        ...

    def hold(self) -> None:
        """Fill no free slot until the next sweep: a successor tracker is about to adopt links."""
        ...

    def place(self, node: NodeId, suits: Callable[[NodeId], bool]) -> LinkChanges:
        """Find neighbours for one member, only among those that suit; perhaps none. On hold."""
        ...

    def adopt(self, a: NodeId, b: NodeId) -> bool:
        """Take over a link that both ends claim, and its ends as members; False if it does not fit.

        For a successor tracker, on hold: an adopted link is no change.
        """
        ...

    def check_invariants(self) -> None:
        """Raise InvariantViolated if the graph or its indexes hold what must not exist."""
        ...
