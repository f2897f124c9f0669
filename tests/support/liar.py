"""A publisher that tells its neighbours different things under one id."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.base.units import US_NS
from shoal.kernel.effects import Effect, Send
from shoal.kernel.inputs import CommandIssued, Input
from shoal.protocols.streams.commands import Publish
from shoal.protocols.streams.messages import Flood
from shoal.protocols.streams.node import StreamNode
from shoal.protocols.streams.publisher import Sign
from shoal.protocols.streams.wire import decode_body, encode_body


def make_liar(machine: Any, sign: Sign, lied_to: int = 2) -> None:
    """From now on this node gives its first few neighbours another body than the rest."""
    assert isinstance(machine, StreamNode)
    machine.__class__ = Liar
    assert isinstance(machine, Liar)
    machine.sign_again, machine.lied_to = sign, lied_to


class Liar(StreamNode):
    """Signs a second body for each of its messages, and gives it to some of its neighbours."""

    lied_to: int
    sign_again: Sign

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        effects = super().handle(event, now_ns)
        own = type(event) is CommandIssued and type(event.command) is Publish
        return [part for effect in effects for part in self._two_faced(effect)] if own else effects

    def _two_faced(self, effect: Effect) -> list[Effect]:
        if not (isinstance(effect, Send) and isinstance(effect.message, Flood)):
            return [effect]
        body = decode_body(effect.message.signed)
        lie = encode_body(msgspec.structs.replace(body, content=b"lie"))
        flood = Flood(0, 0, self._now_ns // US_NS, self.sign_again(lie) + lie)
        peers = effect.peers
        return [
            Send(effect.message, peers[self.lied_to :]),
            Send(flood, peers[: self.lied_to]),
        ]
