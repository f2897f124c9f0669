"""Finding and filling gaps, per stream, with the help of neighbours, and then of storage.

Two signs tell of a message that was missed: a later one of its chain names it as previous, or a
neighbour's Heads name a position that we have not seen. Either waits a moment, for the message may
still come over another path. Then one neighbour after the other is asked for the missing range; it
answers with the messages themselves, as if it had just got them, and a FillDone. If `storage_tries`
did not help, or there is no neighbour to ask, the history machine of this node is asked once, which
knows the storage nodes of the stream. After `fill_tries`, and when storage has answered or had its
time, the gap is given up, and said to be one, unless some of it is here and being checked; who has
no neighbour waits for one as long as for storage. Each step forward begins all of it anew; but
while storage gives what neighbours lack, it alone is asked, for one page after the other.

What follows a gap waits for it, so several that nobody can fill must not each take that long. When
`storage_tries` did not help, the next gaps of the chain are asked for along with the first one, and
need not be asked for again when that is given up; and storage that has answered nothing in its time
is not asked again for `storage_away_ns`.

Neighbours exchange Heads when a link becomes active, and when a chain goes quiet: so also the last
message of a burst is not missed for long, nor one that slipped through while the overlay changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from shoal.base.containers import RateLimit
from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.base.units import KIB, MS_NS, US_NS
from shoal.identity.message_body import Position
from shoal.kernel.effects import Effect, Send, SetTimer
from shoal.kernel.records import GapAbandoned, GapFound, Rejected
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.streams.commands import FilledFromStorage, FillFromStorage
from shoal.protocols.streams.config import HEADS_CHAINS_MAX, HEADS_MAX, NodeConfig
from shoal.protocols.streams.delivery.chain_feeds import Feeds
from shoal.protocols.streams.delivery.chain_table import ChainTable, Delivery
from shoal.protocols.streams.delivery.replay_buffer import RecentMessages
from shoal.protocols.streams.messages import Fill, FillDone, Flood, Head, Heads
from shoal.protocols.streams.signed_message import Chain, Number

# What one neighbour may have us send again, of what we announced: the newest of a thousand chains
# when a feed falls silent, and then 1 MiB/s.
WANTS_BURST_KIB = 4096
WANTS_REFILL_NS = 1 * MS_NS


class Repair:
    """Keeps one stream's history at this node free of gaps, as far as others can help."""

    def __init__(
        self,
        stream: StreamId,
        table: ChainTable,
        recent: RecentMessages,
        config: NodeConfig,
        node: NodeId | None = None,
        feeds: Feeds | None = None,
        wall: WallClock | None = None,
    ) -> None:
        """Node is where storage can be asked for: this one, if it has a machine for that."""
        self._node = node
        self._stream = stream
        self._feeds = feeds or Feeds(stream)
        self._table = table
        self._recent = recent
        self._config = config
        self._wall = WallClock() if wall is None else wall
        self._untimely: dict[Chain, tuple[Number, int]] = {}  # told of, and when: by a wrong clock
        self._broken: dict[Chain, Broken] = {}
        self._storage_heard_ns = -1  # when it answered last
        self._storage_away_until_ns = 0
        self._asking = 0
        self._untold: list[Head] = []  # of quiet chains: told next time, at most one for each chain
        self._wants = RateLimit(WANTS_BURST_KIB, WANTS_REFILL_NS, config.fill_peers_max)
        burst, refill_ns = config.fill_burst, config.fill_refill_ns
        self._answers = RateLimit(burst, refill_ns, config.fill_peers_max)
        # A quarter of what a neighbour answers is for gaps that we see: Heads nobody has signed.
        self._told_asks = RateLimit(3 * burst // 4, 4 * refill_ns // 3, config.fill_peers_max)

    def handle(self, peer: NodeId, message: Heads | Fill | FillDone, now_ns: int) -> list[Effect]:
        """What a neighbour says."""
        match message:
            case Heads():
                return self.heads(peer, message, now_ns)
            case Fill():
                return self.fill(peer, message, now_ns)
            case FillDone():
                return self.answered(peer, message, now_ns)

    # Noticing

    def seen(self, chain: Chain, now_ns: int) -> list[Effect]:
        """A message of a chain was taken: is anything missing before it?"""
        broken = self._broken.get(chain)
        if broken is not None:
            if broken.page_ends is None or not self._table.seen(chain, broken.page_ends):
                return []
            return [SetTimer(("repair", self._stream), 0)]  # the next page
        gaps = self._table.gaps(chain)
        if not gaps:
            return []
        return self._notice(chain, Broken(now_ns), at_once=gaps[0][0] == self._table.baseline)

    def heads(self, peer: NodeId, heads: Heads, now_ns: int) -> list[Effect]:
        """A neighbour tells how far it is."""
        for chain, number in heads.chains:
            if not self._table.is_timely(number, now_ns) and not self._table.seen(chain, number):
                self._untimely.pop(chain, None)
                self._untimely[chain] = number, now_ns
                if len(self._untimely) > HEADS_CHAINS_MAX:
                    del self._untimely[next(iter(self._untimely))]
        return self._told(heads.chains, now_ns)

    def _told(self, heads: Sequence[Head], now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for chain, number in self._table.lacking(heads, now_ns):
            broken = self._broken.get(chain)
            if broken is None:
                # Nobody has signed what Heads tell of: half of the room is for gaps that we see.
                if 2 * len(self._broken) >= self._config.broken_max:
                    continue
                begins = self._table.newest(chain) == self._table.baseline
                effects.extend(self._notice(chain, Broken(now_ns, number), at_once=begins))
            elif broken.upto is None or broken.upto < number:
                broken.upto = number
        return effects

    def _look_again(self, now_ns: int) -> list[Effect]:
        """Our clock was set: what we would not have taken before, neighbours may still have, and
        tell of it once only."""
        since_ns = now_ns - self._config.recent_ns
        told = [(chain, n) for chain, (n, told_ns) in self._untimely.items() if told_ns > since_ns]
        timely = [head for head in told if self._table.is_timely(head[1], now_ns)]
        for chain, _ in timely:
            del self._untimely[chain]
        return self._told(timely, now_ns)

    def _notice(self, chain: Chain, broken: Broken, *, at_once: bool) -> list[Effect]:
        """At once: what passed before we had a neighbour comes over no other path."""
        if len(self._broken) >= self._config.broken_max:
            return []
        self._broken[chain] = broken
        effects = self._feeds.resume(chain)
        if at_once:
            broken.since_ns -= self._config.gap_wait_ns
            return [*effects, SetTimer(("repair", self._stream), 0)]
        if len(self._broken) > 1:
            return effects
        return [*effects, SetTimer(("repair", self._stream), self._config.gap_wait_ns)]

    # Asking

    def tick(
        self,
        active: Sequence[NodeId],
        now_ns: int,
        under_way: Callable[[], Iterable[Head]] = tuple,
    ) -> tuple[list[Effect], list[Delivery]]:
        """Look after every broken chain: healed, waiting, to be asked for, or given up; what
        waited behind a gap that was given up is delivered. What is under way has come, and waits
        for its check, or for the registry."""
        effects: list[Effect] = []
        deliveries: list[Delivery] = []
        here: list[Head] | None = None
        for chain, broken in list(self._broken.items()):
            missing = self._missing(chain, broken)
            if missing is None:
                del self._broken[chain]
                continue
            self._look(chain, broken, missing, now_ns)
            if active:
                broken.alone_ns = None
            elif broken.alone_ns is None:
                broken.alone_ns = now_ns
            if self._is_waiting(broken, now_ns):
                continue
            tired = not active or broken.tries >= self._config.storage_tries
            awaits_storage = self._awaits_storage(broken, active, now_ns)
            if tired and awaits_storage:
                effects.extend(self._ask_storage(chain, broken, missing, now_ns))
                if broken.storage_gives:
                    continue
            if active and broken.tries < self._config.fill_tries:
                effects.extend(self._ask(chain, broken, missing, active, now_ns))
            elif (broken.storage_done or not awaits_storage) and not self._is_alone(broken, now_ns):
                if not self._wall.is_settled(now_ns, self._config.clock_settle_ns):
                    broken.unsure = True
                    continue
                if broken.unsure:
                    broken.unsure, broken.tries, broken.storage_done = False, 0, False
                    broken.storage_ns, broken.storage_again_ns = None, 0
                    continue
                if here is None:
                    here = list(under_way())
                if broken.holds_off(chain, missing, here, now_ns, self._config.freshness_ns):
                    continue
                given_up, ready = self._give_up(chain, broken, missing, now_ns)
                effects.extend(given_up)
                deliveries.extend(ready)
        if self._broken:
            effects.append(SetTimer(("repair", self._stream), self._config.repair_tick_ns))
        return effects, deliveries

    def _is_alone(self, broken: Broken, now_ns: int) -> bool:
        """Whether there is nobody to ask, and not for long: who comes may have it."""
        alone_ns = broken.alone_ns
        return alone_ns is not None and now_ns - alone_ns < self._config.storage_wait_ns

    def _awaits_storage(self, broken: Broken, active: Sequence[NodeId], now_ns: int) -> bool:
        """Whether it may be asked, or may still answer. Who has no neighbour has nobody else."""
        if self._node is None:
            return False
        if broken.storage_ns is not None:
            return self._has_time(broken, now_ns)
        return now_ns >= self._storage_away_until_ns or not active

    def _give_up(
        self, chain: Chain, broken: Broken, missing: tuple[Number, Number], now_ns: int
    ) -> tuple[list[Effect], list[Delivery]]:
        del self._broken[chain]
        if broken.storage_ns is not None and self._storage_heard_ns < broken.storage_ns:
            self._storage_away_until_ns = now_ns + self._config.storage_away_ns
        storage_is_there = self._node is not None and now_ns >= self._storage_away_until_ns
        gaps = self._table.gaps(chain)
        if missing not in gaps:  # Heads may lie of what lies behind those
            return [GapAbandoned(self._stream, chain[0], chain[2])], []
        # One after the other: what lies between them has its turn in between.
        along = missing[1] if broken.along is None else broken.along
        hopeless = gaps[:1] if storage_is_there else [gap for gap in gaps if gap[1] <= along]
        deliveries: list[Delivery] = []
        for _, upto in hopeless:
            deliveries.extend(self._table.give_up(chain, upto))
        effects: list[Effect] = [GapAbandoned(self._stream, chain[0], chain[2])] * len(hopeless)
        effects.extend(self.seen(chain, now_ns))  # there may be another gap behind these
        following = self._broken.get(chain)
        if following is not None and gaps[len(hopeless)][1] <= along:
            following.tries, following.along = self._config.fill_tries, along
            following.since_ns -= self._config.gap_wait_ns
        return effects, deliveries

    def _is_waiting(self, broken: Broken, now_ns: int) -> bool:
        if broken.page_ends is not None:
            return True
        if broken.storage_gives:
            return False  # whatever a neighbour was asked for
        if broken.asked is not None:
            return now_ns - broken.asked_ns < self._config.fill_wait_ns
        return now_ns - broken.since_ns < self._config.gap_wait_ns

    def _look(
        self, chain: Chain, broken: Broken, missing: tuple[Number, Number], now_ns: int
    ) -> None:
        """Less is missing than before: it gets better, and all helpers may be asked again. What
        somebody says to have sent does not count."""
        before, broken.range = broken.range, missing
        if before is not None and (missing[0] > before[0] or missing[1] < before[1]):
            broken.tries = self._config.storage_tries if broken.storage_gives else 0
            broken.along = None
            broken.storage_ns, broken.storage_again_ns, broken.storage_done = None, 0, False
        if not self._has_time(broken, now_ns):
            broken.storage_gives = False
        if broken.page_ends is None:
            return
        if self._table.seen(chain, broken.page_ends):
            broken.page_ends = None
        elif now_ns - broken.page_ns >= self._config.fill_wait_ns:
            broken.page_ends, broken.storage_gives = None, False  # little came of it
            broken.storage_again_ns = now_ns

    def _has_time(self, broken: Broken, now_ns: int) -> bool:
        """Whether storage may still help."""
        if broken.storage_ns is None:
            return True
        return now_ns - broken.storage_ns < self._config.storage_wait_ns

    def _missing(self, chain: Chain, broken: Broken) -> tuple[Number, Number] | None:
        """The first range to ask for, as (after, upto]."""
        gaps = self._table.gaps(chain)
        if gaps:
            return gaps[0]
        newest = self._table.newest(chain)
        if broken.upto is not None and newest < broken.upto:
            return (newest, broken.upto)
        return None

    def _ask(
        self,
        chain: Chain,
        broken: Broken,
        missing: tuple[Number, Number],
        active: Sequence[NodeId],
        now_ns: int,
    ) -> list[Effect]:
        # One after the other, each time another: a neighbour that lacks it, too, costs a round.
        # Counted for each chain: several in step would each ask the same neighbour every time.
        if broken.tries == 0:
            self._asking += 1
            broken.first = self._asking
        peer = active[(broken.first + broken.tries) % len(active)]
        if broken.upto == missing[1] and not self._table.gaps(chain):
            if not self._told_asks.allow(peer, now_ns):
                return []  # with the next tick
            self._broken[chain] = self._broken.pop(chain)  # and then the others first
        gaps = [missing]
        if broken.tries >= self._config.storage_tries:
            gaps = self._company(chain, broken, missing)
        broken.tries += 1
        broken.asked, broken.asked_ns, broken.answers_due = peer, now_ns, len(gaps)
        fills = [Send(Fill(self._stream, *chain, *ends(gap)), (peer,)) for gap in gaps]
        found = [GapFound(self._stream, chain[0], chain[2])] if broken.tries == 1 else []
        return [*fills, *found]

    def _company(
        self, chain: Chain, broken: Broken, missing: tuple[Number, Number]
    ) -> list[tuple[Number, Number]]:
        """It looks as if nobody had it: ask for the next gaps of the chain as well."""
        gaps = self._table.gaps(chain)
        if missing not in gaps:
            return [missing]
        if broken.along is not None:
            gaps = [gap for gap in gaps if gap[1] <= broken.along]
        gaps = gaps[: self._config.gaps_at_once]
        broken.along = gaps[-1][1]
        return gaps

    def _ask_storage(
        self, chain: Chain, broken: Broken, missing: tuple[Number, Number], now_ns: int
    ) -> list[Effect]:
        if self._node is None or broken.storage_done or now_ns < broken.storage_again_ns:
            return []
        if broken.storage_ns is None:
            broken.storage_ns = now_ns
        broken.storage_again_ns = broken.storage_ns + self._config.storage_wait_ns
        gap = FillFromStorage(self._stream, *chain, *ends(missing))
        first = broken.tries == 0 and broken.storage_ns == now_ns
        found = [GapFound(self._stream, chain[0], chain[2])] if first else []
        return [Send(gap, (self._node,)), *found]

    def storage_answered(self, filled: FilledFromStorage, now_ns: int) -> list[Effect]:
        """Storage has given what it has; whether it helped is seen once that was checked."""
        if filled.asked:
            self._storage_heard_ns, self._storage_away_until_ns = now_ns, 0
        broken = self._broken.get((filled.publisher, filled.partition, filled.chain))
        if broken is None or not covers(filled, broken.range):
            return []  # about a gap of before
        if filled.last is not None:
            broken.page_ends = (filled.last.timestamp_ms, filled.last.sequence)
            broken.page_ns, broken.storage_gives = now_ns, True
        if filled.found:
            return []
        broken.storage_gives, broken.storage_done = False, filled.asked
        broken.storage_again_ns = now_ns + self._config.fill_wait_ns  # nobody was there
        return [SetTimer(("repair", self._stream), self._config.repair_tick_ns)]

    def answered(self, peer: NodeId, done: FillDone, now_ns: int) -> list[Effect]:
        """A neighbour has sent what it has: if that was not enough, ask another at once."""
        chain = (done.publisher, done.partition, done.chain)
        broken = self._broken.get(chain)
        if broken is None or broken.asked != peer:
            return [Rejected(peer, "unasked-fill")]
        broken.answers_due -= 1
        if broken.answers_due:
            return []
        broken.asked = None
        return [SetTimer(("repair", self._stream), self._config.repair_tick_ns)]

    def relieve(self, chain: Chain) -> tuple[list[Effect], list[Delivery]]:
        """Give up what a chain waits for, while too much waits; what waited is delivered."""
        effects: list[Effect] = []
        deliveries: list[Delivery] = []
        while (upto := self._table.too_much_waits_for(chain)) is not None:
            effects.append(GapAbandoned(self._stream, chain[0], chain[2]))
            deliveries.extend(self._table.give_up(chain, upto))
        return effects, deliveries

    # Answering

    def fill(self, peer: NodeId, fill: Fill, now_ns: int) -> list[Effect]:
        """A neighbour misses something: send it what we have."""
        if not self._answers.allow(peer, now_ns):
            return [Rejected(peer, "too-many-fills")]
        chain = (fill.publisher, fill.partition, fill.chain)
        after = (fill.after.timestamp_ms, fill.after.sequence)
        upto = (fill.upto.timestamp_ms, fill.upto.sequence)
        found = self._recent.between(chain, after, upto)
        now_us = self._wall.read(now_ns) // US_NS
        effects: list[Effect] = [Send(Flood(0, 0, now_us, signed), (peer,)) for signed in found]
        done = FillDone(self._stream, fill.publisher, fill.partition, fill.chain, len(found))
        return [*effects, Send(done, (peer,))]

    def send_again(self, peer: NodeId, head: Head, now_ns: int) -> list[Effect]:
        """A neighbour wants the message that we told it the name of."""
        (publisher, partition, chain), (timestamp_ms, sequence) = head
        id = MessageId(self._stream, partition, timestamp_ms, sequence, publisher, chain)
        found = self._recent.find(id)
        if found is None:
            return [Rejected(peer, "unknown-want")]
        if not self._wants.allow(peer, now_ns, 1 + len(found.signed) // KIB):
            return [Rejected(peer, "too-many-wants")]
        now_us = self._wall.read(now_ns) // US_NS
        return [Send(Flood(0, 0, now_us, found.signed), (peer,))]

    def greet(self, peers: tuple[NodeId, ...], now_ns: int) -> list[Effect]:
        """Tell new neighbours how far we are in every chain; they are asked for what we miss."""
        for broken in self._broken.values() if peers else ():
            if self._has_time(broken, now_ns):
                broken.tries = min(broken.tries, self._config.storage_tries)
        return self._tell(peers, self._table.heads(now_ns)) if peers else []

    def tell_quiet(self, peers: tuple[NodeId, ...], now_ns: int) -> list[Effect]:
        """Tell neighbours the last messages of chains that have just gone quiet, once: while a
        chain goes on, each message shows whether the one before it was missed."""
        came = self._recent.since(now_ns - self._config.heads_ns)
        quiet = [head for head in self._untold + came if self._table.is_newest(head)]
        self._untold = quiet[HEADS_CHAINS_MAX:]
        effects = self._tell(peers, quiet[:HEADS_CHAINS_MAX]) if peers else []
        if self._untimely and not self._wall.is_settled(now_ns, self._config.recent_ns):
            effects.extend(self._look_again(now_ns))
        return effects

    def _tell(self, peers: tuple[NodeId, ...], heads: Sequence[Head]) -> list[Effect]:
        chunks = [heads[at : at + HEADS_MAX] for at in range(0, len(heads), HEADS_MAX)]
        return [Send(Heads(self._stream, tuple(chunk)), peers) for chunk in chunks]


# What is known of a chain that is being repaired.


class Broken(msgspec.Struct):
    """A chain of which something is missing."""

    since_ns: int
    upto: Number | None = None  # what Heads told of beyond what we have
    tries: int = 0
    first: int = 0  # where among the neighbours asking began
    asked: NodeId | None = None
    asked_ns: int = 0
    answers_due: int = 0  # of the one who was asked
    along: Number | None = None  # up to where gaps were asked for along with the first one
    range: tuple[Number, Number] | None = None  # what was missing when it was last looked at
    alone_ns: int | None = None  # since when there is no neighbour
    held_off_ns: int | None = None  # since when it would be given up, and some of it is here
    unsure: bool = False  # it would be given up, but our clock has just been set
    storage_ns: int | None = None  # when storage was first asked
    storage_again_ns: int = 0  # when it may be asked again, if it did not answer
    storage_done: bool = False  # and it has answered
    storage_gives: bool = False  # what it answered is of use
    page_ends: Number | None = None  # with this, and is being checked
    page_ns: int = 0  # since when

    def holds_off(
        self,
        chain: Chain,
        missing: tuple[Number, Number],
        here: list[Head],
        now_ns: int,
        freshness_ns: int,
    ) -> bool:
        """Whether some of what would be given up is here, and not too old to be taken."""
        upto = missing[1] if self.along is None else max(missing[1], self.along)
        if not any(head[0] == chain and missing[0] < head[1] <= upto for head in here):
            return False
        if self.held_off_ns is None:
            self.held_off_ns = now_ns
        return now_ns - self.held_off_ns < freshness_ns


def covers(filled: FilledFromStorage, missing: tuple[Number, Number] | None) -> bool:
    """Whether all that is missing now was asked for."""
    if missing is None or filled.after is None or filled.upto is None:
        return True
    after, upto = ends(missing)
    return filled.after <= after and upto <= filled.upto


def ends(missing: tuple[Number, Number]) -> tuple[Position, Position]:
    """A range as it is asked for: there is nothing below the first position."""
    after, upto = (Position(max(0, n[0]), max(0, n[1])) for n in missing)
    return after, upto
