"""How often peers sent what no honest peer sends."""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.protocols.streams.config import NodeConfig


class Offences:
    """Of the last few offenders, also when their links are gone."""

    __slots__ = ("_config", "_counts")

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._counts: dict[NodeId, int] = {}

    def add(self, peer: NodeId) -> bool:
        """One more; whether that is too many, and it begins anew."""
        count = self._counts.pop(peer, 0) + 1
        if count >= self._config.offences_max:
            return True
        self._counts[peer] = count
        if len(self._counts) > self._config.offenders_max:
            del self._counts[next(iter(self._counts))]
        return False
