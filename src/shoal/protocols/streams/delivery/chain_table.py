"""What a node has seen of a stream, and delivered: per chain, and chains in bounded number.

A chain of which everything came, from its first message on and in order, is known by its newest
number alone: that is nearly all of them, and a simulation has millions. Any other has a
`ChainState`, until its gaps are filled.

A chain may be forgotten only when all it holds is stale, since stale messages are refused anyway,
and those that storage has are none of ours from then on; while the table is full of fresh chains,
new ones are refused. So no flood of chains can make the node take a message twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from heapq import nlargest
from operator import itemgetter

import msgspec

from shoal.base.ids import NodeId
from shoal.base.units import KIB, MS_NS, S_NS
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.streams.config import HEADS_CHAINS_MAX, NodeConfig
from shoal.protocols.streams.messages import Head
from shoal.protocols.streams.signed_message import (
    BEGINNING,
    Chain,
    Number,
    PlacedMessage,
    before_of,
)

# Room is asked for before the signature is checked, so refusing what somebody made up must cost
# next to nothing: what is full is searched for stale chains at most this often.
SEARCH_NS = 1 * S_NS


class ChainState(msgspec.Struct, gc=False):
    """A chain that is not whole: what was seen of it, and what was delivered."""

    detector: DuplicateDetector
    order: ChainOrder

    def is_whole(self) -> bool:
        """Whether its newest number says it all."""
        detector, order = self.detector, self.order
        return (
            detector.is_whole(BEGINNING)
            and order.last == detector.newest
            and order.waiting is None
            and not order.gap
        )


class ChainTable:
    """The chains of one stream."""

    __slots__ = (
        "_config",
        "_crowd",
        "_newest",
        "_old_ms",
        "_searched_ns",
        "_since_ms",
        "_states",
        "_waiting_bytes",
        "_waiting_bytes_of",
        "_wall",
    )

    def __init__(
        self, config: NodeConfig, since_ms: int = 0, wall: WallClock | None = None
    ) -> None:
        """`since_ms` is when this node came, in its monotonic time."""
        self._config = config
        self._wall = WallClock() if wall is None else wall
        self._since_ms = since_ms
        self._old_ms = since_ms - config.recent_ns // MS_NS  # by most publishers' clocks
        self._waiting_bytes = 0  # of all chains
        self._waiting_bytes_of: dict[NodeId, int] = {}  # of each publisher with any
        self._newest: dict[Chain, Number] = {}  # of chains that are whole and delivered
        self._states: dict[Chain, ChainState] = {}  # of all others
        self._crowd: Counter[NodeId] | None = None  # chains of each publisher, when many are there
        self._searched_ns = -SEARCH_NS

    @property
    def baseline(self) -> Number:
        """Where our own time in the stream begins, and with it that of every chain of which we are
        given nothing older: a message that was under way when we came is where its chain begins.
        Later only where chains were forgotten, of which nobody could tell any more what we had.
        It moves with the time of day when that is set, as do the timestamps that we take."""
        return (self._since_ms + self._wall.offset_ns // MS_NS, 0)

    # Seen

    def seen(self, chain: Chain, number: Number) -> bool | None:
        """Whether a position was taken or counts as seen; None if nothing of the chain was."""
        newest = self._newest.get(chain)
        if newest is not None:
            return number <= newest
        state = self._states.get(chain)
        return None if state is None else state.detector.seen(number)

    def knows(self, chain: Chain) -> bool:
        """Whether anything of a chain was seen."""
        return chain in self._newest or chain in self._states

    def take(self, message: PlacedMessage) -> bool:
        """Mark a verified message as seen; False if it was before. Ask for room before."""
        chain, before, number = message.chain, message.before, message.number
        newest = self._newest.get(chain)
        if newest is not None:
            if number <= newest:
                return False
            if before == newest:  # the usual case
                self._newest[chain] = number
                return True
        elif before == BEGINNING and chain not in self._states:
            self._newest[chain] = number
            self._added(chain)
            return True
        state = self._state(chain, number)
        newest = state.detector.newest
        old = (self._old_ms + self._wall.offset_ns // MS_NS, 0)
        if newest < old <= number and BEGINNING < newest < before:
            # What we had was a copy from long before our time. Else it would have us wait for all
            # that came since; of a publisher whose clock is behind, all is as old.
            state.order.baseline = self.baseline
        return state.detector.mark(before, number)

    def is_in_order(self, chain: Chain) -> bool:
        """Whether all of a chain came, and came in order: what was just taken is the next."""
        return chain in self._newest

    def is_whole(self, chain: Chain) -> bool:
        """Whether nothing is missing of a chain, as far as it is ours to have."""
        if chain in self._newest:
            return True
        state = self._states[chain]
        return state.detector.is_whole(state.order.baseline)

    # Delivered

    def ready(self, delivery: Delivery) -> list[Delivery]:
        """What can be delivered, in order, now that a message was taken of a chain that had not
        come in order."""
        chain = delivery.message.chain
        state = self._states[chain]
        order = state.order
        waiting_bytes = order.waiting_bytes
        ready = order.arrived(delivery)
        if order.waiting_bytes != waiting_bytes:
            self._count_waiting(chain, order.waiting_bytes - waiting_bytes)
        if state.is_whole():
            del self._states[chain]
            self._newest[chain] = state.detector.newest
        return ready

    def give_up(self, chain: Chain, upto: Number) -> list[Delivery]:
        """What is missing of a chain up to a position will not come any more."""
        if not self.knows(chain):
            return []
        state = self._state(chain, upto)
        state.detector.abandon(upto)
        waiting_bytes = state.order.waiting_bytes
        ready = state.order.given_up(upto)
        self._count_waiting(chain, state.order.waiting_bytes - waiting_bytes)
        return ready

    def too_much_waits_for(self, chain: Chain) -> Number | None:
        """Up to where a chain has to be given up, if too much waits in it, or in all of them, or in
        those of its publisher: one that makes gaps for sport takes no more than half."""
        state = self._states.get(chain)
        if state is None or state.order.waiting is None:
            return None
        config = self._config
        crowded = (
            state.order.waiting_bytes > config.waiting_bytes_per_chain_max
            or self._waiting_bytes > config.waiting_bytes_max
            or 2 * self._waiting_bytes_of.get(chain[0], 0) > config.waiting_bytes_max
        )
        return state.order.waited_for() if crowded else None

    def _count_waiting(self, chain: Chain, more_bytes: int) -> None:
        self._waiting_bytes += more_bytes
        of_publisher = self._waiting_bytes_of.pop(chain[0], 0) + more_bytes
        if of_publisher:
            self._waiting_bytes_of[chain[0]] = of_publisher

    def begin_delivery(self) -> None:
        """Subscribers came to a stream that we were in before: each chain goes on from here."""
        for state in self._states.values():
            state.order.begin(state.detector.newest)

    # Missing

    def gaps(self, chain: Chain) -> list[tuple[Number, Number]]:
        """What is missing of a chain between what was seen, as ranges (after, upto]."""
        state = self._states.get(chain)
        return [] if state is None else state.detector.gaps(state.order.baseline)

    def is_ours(self, chain: Chain, number: Number) -> bool:
        """Whether a position that was not seen may be taken however old it is: it lies in our time,
        and nothing was forgotten that would tell it from a replay."""
        return number > self._baseline(chain)

    def newest(self, chain: Chain) -> Number:
        """The highest position seen of a chain, or where our time in it begins."""
        newest = self._newest.get(chain)
        if newest is not None:
            return newest
        state = self._states.get(chain)
        return self.baseline if state is None else max(state.order.baseline, state.detector.newest)

    def heads(self, now_ns: int) -> list[Head]:
        """How far each chain is whose newest message others would still take; of the newest
        chains, if there are too many."""
        oldest = (self._oldest_fresh_ms(now_ns), 0)
        heads = [head for head in self._all_newest() if head[1] >= oldest]
        return nlargest(HEADS_CHAINS_MAX, heads, key=itemgetter(1))

    def is_newest(self, head: Head) -> bool:
        """Whether nothing newer was seen of a chain."""
        chain, number = head
        newest = self._newest.get(chain)
        if newest is None:
            state = self._states.get(chain)
            return state is not None and state.detector.newest == number
        return newest == number

    def lacking(self, heads: Sequence[Head], now_ns: int) -> list[Head]:
        """What of all that somebody else has seen we should have, and have not."""
        newest = self._newest.get
        ahead = [head for head in heads if head[1] > newest(head[0], BEGINNING)]  # hardly any
        return [head for head in ahead if self._lacks(*head, now_ns)]

    def _lacks(self, chain: Chain, number: Number, now_ns: int) -> bool:
        if self.seen(chain, number):
            return False
        if number <= self._baseline(chain):
            return False
        return self.is_timely(number, now_ns)

    def is_timely(self, number: Number, now_ns: int) -> bool:
        """Whether a position is one that we would take now: neither stale, nor in the future, of
        which nobody can have a message."""
        if number[0] < self._oldest_fresh_ms(now_ns):
            return False
        return number[0] * MS_NS <= self._wall.read(now_ns) + self._config.future_ns

    # Bounds

    def has_room(self, chain: Chain, now_ns: int) -> bool:
        """Whether a chain is there or may be added, forgetting stale chains if need be."""
        if 2 * (len(self._newest) + len(self._states)) < self._config.chains_per_stream_max:
            return True  # the usual case: asked for every message, so without a look at the chain
        if self.knows(chain):
            return True
        if self._may_crowd(chain[0]):
            return True
        if now_ns - self._searched_ns < SEARCH_NS:
            return False
        self._searched_ns = now_ns
        if self._wall.is_settled(now_ns, self._config.freshness_ns):  # or what is fresh would go
            self._forget_stale(now_ns)
        return self._may_crowd(chain[0])

    def chain_count(self) -> int:
        """How many chains are held."""
        return len(self._newest) + len(self._states)

    def _may_crowd(self, publisher: NodeId) -> bool:
        if self._crowd is None:
            self._crowd = Counter([chain[0] for chain in (*self._newest, *self._states)])
        if self.chain_count() >= self._config.chains_per_stream_max:
            return False
        return self._crowd[publisher] < self._config.chains_per_publisher_max

    def _forget_stale(self, now_ns: int) -> None:
        oldest_fresh_ms = self._oldest_fresh_ms(now_ns)
        for chain, number in self._all_newest():
            if number[0] < oldest_fresh_ms:
                self._newest.pop(chain, None)
                state = self._states.pop(chain, None)
                if state is not None:
                    self._count_waiting(chain, -state.order.waiting_bytes)
        self._since_ms = max(self._since_ms, (now_ns - self._config.freshness_ns) // MS_NS)
        self._crowd = None

    def _all_newest(self) -> list[Head]:
        broken = [(chain, state.detector.newest) for chain, state in self._states.items()]
        return [*self._newest.items(), *broken]

    def _oldest_fresh_ms(self, now_ns: int) -> int:
        return (self._wall.read(now_ns) - self._config.freshness_ns) // MS_NS

    def _added(self, chain: Chain) -> None:
        if self._crowd is not None:
            self._crowd[chain[0]] += 1

    def _baseline(self, chain: Chain) -> Number:
        if chain in self._newest:
            return BEGINNING
        state = self._states.get(chain)
        return self.baseline if state is None else state.order.baseline

    def _state(self, chain: Chain, first: Number) -> ChainState:
        """The state of a chain that is not whole, or not any more, or new with this position."""
        state = self._states.get(chain)
        if state is not None:
            return state
        newest = self._newest.pop(chain, BEGINNING)
        baseline = BEGINNING
        if newest == BEGINNING:
            self._added(chain)
            baseline = min(first, self.baseline)
        detector = DuplicateDetector(self._config.ranges_per_chain_max, newest=newest)
        order = ChainOrder(baseline, last=newest)
        self._states[chain] = ChainState(detector, order)
        return self._states[chain]


# Duplicate detection: which positions of a chain have been seen.
#
# A chain's messages each name the one before, so a message at n after p says that nothing lies
# between them: (p, n] is seen, and the first message of a chain says that nothing came before.
# Without gaps, one range holds a chain's whole past, and a detector is no more than its two ends.
# At most `ranges_max` ranges are kept; below the lowest one dropped everything counts as seen, for
# a forgotten range must not let an old message in again.


class DuplicateDetector(msgspec.Struct, gc=False):
    """Seen positions of one chain, as sorted disjoint ranges (start, end]."""

    ranges_max: int
    start: Number = BEGINNING
    newest: Number = BEGINNING
    """The last range; newest is the highest position seen."""
    older: tuple[list[Number], list[Number]] | None = None
    """Starts and ends of the ranges below it, if there are any."""
    floor: Number = BEGINNING

    def seen(self, number: Number) -> bool:
        """Whether a position was marked, or lies below what is remembered."""
        if number > self.newest:
            return False
        if number > self.start or number <= self.floor:
            return True
        if self.older is None:
            return False
        starts, ends = self.older
        at = bisect_left(ends, number)
        return at < len(ends) and number > starts[at]

    def mark(self, before: Number, number: Number) -> bool:
        """Mark (before, number]; False if number was seen already."""
        newest = self.newest
        if before == newest and number > newest:  # in order: the usual case
            self.newest = number
            return True
        if self.seen(number):
            return False
        self._merge(before_of(before, number), number)
        return True

    def abandon(self, upto: Number) -> None:
        """Whatever is missing up to a position will not be asked for again: it counts as seen."""
        self._merge(BEGINNING, upto)

    def is_whole(self, baseline: Number) -> bool:
        """Whether nothing is missing between the baseline and the newest: the usual case."""
        return self.older is None and self.start <= baseline

    def gaps(self, baseline: Number) -> list[tuple[Number, Number]]:
        """Ranges (after, upto] above the baseline that are missing between those seen."""
        ranges = self.ranges
        missing = [(ranges[i][1], ranges[i + 1][0]) for i in range(len(ranges) - 1)]
        floor = max(baseline, self.floor)
        if ranges and ranges[0][0] > floor:
            missing.insert(0, (floor, ranges[0][0]))
        return [(max(after, floor), upto) for after, upto in missing if upto > floor]

    def _merge(self, before: Number, number: Number) -> None:
        starts, ends = self.older or ([], [])
        if self.newest > BEGINNING:
            starts.append(self.start)
            ends.append(self.newest)
        # Ranges that touch (before, number] melt into it. The one that follows number cannot
        # start before it, or number would have been seen.
        low = bisect_left(ends, before)
        high = low
        while high < len(ends) and starts[high] <= number:
            high += 1
        start, end = before, number
        if low < high:
            start, end = min(start, starts[low]), max(end, ends[high - 1])
        starts[low:high] = [start]
        ends[low:high] = [end]
        if len(ends) > self.ranges_max:
            self.floor = ends.pop(0)
            starts.pop(0)
        self.start, self.newest = starts.pop(), ends.pop()
        self.older = (starts, ends) if starts else None

    @property
    def ranges(self) -> list[tuple[Number, Number]]:
        """The ranges, oldest first."""
        older = [] if self.older is None else list(zip(*self.older, strict=True))
        return older if self.newest == BEGINNING else [*older, (self.start, self.newest)]


# Delivery in chain order.
#
# A message is delivered once the one before it was. What comes too early waits; when a gap is given
# up, the next message is delivered with a note that something is missing before it. What comes
# after its place was given up is late, and dropped: order is kept, and the gap was told. How much
# waits in all chains of a stream is bounded by `chains.py`.


WAITING_BYTES_MIN = 1 * KIB  # what the smallest message takes while it waits, with all its parts


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A message whose turn it is."""

    message: PlacedMessage
    hops: int
    age_us: int
    gap_before: bool = False


class ChainOrder(msgspec.Struct, gc=False):
    """Puts the messages of one chain in order for the local subscribers."""

    baseline: Number
    """Whatever lies before our own beginning in the chain is history, and no gap."""
    last: Number = BEGINNING
    """What was delivered, also of what was under way when we joined."""
    gap: bool = False
    """Something was given up before the next message."""
    waiting: dict[Number, Delivery] | None = None
    waiting_bytes: int = 0

    def arrived(self, delivery: Delivery) -> list[Delivery]:
        """A message came: what can be delivered now, in order."""
        message, last = delivery.message, self.last
        number = message.number
        if number <= last:
            return []
        # In order; or under way when we joined, where nothing can be missed.
        floor = last if last > self.baseline else self.baseline
        if message.before <= floor or number <= floor:
            taken = self._take(delivery)
            return [taken] if self.waiting is None else [taken, *self._drain()]
        if self.waiting is None:
            self.waiting = {}
        self.waiting[number] = delivery
        self.waiting_bytes += _cost_bytes(delivery)
        return []

    def waited_for(self) -> Number | None:
        """Up to where something must come, or be given up, before any that waits has its turn."""
        waiting = self.waiting
        return None if waiting is None else waiting[min(waiting)].message.before

    def begin(self, after: Number) -> None:
        """Subscribers come only now: what was seen before is none of theirs."""
        self.last = max(self.last, after)

    def given_up(self, upto: Number) -> list[Delivery]:
        """Nothing up to a position will come any more."""
        if upto > max(self.last, self.baseline):
            self.last, self.gap = upto, True
        return self._drain()

    def _drain(self) -> list[Delivery]:
        ready: list[Delivery] = []
        waiting = self.waiting or {}
        for number in sorted(waiting):
            delivery = waiting[number]
            if delivery.message.before > max(self.last, self.baseline):
                break
            del waiting[number]
            self.waiting_bytes -= _cost_bytes(delivery)
            if number > self.last:
                ready.append(self._take(delivery))
        self.waiting = waiting or None
        return ready

    def _take(self, delivery: Delivery) -> Delivery:
        message, last = delivery.message, self.last
        self.last = message.number
        # Behind the last one, but not the next: what lies between was said to be history.
        if not self.gap and (message.before <= last or last == BEGINNING):
            return delivery
        self.gap = False
        return msgspec.structs.replace(delivery, gap_before=True)


def _cost_bytes(delivery: Delivery) -> int:
    return WAITING_BYTES_MIN + len(delivery.message.signed)
