"""What a node has lately passed on, so that neighbours can ask for what they missed, and so that
a publisher who contradicts itself is found out."""

from __future__ import annotations

from collections import deque
from operator import attrgetter

import msgspec

from shoal.base.ids import MessageId
from shoal.base.units import MIB, MS_NS
from shoal.identity import SIGNATURE_BYTES
from shoal.protocols.streams.config import HEADS_CHAINS_MAX, NodeConfig
from shoal.protocols.streams.messages import Head
from shoal.protocols.streams.signed_message import Chain, Number, PlacedMessage

SPAN_NS = 500 * MS_NS
SPANS_MIN = 8  # bytes for at least so many: dropping one must not drop nearly all

_number = attrgetter("number")


class _Span(msgspec.Struct):
    """What came within a while, in the order in which it came."""

    begun_ns: int
    messages: list[PlacedMessage] = []
    size_bytes: int = 0
    told: bool = False
    """Whether it was looked at for quiet chains."""
    named: dict[MessageId, PlacedMessage] = {}  # as many of them as anybody has asked for by id

    def find(self, id: MessageId) -> PlacedMessage | None:
        for message in self.messages[len(self.named) :]:
            self.named[message.id] = message
        return self.named.get(id)


class RecentMessages:
    """The last messages of one stream, bounded in bytes and age.

    They are kept as they come, and dropped as they came, a span at a time. All that is rarely asked
    for, the messages of one chain or the one of an id, is searched for.
    """

    __slots__ = (
        "_bytes",
        "_bytes_max",
        "_config",
        "_newest",
        "_settled",
        "_span_bytes_max",
        "_spans",
        "_untold",
    )

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._bytes_max = config.recent_bytes_max
        self._span_bytes_max = config.recent_bytes_max // SPANS_MIN
        self._spans: deque[_Span] = deque()
        self._newest = _Span(-SPAN_NS)
        self._settled: dict[MessageId, None] = {}  # known to have two bodies
        self._bytes = 0  # of all spans but the newest
        self._untold: dict[Chain, tuple[Number, int]] = {}  # of spans that are gone: since when

    def add(self, message: PlacedMessage, now_ns: int) -> None:
        """Keep a verified message."""
        span, message_bytes = self._newest, len(message.signed)
        size_bytes = span.size_bytes + message_bytes
        if size_bytes > self._span_bytes_max or now_ns - span.begun_ns >= SPAN_NS:
            span, size_bytes = self._begin(now_ns, message_bytes), message_bytes
        span.messages.append(message)
        span.size_bytes = size_bytes

    def contradicted(self, message: PlacedMessage) -> bytes | None:
        """The message that we hold under an id, if this one says something else.

        None once an id is settled: the proof was found, and further bodies prove nothing more.
        """
        if message.id in self._settled:
            return None
        held = self.find(message.id)
        if held is None:
            return None
        # The same body may have several good signatures: it is the same message.
        body = memoryview(held.signed)[SIGNATURE_BYTES:]
        same = body == memoryview(message.signed)[SIGNATURE_BYTES:]
        return None if same else held.signed

    def find(self, id: MessageId) -> PlacedMessage | None:
        """The message of an id, if it is kept."""
        for span in reversed(self._spans):
            held = span.find(id)
            if held is not None:
                return held
        return None

    def settle(self, message: PlacedMessage) -> None:
        """Two signed bodies were found under an id that we hold."""
        self._settled[message.id] = None

    def between(self, chain: Chain, after: Number, upto: Number) -> list[bytes]:
        """Messages of a chain in (after, upto], in order, up to the size of one answer."""
        kept = [
            message
            for span in self._spans
            for message in span.messages
            if message.chain == chain and after < message.number <= upto
        ]
        found: list[bytes] = []
        size_bytes = 0
        for message in sorted(kept, key=_number):
            size_bytes += len(message.signed)
            if found and size_bytes > self._config.fill_bytes_max:
                break
            found.append(message.signed)
        return found

    def since(self, before_ns: int) -> list[Head]:
        """What came before a time, to the span, and was not given before; the latest first. Of
        what is not kept any more, the last of each chain."""
        came: list[Head] = []
        for span in reversed(self._spans):
            if span.told:
                break
            if span.begun_ns + SPAN_NS <= before_ns:
                span.told = True
                came.extend([message.head for message in reversed(span.messages)])
        for chain, (number, begun_ns) in list(self._untold.items()):
            if begun_ns + SPAN_NS <= before_ns:
                del self._untold[chain]
                came.append((chain, number))
        return came

    def _begin(self, now_ns: int, size_bytes: int) -> _Span:
        """Begin a span, and drop those that are too old, or too many for one more message."""
        spans, oldest_ns = self._spans, now_ns - self._config.recent_ns
        most_bytes = self._bytes_max - max(size_bytes, self._span_bytes_max)
        self._bytes += self._newest.size_bytes
        while spans and (spans[0].begun_ns < oldest_ns or self._bytes > most_bytes):
            span = spans.popleft()
            self._bytes -= span.size_bytes
            if not span.told:
                self._leave_untold(span)
            for message in span.messages if self._settled else ():
                self._settled.pop(message.id, None)
        self._newest = _Span(now_ns)
        spans.append(self._newest)
        return self._newest

    def _leave_untold(self, span: _Span) -> None:
        """In a busy stream messages go before anybody could see that their chains are quiet."""
        untold = self._untold
        for message in span.messages:
            untold.pop(message.chain, None)
            untold[message.chain] = (message.number, span.begun_ns)
            if len(untold) > HEADS_CHAINS_MAX:
                del untold[next(iter(untold))]


# Which messages were taken in the last second, by their bytes: two copies in three that come in
# are of one of them, and need not be read.
#
# This is a short cut and no more. What is not found here is looked up where messages are kept, so
# it may forget as it likes: it holds two small tables, of which the older is dropped when the newer
# has had its time. A table of all that is kept would be large, and looked into at random.


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
