"""Flooding in one stream under test, copy by copy."""

from __future__ import annotations

from shoal.base.ids import MessageId, NodeId
from shoal.base.units import US_NS
from shoal.kernel.effects import Effect, Verify
from shoal.kernel.records import Rejected
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.delivery.flooding import Channel, Flooding
from shoal.protocols.streams.messages import Flood
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    NOW_MS,
    NOW_NS,
    STREAM,
    is_signed,
    of_kind,
    placed,
)

NOW_US = NOW_NS // US_NS


class Floor:
    """Flooding in one stream, with Alice, Bob and Dave as neighbours that get data."""

    def __init__(self, config: NodeConfig | None = None, *, subscribed: bool = False) -> None:
        self.config = config or NodeConfig()
        self.channel = Channel(STREAM, self.config, NOW_MS)
        self.channel.neighbours = frozenset((ALICE, BOB, DAVE))
        self.channel.active = (ALICE, BOB, DAVE)
        self.channel.subscribed = subscribed
        self.channels = {STREAM: self.channel}
        self.flooding = Flooding(self.config, self.channels, self.offend)
        self.offences: list[tuple[NodeId, str]] = []
        self.now_ns = NOW_NS

    def offend(self, peer: NodeId, reason: str, now_ns: int) -> list[Effect]:
        self.offences.append((peer, reason))
        return [Rejected(peer, reason)]

    def has_seen(self, id: MessageId) -> bool:
        here = placed(id)
        return bool(self.channel.seen.seen(here.chain, here.number))

    def receive(self, peer: NodeId, flood: Flood) -> list[Effect]:
        return self.flooding.receive(peer, flood, self.now_ns)

    def verified(self, flood: Flood, valid: bool = True) -> list[Effect]:
        return self.flooding.verified(flood.signed, valid, self.now_ns)

    def take(self, peer: NodeId, flood: Flood) -> list[Effect]:
        """A copy comes in, is checked, and what follows."""
        effects = self.receive(peer, flood)
        checks = of_kind(effects, Verify)
        return self.verified(flood, is_signed(checks[0])) if checks else effects


def verify_of(flood: Flood, signer: NodeId = CAROL) -> Verify:
    """The check that a first copy causes."""
    return Verify(signer, flood.signed, flood.signed)
