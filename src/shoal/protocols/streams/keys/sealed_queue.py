"""Messages whose key is not here yet: they wait in the order of their chain, and hold up no other.

What comes behind a message that waits, in the same chain, waits with it. A message goes on when its
key is here, when its time is over, or when too many wait; without its key it is shown as it is,
in its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from shoal.base.ids import NodeId
from shoal.identity.group_key import sealed_with
from shoal.identity.message_body import ENCRYPTED
from shoal.protocols.streams.config import WaitingConfig
from shoal.protocols.streams.signed_message import VerifiedMessage

Chain = tuple[NodeId, int, str]


def key_of(message: VerifiedMessage) -> bytes | None:
    """The id of the key that a message needs; None if it needs none, or names none."""
    return sealed_with(message.content) if message.content_type == ENCRYPTED else None


class _Waits(msgspec.Struct, eq=False):
    message: VerifiedMessage
    item: Any
    until_ns: int


class Waiting:
    """Gives items on, each chain in its order."""

    def __init__(
        self,
        awaits_key: Callable[[bytes], bool],
        give: Callable[[Any], None],
        config: WaitingConfig | None = None,
    ) -> None:
        """`awaits_key` says of a key whether it is not here, and may come; `give` takes an item
        whose turn it is."""
        self._awaits_key = awaits_key
        self._give = give
        self._config = config or WaitingConfig()
        self._chains: dict[Chain, deque[_Waits]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def take(self, message: VerifiedMessage, item: Any, now_ns: int) -> bool:
        """Give it on, or have it wait; whether it waits."""
        id = message.id
        chain = (id.publisher, id.partition, id.chain)
        line = self._chains.get(chain)
        if line is None:
            if not self._lacks_key(message):
                self._give(item)
                return False
            line = self._chains[chain] = deque()
        line.append(_Waits(message, item, now_ns + self._config.patience_ns))
        self._count += 1
        if len(line) > self._config.chain_messages_max:
            self._give_first(chain)
        elif self._count > self._config.messages_max:
            self._give_first(max(self._chains, key=lambda chain: len(self._chains[chain])))
        return True

    def look(self, now_ns: int) -> None:
        """Keys have come, or time has passed."""
        for chain in list(self._chains):
            while chain in self._chains:
                first = self._chains[chain][0]
                if now_ns < first.until_ns and self._lacks_key(first.message):
                    break
                self._give_first(chain)

    def next_ns(self) -> int | None:
        """When the first one's time is over."""
        return min((line[0].until_ns for line in self._chains.values()), default=None)

    def _give_first(self, chain: Chain) -> None:
        line = self._chains[chain]
        self._count -= 1
        item = line.popleft().item
        if not line:
            del self._chains[chain]
        self._give(item)

    def _lacks_key(self, message: VerifiedMessage) -> bool:
        key = key_of(message)
        return key is not None and self._awaits_key(key)
