"""A publisher that tells its neighbours different things under one id."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.base.units import US_NS
from shoal.identity.message_body import decode_body, encode_body
from shoal.kernel.effects import Effect, Send
from shoal.kernel.inputs import CommandIssued, Input
from shoal.protocols.streams.commands import Publish
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.messages import Flood
from shoal.protocols.streams.signed_message import Sign


def make_liar(machine: Any, sign: Sign, lied_to: int = 2) -> None:
    """From now on this node signs a second body for each of its messages, and gives it to its first
    few neighbours."""
    assert isinstance(machine, StreamNode)

    class Liar(StreamNode):
        __slots__ = ()

        def handle(self, event: Input, now_ns: int) -> list[Effect]:
            effects = super().handle(event, now_ns)
            if type(event) is CommandIssued and type(event.command) is Publish:
                return [part for effect in effects for part in two_faced(effect, now_ns)]
            return effects

    def two_faced(effect: Effect, now_ns: int) -> list[Effect]:
        if not (isinstance(effect, Send) and isinstance(effect.message, Flood)):
            return [effect]
        body = decode_body(effect.message.signed)
        lie = encode_body(msgspec.structs.replace(body, content=b"lie"))
        flood = Flood(0, 0, now_ns // US_NS, sign(lie) + lie)
        peers = effect.peers
        return [Send(effect.message, peers[lied_to:]), Send(flood, peers[:lied_to])]

    machine.__class__ = Liar
