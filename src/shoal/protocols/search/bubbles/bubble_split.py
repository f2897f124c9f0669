"""BubbleCast: how a node divides a part of a bubble among its neighbours.

A part has a size, and a slice of it shall be handled now: the positions start to end. Position 0
is the node that the part has come to. The rest is divided among the first neighbours of an order
that depends on the bubble and the node alone: so the next slice of the same bubble, which begins
where this one ends, takes the same ways and reaches the nodes that this one has left out.

The algorithm of the thesis (figure 2.25), with three corrections: its `min` in line 13 has to be
`max`; nothing is divided where nobody is left to send to; and as many edges count as handled here
as were taken out, where it counts those to `split` even if there are fewer. One rule is new: where
the first `split` edges all lead back to ourselves, the next one that does not is taken. In a small
network that is common, and all that the part had before it would be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol, TypeVar

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId


class Numbered(Protocol):
    """An edge, as far as its place in the order is concerned."""

    @property
    def number(self) -> int:
        """Different for each edge of this node, and the same as long as the edge is there."""
        ...


E = TypeVar("E", bound=Numbered)


class Candidate(NamedTuple):
    """Somebody to send to."""

    edge: int
    """The edge's number."""
    peer: NodeId


class Part(NamedTuple):
    """What goes over an edge."""

    edge: int
    size: int
    start: int
    end: int


class Division(NamedTuple):
    """What a node does with a part."""

    here: bool
    """Whether the node itself is asked."""
    parts: list[Part]


def permuted(edges: Iterable[E], bubble: bytes, node: NodeId) -> list[E]:
    """The edges in the order of this bubble at this node. Each has its own place by lot, so one
    that comes or goes leaves the others in their order."""
    key = blake2b(bubble + node, digest_size=16).digest()
    return sorted(edges, key=lambda edge: _lot(key, edge.number))


def divide(
    size: int, start: int, end: int, split: int, candidates: Sequence[Candidate], node: NodeId
) -> Division:
    """Divide a slice; candidates are in order, without the edge that it came in on."""
    if not 0 <= start < end <= size or split < 1:
        raise UsageError(
            f"size {size}, start {start}, end {end}, split {split}: write 0 <= start < end <= size"
            " and a split of 1 or more"
        )
    out: dict[NodeId, int] = {}
    local = 1  # positions that are handled here: ours, and each redundant edge's
    for taken, (edge, peer) in enumerate(candidates):
        if taken >= split and out:
            break
        if peer == node or peer in out:
            local += 1
        else:
            out[peer] = edge
    parts = _parts(size - local, start - local, end - local, list(out.values())) if out else []
    return Division(start == 0, parts)


def _parts(size: int, start: int, end: int, out: Sequence[int]) -> list[Part]:
    """Share the rest among these edges; start and end count from its beginning."""
    parts = []
    each, more = divmod(max(size, 0), len(out))
    for index, edge in enumerate(out):
        share = each + (index < more)
        first, last = max(start, 0), min(share, end)
        if first < last:
            parts.append(Part(edge, share, first, last))
        start -= share
        end -= share
    return parts


def _lot(key: bytes, number: int) -> bytes:
    return blake2b(number.to_bytes(8, "big"), key=key, digest_size=8).digest()
