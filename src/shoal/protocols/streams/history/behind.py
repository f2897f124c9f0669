"""Whether a storage node may lack what another one has, because it was away or is new.

What was published meanwhile comes with the logs of the others. Until each of them that is there
was gone through once, they serve readers better. That begins anew with every link: which of the two
was away while there was none, or only cut off, nobody can say. Nobody is waited for who cannot be
reached, or gives nothing: a node that is alone answers with what it has.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.base.ids import NodeId, StreamId
from shoal.protocols.streams.history.config import SyncConfig


class Behind:
    """Streams, and their other storage nodes that were not gone through since we met them."""

    def __init__(self, config: SyncConfig) -> None:
        self._config = config
        self._unmet: dict[StreamId, dict[NodeId, None]] = {}
        self._until_ns: dict[NodeId, int] = {}  # for so long each of them is waited for

    def followed(self, stream: StreamId, node: NodeId, now_ns: int) -> None:
        """Another storage node of a stream is to be gone through; it is there, perhaps."""
        self._unmet.setdefault(stream, {})[node] = None
        self._wait(node, now_ns + self._config.behind_dial_ns)

    def opened(self, node: NodeId, streams: Iterable[StreamId], now_ns: int) -> None:
        """It is there, and may have more of these streams than when it was there last."""
        for stream in streams:
            self._unmet.setdefault(stream, {})[node] = None
        self.moved(node, now_ns)

    def moved(self, node: NodeId, now_ns: int) -> None:
        """Rows of it have come."""
        self._wait(node, now_ns + self._config.behind_ns)

    def lost(self, node: NodeId) -> None:
        """It is not there."""
        self._until_ns[node] = 0

    def met(self, node: NodeId, streams: Iterable[StreamId]) -> None:
        """All that it had of these streams is here."""
        for stream in streams:
            unmet = self._unmet.get(stream, {})
            unmet.pop(node, None)
            if not unmet:
                self._unmet.pop(stream, None)

    def is_behind(self, stream: StreamId, now_ns: int) -> bool:
        """Whether somebody who is there may have more of a stream."""
        return any(self._until_ns[node] > now_ns for node in self._unmet.get(stream, ()))

    def _wait(self, node: NodeId, until_ns: int) -> None:
        self._until_ns[node] = max(until_ns, self._until_ns.get(node, 0))
