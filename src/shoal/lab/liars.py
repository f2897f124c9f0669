"""Nodes that lie to the tracker about their round trips, to get a better place or to surround
somebody. In all else they do what they should, so that nothing but the lie gives them away."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import msgspec

from shoal.base.ids import NodeId
from shoal.kernel.effects import Effect, Send
from shoal.kernel.inputs import Input
from shoal.protocols.streams.messages import Probed, Report, Rtt
from shoal.protocols.streams.node import StreamNode

Lie = Literal["near", "club", "shy"]
"""What they say: that everybody is near; that the others of their kind are; or that everybody is
but those, so that they are linked to the honest."""

NEAR_US = 200
FAR_US = 800_000


class LyingNode(StreamNode):
    """A stream node whose words on round trips are made up."""

    __slots__ = ("_kind", "_lie")

    def lie(self, lie: Lie, kind: Collection[NodeId]) -> LyingNode:
        """Begin; kind are all liars."""
        self._lie: Lie = lie
        self._kind = kind
        return self

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        return [self._twisted(effect) for effect in super().handle(event, now_ns)]

    def _twisted(self, effect: Effect) -> Effect:
        if not isinstance(effect, Send) or not isinstance(effect.message, Report | Probed):
            return effect
        rtts = tuple([self._word(rtt) for rtt in effect.message.rtts])
        return Send(msgspec.structs.replace(effect.message, rtts=rtts), effect.peers)

    def _word(self, rtt: Rtt) -> Rtt:
        of_our_kind = rtt.peer in self._kind
        match self._lie:
            case "near":
                return Rtt(rtt.peer, NEAR_US)
            case "club":
                return Rtt(rtt.peer, NEAR_US) if of_our_kind else rtt
            case "shy":
                return Rtt(rtt.peer, FAR_US if of_our_kind else NEAR_US)
