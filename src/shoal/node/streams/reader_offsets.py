"""How far a reader of a stream has come: what `message.offset` says, and `start=` goes on from.

Along a log it is a seq of each partition, as base/offsets.py has it. Messages that came live, or
were read by time, have no seq. Of them it is, for each partition, a position from which to read
again, and the last message that was given of each chain that had one since:

    {"v":1,"p":{},"m":{"0":{"from":[1767225600000,0],"given":[["0x7e5f…","4f1c…",1767225655000,0]]}}}

Whoever goes on from there reads from the position, and leaves out what was given. The position
lies a minute before the last message: so far behind may another publisher's clock be, or its
message late.

Few offsets are asked for, and many chains may have a part in each. So a message has a mark only:
the places at some message before it, and how many steps were made since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from shoal.base.errors import UsageError
from shoal.base.ids import (
    PARTITIONS_MAX,
    ChainName,
    Count,
    MessageId,
    NodeId,
    parse_node_id,
    show_node_id,
)
from shoal.base.offsets import Offset, PartitionOffset, format_offset, parse_offset
from shoal.protocols.streams.delivery.chain_table import DuplicateDetector
from shoal.protocols.streams.signed_message import BEGINNING, VerifiedMessage, place

LATE_MS = 60_000  # relays take messages of clocks that are wrong by so much
GIVEN_MAX = 1_000  # chains of a partition: 90 KB; with more of them, late messages have less time
STEPS_MIN = 64  # between two times that places are written down
_TEXT_CHARS_MAX = 16 * 1024 * 1024  # 100 partitions with as many chains
_SHOWN_CHARS = 60

Number = tuple[int, int]  # timestamp_ms, sequence
Chain = tuple[NodeId, str]  # of one partition: publisher, chain


class Place(msgspec.Struct, frozen=True):
    """Where to go on in one partition."""

    begin: Number = (0, 0)
    given: Mapping[Chain, Number] = {}
    """The last message that was given of each chain that had one from the beginning on."""
    log: PartitionOffset | None = None
    """While a log is read: after this row of it. The other two say where to go on afterwards."""


class Places(msgspec.Struct, frozen=True):
    """Where to go on in a stream. A partition that is not named has not been begun."""

    partitions: Mapping[int, Place] = {}


class Step(NamedTuple):
    """A message was given to the application."""

    id: MessageId
    received_ms: int
    log: PartitionOffset | None


class Mark:
    """The place behind one message."""

    __slots__ = ("_count", "_places", "_steps")

    def __init__(self, places: Mapping[int, Place], steps: Sequence[Step], count: int) -> None:
        """So many of the steps were made since those places."""
        self._places = places
        self._steps = steps
        self._count = count

    def offset(self) -> str:
        """As text."""
        return format_places(Places(_after(self._places, self._steps[: self._count])))


class Progress:
    """How far one reader has come."""

    def __init__(self, begin: Mapping[int, Place] | None = None) -> None:
        self.begin = dict(begin or {})
        """Where it began, in each partition that does not begin with the first message there is."""
        self._places = self.begin
        self._steps: list[Step] = []
        self._steps_max = STEPS_MIN

    def begin_at(self, partition: int, first: Number) -> None:
        """What lies before this message was not asked for; said before any message is given."""
        self.begin[partition] = Place(first)

    def gave(self, step: Step) -> Mark:
        """One message more; its mark."""
        if len(self._steps) >= self._steps_max:
            self._places, self._steps = _after(self._places, self._steps), []
            chains = sum(len(place.given) for place in self._places.values())
            self._steps_max = max(STEPS_MIN, chains)  # so that each message costs the same
        self._steps.append(step)
        return Mark(self._places, self._steps, len(self._steps))


class _Moving:
    """One partition's place, on its way."""

    def __init__(self, place: Place) -> None:
        self._begin = place.begin
        self._given = dict(place.given)
        self._log = place.log

    def gave(self, step: Step) -> None:
        id = step.id
        # A log is left when it was read to its end: all that comes then is new.
        self._log = None if self._log is None else step.log
        chain, number = (id.publisher, id.chain), (id.timestamp_ms, id.sequence)
        self._given[chain] = max(number, self._given.get(chain, number))
        # A clock that is ahead must not cost the others their time.
        begin_ms = min(id.timestamp_ms, step.received_ms) - LATE_MS
        self._begin = max(self._begin, (begin_ms, 0))

    def place(self) -> Place:
        recent = sorted(
            ((number, chain) for chain, number in self._given.items() if number >= self._begin),
            reverse=True,
        )
        begin = self._begin
        if len(recent) > GIVEN_MAX:
            timestamp_ms, sequence = recent[GIVEN_MAX][0]
            begin = (timestamp_ms, sequence + 1)
        given = {chain: number for number, chain in recent[:GIVEN_MAX]}
        return Place(begin, given, self._log)


def _after(places: Mapping[int, Place], steps: Iterable[Step]) -> dict[int, Place]:
    moving: dict[int, _Moving] = {}
    for step in steps:
        partition = step.id.partition
        if partition not in moving:
            moving[partition] = _Moving(places.get(partition, Place()))
        moving[partition].gave(step)
    return {**places, **{partition: moved.place() for partition, moved in moving.items()}}


# Text

_WireGiven = tuple[str, ChainName, Count, Count]


class _WirePlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    begin: tuple[Count, Count] = msgspec.field(name="from")
    given: Annotated[tuple[_WireGiven, ...], Meta(max_length=GIVEN_MAX)] = ()


def format_places(places: Places) -> str:
    """The text of an offset; one that names logs only is the same as a pipeline's."""
    named = sorted(places.partitions.items())
    logs = Offset({number: place.log for number, place in named if place.log is not None})
    text = format_offset(logs)
    messages = {str(number): _wire(place) for number, place in named if place.log is None}
    if not messages:
        return text
    return msgspec.json.encode({**msgspec.json.decode(text), "m": messages}).decode()


def parse_places(text: str) -> Places:
    """What the text of an offset says; UsageError tells what is wrong with it."""
    if len(text) > _TEXT_CHARS_MAX:
        raise UsageError(f"an offset of {len(text)} characters: at most {_TEXT_CHARS_MAX}")
    try:
        raw = msgspec.json.decode(text)
        messages = raw.pop("m", None) if isinstance(raw, dict) else None
        if messages is not None:
            text = msgspec.json.encode(raw).decode()
        wire = msgspec.convert(messages or {}, dict[str, _WirePlace])
        by_message = {_partition(number): _place(place) for number, place in wire.items()}
    except (ValueError, RecursionError) as error:  # UsageError and msgspec's are ValueErrors
        shown = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
        raise UsageError(f"{shown!r} is no offset: {error}") from None
    by_log = {number: Place(log=at) for number, at in parse_offset(text).partitions.items()}
    return Places({**by_message, **by_log})


def _wire(place: Place) -> _WirePlace:
    given = [
        (show_node_id(publisher), chain, *number)
        for (publisher, chain), number in sorted(place.given.items())
    ]
    return _WirePlace(place.begin, tuple(given))


def _place(wire: _WirePlace) -> Place:
    given = {(parse_node_id(by), chain): (ms, sequence) for by, chain, ms, sequence in wire.given}
    return Place(wire.begin, given)


def _partition(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) < PARTITIONS_MAX):
        raise UsageError(f"partition {text!r}: it is one of 0..{PARTITIONS_MAX - 1}")
    return int(text)


# How far each chain has come, for whoever puts history and live messages together.


CHAINS_MAX = 50_000  # about 10 MB; what lies before the end of a chain that is forgotten was seen
RANGES_MAX = 1_000  # of a chain in a log: one for each message that came late
StreamChain = tuple[NodeId, int, str]


class Standing(Enum):
    """What a message is to those before it."""

    SEEN = "seen"
    NEXT = "next"
    GAP = "gap"
    """One before it has not come."""


class Chains:
    """The last message of each chain."""

    def __init__(self) -> None:
        self.begin: dict[int, Number] = {}
        """From where on each partition should be whole, also in chains that are not known yet."""
        self.logged: frozenset[int] = frozenset()
        """Partitions that are read by log, in which messages may come late."""
        self._last: dict[StreamChain, Number] = {}
        self._told: dict[StreamChain, DuplicateDetector] = {}  # of logs
        self._floor: dict[int, tuple[Number, NodeId, str]] = {}  # where forgotten chains ended

    def last(self, id: MessageId) -> Number | None:
        """The last one of a message's chain, if any."""
        return self._last.get((id.publisher, id.partition, id.chain))

    def whole_to(self, id: MessageId) -> Number:
        """Up to where a message's chain has been given, or was not asked for."""
        begin = self.begin.get(id.partition, BEGINNING)
        floor = self._floor.get(id.partition)
        return self.last(id) or (begin if floor is None else max(begin, floor[0]))

    def told(self, message: VerifiedMessage) -> bool:
        """Whether this one, of a log, was given to the application; a late one was not."""
        id = message.id
        told = self._told.get((id.publisher, id.partition, id.chain))
        return told is not None and told.seen((id.timestamp_ms, id.sequence))

    def standing(self, message: VerifiedMessage) -> Standing:
        """Where a message stands."""
        id, previous = message.id, message.previous
        last, number = self.last(id), (id.timestamp_ms, id.sequence)
        floor = self._floor.get(id.partition) if last is None else None
        if last is not None and number <= last:
            return Standing.SEEN
        if floor is not None and (number, id.publisher, id.chain) <= floor:
            return Standing.SEEN  # as far as history is read by position
        if previous is None:
            return Standing.NEXT
        before = (previous.timestamp_ms, previous.sequence)
        if last is None:
            begin = self.begin.get(id.partition)
            known = begin is None or before < begin or (floor is not None and before <= floor[0])
            return Standing.NEXT if known else Standing.GAP
        return Standing.NEXT if before <= last else Standing.GAP

    def resume(self, partition: int, place: Place) -> None:
        """A reader comes back: it was given these."""
        for (publisher, chain), number in place.given.items():
            self._last[publisher, partition, chain] = number

    def took(self, message: VerifiedMessage) -> None:
        """A message was given to the application."""
        placed = place(message)
        chain, number = placed.chain, placed.number
        last = self._last.pop(chain, number)
        self._last[chain] = max(last, number)
        if message.id.partition in self.logged:
            told = self._told.setdefault(chain, DuplicateDetector(RANGES_MAX))
            told.mark(placed.before, number)
        if len(self._last) > CHAINS_MAX:
            self._forget(next(iter(self._last)))

    def _forget(self, chain: StreamChain) -> None:
        self._told.pop(chain, None)
        publisher, partition, name = chain
        end = (self._last.pop(chain), publisher, name)
        self._floor[partition] = max(end, self._floor.get(partition, end))
