"""The key exchange of a node: asks others for group keys (`finding.py`), and answers those who ask
(`answering.py`)."""

from __future__ import annotations

from typing import Any

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId, StreamId
from shoal.identity.entropy import Entropy
from shoal.identity.keys import PrivateKey, PublicKey
from shoal.kernel.effects import Effect
from shoal.kernel.inputs import (
    AccessChecked,
    CommandIssued,
    Input,
    LinkClosed,
    LinkFailed,
    LinkOpened,
    MessageReceived,
    TimerFired,
)
from shoal.protocols.streams.keys.answering import READER, Answers
from shoal.protocols.streams.keys.commands import FindKey
from shoal.protocols.streams.keys.config import ExchangeConfig
from shoal.protocols.streams.keys.finding import Finds
from shoal.protocols.streams.keys.messages import KeyAnswer, KeyRequest
from shoal.protocols.streams.keys.ring import KeyRing
from shoal.protocols.streams.keys.vicinity import Vicinity
from shoal.protocols.streams.messages import Expect, KeyHolders


class KeyExchange:
    """One node's side of it."""

    accepts: tuple[type, ...] = (KeyRequest, KeyAnswer, KeyHolders, Expect)

    def __init__(
        self,
        key: PrivateKey,
        ring: KeyRing,
        vicinity: Vicinity,
        entropy: Entropy,
        config: ExchangeConfig | None = None,
    ) -> None:
        self.ring = ring
        self.config = config or ExchangeConfig()
        self._finds = Finds(key, ring, vicinity, self.config)
        self._answers = Answers(key.address, ring, vicinity, entropy, self.config)

    @property
    def met(self) -> dict[NodeId, PublicKey]:
        """Public keys of those who were given a key: a publisher can wrap for them."""
        return self._answers.met

    def streams_of(self, peer: NodeId) -> list[StreamId]:
        """In which streams a tracker has told us of somebody who is no neighbour."""
        return self._finds.streams_of(peer) + self._answers.streams_of(peer)

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """The one entry point."""
        match event:
            case MessageReceived(peer, message):
                return self._received(peer, message, now_ns)
            case CommandIssued(FindKey() as command, token):
                return self._finds.begin(command, token, now_ns)
            case AccessChecked():
                return self._answers.checked(event)
            case LinkOpened(peer, purpose) if purpose != READER:
                return self._finds.link_opened(peer)
            case LinkClosed(peer, purpose) | LinkFailed(peer, purpose) if purpose != READER:
                return self._finds.link_lost(peer, now_ns)
            case TimerFired(key):
                return self._timer(key, now_ns)
            case CommandIssued(command):
                raise UsageError(f"{command!r} is no command of a key exchange")
        return []

    def _received(self, peer: NodeId, message: Any, now_ns: int) -> list[Effect]:
        match message:
            case KeyRequest():
                return self._answers.requested(peer, message, now_ns)
            case KeyAnswer():
                return self._finds.answered(peer, message, now_ns)
            case KeyHolders():
                return self._finds.named(peer, message, now_ns)
            case _:
                return self._answers.expect(peer, message)

    def _timer(self, key: Any, now_ns: int) -> list[Effect]:
        name, of = key
        if name == READER:
            return self._answers.expect_no_longer(of)
        return self._finds.timer(name, of, now_ns)

    def check_invariants(self) -> None:
        """Raise InvariantViolated on impossible state."""
        self._finds.check_invariants()
        self._answers.check_invariants()
