"""Which messages were taken in the last second, by their bytes: two copies in three that come in
are of one of them, and need not be read.

This is a short cut and no more. What is not found here is looked up where messages are kept, so it
may forget as it likes: it holds two small tables, of which the older is dropped when the newer has
had its time. A table of all that is kept would be large, and looked into at random.
"""

from __future__ import annotations

from shoal.base.units import MIB, MS_NS
from shoal.protocols.streams.placed import PlacedMessage

TURN_NS = 500 * MS_NS  # copies come within that of each other, nearly all
TURN_BYTES = 1 * MIB


class Copies:
    """The messages of all streams of a node."""

    __slots__ = ("_bytes", "_turned_ns", "new", "old")

    def __init__(self) -> None:
        self.new: dict[bytes, PlacedMessage] = {}
        self.old: dict[bytes, PlacedMessage] = {}
        self._bytes = 0  # of the new ones
        self._turned_ns = 0

    def add(self, message: PlacedMessage, now_ns: int) -> None:
        """A message was taken."""
        if now_ns - self._turned_ns >= TURN_NS or self._bytes >= TURN_BYTES:
            self.new, self.old = {}, self.new
            self._bytes, self._turned_ns = 0, now_ns
        signed = message.signed
        self._bytes += len(signed)
        self.new[signed] = message

    def forget(self) -> None:
        """A stream was left: what comes of it is not known any more."""
        self.new, self.old = {}, {}
        self._bytes = 0
