"""Who on this node wants which link.

One connection per peer serves every machine. A claim is (machine slot, purpose); a link lives
while it has claims, and a while longer: an inbound link waits parked for the instruction that
will claim it, a released one for a second use.

What a claimant hears of one claim: LinkOpened once, and LinkClosed when the link goes; or
LinkFailed. After it gave the claim back, no LinkOpened. A claimant may ask again for a claim that
it holds, and is then answered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.base.ids import NodeId, short_node_id
from shoal.kernel.inputs import Input, LinkClosed, LinkFailed, LinkOpened


class Claim(NamedTuple):
    """A machine's interest in a link."""

    slot: int
    purpose: str


Told = list[tuple[int, Input]]
Unsent = Sequence[tuple[int, Any]]  # who sent it, and what


class _Held(msgspec.Struct):
    soft: bool
    told: bool = False  # its LinkOpened was delivered


class _Link(msgspec.Struct):
    """A connection: up, or else being dialled."""

    up: bool = False
    claims: dict[Claim, _Held] = {}


class LinkTable:
    """Pure bookkeeping of claims; the driver moves the bytes."""

    def __init__(self, soft_links_max: int) -> None:
        self.soft: dict[NodeId, None] = {}
        """Links held by soft claims only, least recently used first."""
        self.parked: dict[NodeId, None] = {}
        """Links that are up and that nobody wants, the one that has waited longest first."""
        self._links: dict[NodeId, _Link] = {}
        self._soft_links_max = soft_links_max

    def __contains__(self, peer: NodeId) -> bool:
        """Whether there is a link to this peer, or a dial under way."""
        return peer in self._links

    def is_up(self, peer: NodeId) -> bool:
        link = self._links.get(peer)
        return link is not None and link.up

    def is_claimed(self, peer: NodeId) -> bool:
        link = self._links.get(peer)
        return link is not None and bool(link.claims)

    def claimants(self, peer: NodeId) -> list[int]:
        """The machines that want this link, each once."""
        link = self._links.get(peer)
        return [] if link is None else list(dict.fromkeys(claim.slot for claim in link.claims))

    def claim(self, peer: NodeId, claim: Claim, soft: bool) -> tuple[bool, Told]:
        """Register a claim; says whether to dial, and whom to tell at once."""
        dial = peer not in self._links
        link = self._links.setdefault(peer, _Link())
        link.claims[claim] = _Held(soft)
        self.parked.pop(peer, None)
        self.soft.pop(peer, None)
        self._rank(peer, link)
        return dial, [(claim.slot, LinkOpened(peer, claim.purpose))] if link.up else []

    def release(self, peer: NodeId, claim: Claim) -> bool:
        """Give a claim back; True if it was the last one of a link that is up: now idle."""
        link = self._links.get(peer)
        if link is None or link.claims.pop(claim, None) is None:
            return False
        self._rank(peer, link)
        idle = link.up and not link.claims
        if idle:
            self.parked[peer] = None
        return idle

    def use(self, peers: Iterable[NodeId]) -> None:
        """Messages leave for these peers: their links are the last to be evicted now."""
        for peer in peers:
            if peer in self.soft:
                del self.soft[peer]
                self.soft[peer] = None

    def opened(self, peer: NodeId) -> Told:
        """The connection is up, whoever dialled."""
        link = self._links.setdefault(peer, _Link())
        if link.up:
            raise InvariantViolated(f"a second link to {short_node_id(peer)}: close one first")
        link.up = True
        if not link.claims:
            self.parked[peer] = None
        return [(c.slot, LinkOpened(peer, c.purpose)) for c in link.claims]

    def tell(self, peer: NodeId, claim: Claim) -> bool:
        """Whether a LinkOpened that is about to be delivered is still true and still news."""
        link = self._links.get(peer)
        held = link.claims.get(claim) if link is not None and link.up else None
        if held is None or held.told:
            return False
        held.told = True
        return True

    def closed(self, peer: NodeId, reason: str, unsent: Unsent = ()) -> Told:
        """The connection is gone, and every claim with it."""
        link = self._links.pop(peer, None)
        self.parked.pop(peer, None)
        return [] if link is None else self._lost(peer, link, reason, unsent)

    def failed(self, peer: NodeId, reason: str) -> Told:
        """A dial gave up. An inbound link that came up meanwhile is not affected."""
        return [] if self.is_up(peer) else self.closed(peer, reason)

    def evict(self, peer: NodeId) -> Told:
        """Take every claim on a link away; the link itself is the driver's to end."""
        return self._lost(peer, self._links[peer], "evicted", ())

    def excess_soft(self) -> list[NodeId]:
        """Links held by soft claims only, above the cap, least recently used first."""
        excess = len(self.soft) - self._soft_links_max
        return list(self.soft)[:excess] if excess > 0 else []

    def _lost(self, peer: NodeId, link: _Link, reason: str, unsent: Unsent) -> Told:
        """What the claimants hear; a machine with several claims gets its messages back once."""
        told: Told = []
        returned: dict[int, list[Any]] = {}
        for slot, message in unsent:
            returned.setdefault(slot, []).append(message)
        for (slot, purpose), held in link.claims.items():
            messages = tuple(returned.pop(slot, ()))
            if held.told and not messages:
                told.append((slot, LinkClosed(peer, purpose, reason)))
            else:
                told.append((slot, LinkFailed(peer, purpose, reason, messages)))
        link.claims = {}
        self.soft.pop(peer, None)
        return told

    def _rank(self, peer: NodeId, link: _Link) -> None:
        if link.claims and all(held.soft for held in link.claims.values()):
            self.soft.setdefault(peer)
        else:
            self.soft.pop(peer, None)
