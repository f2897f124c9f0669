"""What was read of streams: their terms, and permissions by address. Bounded, oldest use first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from shoal.base.ids import NodeId, StreamId

Key = tuple[StreamId, NodeId | None]
"""A stream and an address, for permissions; a stream and None, for its terms."""


class Cache:
    """Forgets what was not used for longest."""

    def __init__(self, entries_max: int) -> None:
        """So many at most."""
        self._entries_max = entries_max
        self._values: OrderedDict[Key, Any] = OrderedDict()
        self._of_stream: dict[StreamId, set[NodeId | None]] = {}

    def get(self, key: Key) -> Any:
        """The value, or None."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: Key, value: Any) -> None:
        """Know it from now on."""
        self._values[key] = value
        self._values.move_to_end(key)
        self._of_stream.setdefault(key[0], set()).add(key[1])
        while len(self._values) > self._entries_max:
            self.drop(next(iter(self._values)))

    def drop(self, key: Key) -> None:
        """Forget one."""
        if self._values.pop(key, None) is not None:
            of_stream = self._of_stream[key[0]]
            of_stream.discard(key[1])
            if not of_stream:
                del self._of_stream[key[0]]

    def drop_stream(self, stream: StreamId) -> None:
        """Forget all of a stream."""
        for who in self._of_stream.pop(stream, ()):
            self._values.pop((stream, who), None)

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
        self._of_stream.clear()

    def __len__(self) -> int:
        """How many are known."""
        return len(self._values)
