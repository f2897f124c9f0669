"""Chains of a stream: how many are held, which are forgotten, and that none is ever replayed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from shoal.base.ids import PARTITIONS_MAX, MessageId, NodeId
from shoal.base.units import MS_NS
from shoal.identity.message_body import Position
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.delivery.chain_table import (
    SEARCH_NS,
    ChainOrder,
    ChainState,
    ChainTable,
    Delivery,
    DuplicateDetector,
)
from shoal.protocols.streams.signed_message import BEGINNING, Chain, Number, PlacedMessage
from tests.support.streams import ALICE, BOB, CAROL, NOW_MS, NOW_NS, message_id, node, placed

SMALL = NodeConfig(
    chains_per_publisher_max=2,
    chains_per_stream_max=4,
    ranges_per_chain_max=3,
    freshness_ns=10 * MS_NS,
)


def later_ns(ms: int) -> int:
    return NOW_NS + ms * MS_NS


def seen(table: ChainTable, id: MessageId) -> bool:
    here = placed(id)
    return bool(table.seen(here.chain, here.number))


def has_room(table: ChainTable, id: MessageId, now_ns: int) -> bool:
    return table.has_room(placed(id).chain, now_ns)


def test_a_marked_message_is_seen_and_marked_once() -> None:
    table = ChainTable(SMALL)
    id = message_id(3)
    assert not seen(table, id)
    assert table.take(placed(id))
    assert seen(table, id)
    assert not table.take(placed(id))
    assert table.chain_count() == 1


def test_publisher_partition_and_chain_are_told_apart() -> None:
    table = ChainTable(NodeConfig())
    assert table.take(placed(message_id()))
    others = [message_id(publisher=ALICE), message_id(partition=1), message_id(chain="d")]
    for id in others:
        assert not seen(table, id)
        assert table.take(placed(id))
    assert table.chain_count() == 4


def test_the_previous_reference_closes_the_gap() -> None:
    table = ChainTable(SMALL)
    assert table.take(placed(message_id(9), Position(NOW_MS, 5)))
    assert seen(table, message_id(6))
    assert not seen(table, message_id(5))


def test_a_gap_begins_where_it_can_be_asked_for() -> None:
    """Fill names what lies after a position, and positions are not negative: a message of the very
    millisecond in which our time began would be asked for in vain."""
    table = ChainTable(SMALL, NOW_MS)
    table.take(placed(message_id(timestamp_ms=NOW_MS + 5), Position(NOW_MS, 0)))
    assert table.gaps(placed(message_id()).chain) == []
    unseen = placed(message_id(chain="other")).chain
    assert table.lacking([(unseen, (NOW_MS, 0))], NOW_NS) == []
    assert table.lacking([(unseen, (NOW_MS, 1))], NOW_NS) == [(unseen, (NOW_MS, 1))]
    assert min(table.baseline) >= 0


def test_a_chain_begins_with_what_was_under_way_when_we_came() -> None:
    """Whoever was given one message is told of all that follow, also of the next from before its
    own time: subscribers would see a hole that nobody speaks of."""
    table = ChainTable(SMALL, NOW_MS + 30)
    first = placed(message_id(timestamp_ms=NOW_MS + 10), Position(NOW_MS, 0))
    third = placed(message_id(timestamp_ms=NOW_MS + 40), Position(NOW_MS + 20, 0))
    assert table.take(first)
    assert table.ready(Delivery(first, 1, 0)) == [Delivery(first, 1, 0)]
    assert table.lacking([(first.chain, (NOW_MS + 20, 0))], NOW_NS)
    assert table.take(third)
    assert table.ready(Delivery(third, 1, 0)) == []
    assert table.gaps(first.chain) == [(first.number, third.before)]
    assert not table.is_whole(first.chain)


def test_a_chain_whose_first_message_was_under_way_is_ours_from_there() -> None:
    table = ChainTable(SMALL, NOW_MS + 30)
    first = placed(message_id(timestamp_ms=NOW_MS + 10))
    assert table.take(first)
    assert table.lacking([(first.chain, (NOW_MS + 20, 0))], NOW_NS)
    assert table.newest(first.chain) == first.number


def test_an_old_message_does_not_make_us_wait_for_all_since() -> None:
    config = NodeConfig(recent_ns=50 * MS_NS)
    for previous in (Position(NOW_MS, 0), None):
        table = ChainTable(config, NOW_MS + 100)
        old = placed(message_id(timestamp_ms=NOW_MS + 49), previous)
        new = placed(message_id(timestamp_ms=NOW_MS + 120), Position(NOW_MS + 90, 0))
        assert table.take(old)
        if previous is not None:
            assert table.ready(Delivery(old, 1, 0)) == [Delivery(old, 1, 0)]
        assert table.take(new)
        assert table.gaps(old.chain) == []
        assert table.ready(Delivery(new, 1, 0)) == [Delivery(new, 1, 0, gap_before=True)]


def test_after_an_old_message_what_was_missed_in_our_own_time_is_missed() -> None:
    table = ChainTable(NodeConfig(recent_ns=50 * MS_NS), NOW_MS + 100)
    old = placed(message_id(timestamp_ms=NOW_MS + 49), Position(NOW_MS, 0))
    new = placed(message_id(timestamp_ms=NOW_MS + 120), Position(NOW_MS + 110, 0))
    assert table.take(old)
    assert table.take(new)
    assert table.gaps(old.chain) == [((NOW_MS + 100, 0), (NOW_MS + 110, 0))]


@pytest.mark.parametrize("behind_ms", [0, 30_000, 90_000, 299_000])
def test_a_chain_is_whole_and_in_order_however_far_its_clock_is_behind(behind_ms: int) -> None:
    table = ChainTable(NodeConfig(), NOW_MS)
    start_ms = NOW_MS - behind_ms
    given = []
    for second in (0, 2, 1, 4):
        here, before = start_ms + 1000 * second, Position(start_ms + 1000 * (second - 1), 0)
        message = placed(message_id(timestamp_ms=here), before)
        assert table.take(message)
        given += table.ready(Delivery(message, 1, 0))
    seconds = [(each.message.number[0] - start_ms) // 1000 for each in given]
    assert seconds == [0, 1, 2]
    assert not any(each.gap_before for each in given)
    missing = ((start_ms + 2000, 0), (start_ms + 3000, 0))
    assert table.gaps(given[0].message.chain) == [missing]


# Storage


def test_what_storage_has_of_our_time_is_ours_however_old_it_is() -> None:
    table = ChainTable(NodeConfig(), NOW_MS)
    known = placed(message_id(timestamp_ms=NOW_MS + 5), Position(NOW_MS + 4, 0))
    assert table.take(known)
    unknown = placed(message_id(chain="other")).chain
    for chain in (known.chain, unknown):
        assert table.is_ours(chain, (NOW_MS + 1, 0))
        assert not table.is_ours(chain, (NOW_MS, 0))


def test_what_storage_has_of_a_chain_that_was_forgotten_is_a_replay() -> None:
    table = ChainTable(SMALL, NOW_MS - 1000)
    for name in ("a", "b"):
        table.take(placed(message_id(chain=name)))
    forgotten = placed(message_id(chain="a"))
    fresh_ms = SMALL.freshness_ns // MS_NS
    assert has_room(table, message_id(chain="c"), later_ns(fresh_ms + 1))
    assert not table.knows(forgotten.chain)
    assert not table.is_ours(forgotten.chain, forgotten.number)
    # Also when the chain goes on:
    table.take(placed(message_id(chain="a", timestamp_ms=NOW_MS + 20), Position(NOW_MS + 19, 0)))
    assert not table.is_ours(forgotten.chain, forgotten.number)
    assert table.is_ours(forgotten.chain, (NOW_MS + 19, 0))


def test_once_half_of_the_table_is_taken_a_publisher_gets_so_many_chains_and_no_more() -> None:
    table = ChainTable(SMALL)
    for chain in ("a", "b"):
        assert has_room(table, message_id(chain=chain), NOW_NS)
        table.take(placed(message_id(chain=chain)))
    assert not has_room(table, message_id(chain="c"), NOW_NS)
    assert not has_room(table, message_id(chain="a", partition=1), NOW_NS)
    assert has_room(table, message_id(1, chain="a"), NOW_NS)  # known: goes on
    assert has_room(table, message_id(publisher=BOB, chain="c"), NOW_NS)  # another publisher's


def test_up_to_half_of_the_table_may_be_one_publishers() -> None:
    table = ChainTable(NodeConfig(chains_per_publisher_max=2, chains_per_stream_max=20))
    for number in range(10):
        assert has_room(table, message_id(chain=f"c{number}"), NOW_NS)
        table.take(placed(message_id(chain=f"c{number}")))
    assert not has_room(table, message_id(chain="c10"), NOW_NS)
    for publisher in range(10):
        id = message_id(publisher=node(1000 + publisher))
        assert has_room(table, id, NOW_NS)
        table.take(placed(id))
    assert not has_room(table, message_id(publisher=node(2000)), NOW_NS), "full"


def test_a_chain_makes_room_only_when_all_of_it_is_stale() -> None:
    table = ChainTable(SMALL)
    table.take(placed(message_id(chain="a")))
    table.take(placed(message_id(chain="b", timestamp_ms=NOW_MS + 1)))
    fresh_ms = SMALL.freshness_ns // MS_NS
    assert has_room(table, message_id(chain="c"), later_ns(fresh_ms + 1))
    assert not seen(table, message_id(chain="a"))
    assert seen(table, message_id(chain="b", timestamp_ms=NOW_MS + 1))


def test_a_chain_is_kept_as_long_as_its_newest_message_is_fresh() -> None:
    table = ChainTable(SMALL)
    for chain in ("a", "b"):
        table.take(placed(message_id(chain=chain)))
    fresh_ms = SMALL.freshness_ns // MS_NS
    assert not has_room(table, message_id(chain="c"), later_ns(fresh_ms))
    assert seen(table, message_id(chain="a"))
    # What is full is not searched again before:
    assert not has_room(table, message_id(chain="c"), later_ns(fresh_ms) + SEARCH_NS - 1)
    assert has_room(table, message_id(chain="c"), later_ns(fresh_ms) + SEARCH_NS)


def test_a_publisher_may_use_every_partition_and_start_again_within_the_freshness_window() -> None:
    # Otherwise every subscriber refuses its last partitions as too many chains.
    config = NodeConfig()
    table = ChainTable(config)
    for incarnation in ("before", "after"):
        for partition in range(PARTITIONS_MAX):
            id = message_id(partition=partition, chain=incarnation)
            assert has_room(table, id, NOW_NS), (incarnation, partition)
            table.take(placed(id))


@pytest.mark.parametrize("what", ["publisher", "chain"])
def test_what_is_full_is_not_searched_through_for_every_forged_name(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Room is asked for before the signature is checked: refusing must cost less than checking.
    def named(number: int) -> MessageId:
        if what == "publisher":
            return message_id(publisher=node(1000 + number))
        return message_id(chain=f"c{number}")

    table = ChainTable(NodeConfig(chains_per_stream_max=100, chains_per_publisher_max=50))
    for number in range(100):
        table.take(placed(named(number)))
    searches: list[int] = []
    search = ChainTable._forget_stale

    def count(table: ChainTable, oldest_fresh_ms: int) -> None:
        searches.append(oldest_fresh_ms)
        search(table, oldest_fresh_ms)

    monkeypatch.setattr(ChainTable, "_forget_stale", count)
    for number in range(1000):
        assert not has_room(table, named(100 + number), NOW_NS + number)
    assert len(searches) == 1


class NaiveChains:
    """The same table with a state for every chain."""

    def __init__(self, baseline: Number) -> None:
        self.baseline = baseline
        self.states: dict[Chain, ChainState] = {}

    def state(self, chain: Chain, first: Number) -> ChainState:
        order = ChainOrder(min(first, self.baseline))
        return self.states.setdefault(chain, ChainState(DuplicateDetector(3), order))


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(1, 8), st.integers(0, 8), st.integers(0, 9)),
        max_size=60,
    )
)
def test_a_chain_known_by_its_newest_number_behaves_as_one_with_a_state(
    steps: list[tuple[str, int, int, int]],
) -> None:
    config = NodeConfig(ranges_per_chain_max=3)
    table, naive = ChainTable(config, NOW_MS + 2), NaiveChains((NOW_MS + 2, 0))
    for name, number, before, what in steps:
        previous = Position(NOW_MS + before, 0) if before else None
        message = placed(message_id(chain=name, timestamp_ms=NOW_MS + number), previous)
        chain = message.chain
        if what == 1:
            table.begin_delivery()
            for each in naive.states.values():
                each.order.begin(each.detector.newest)
            continue
        state = naive.state(chain, message.number)
        if what == 0:
            state.detector.abandon(message.number)
            if chain in table._newest or chain in table._states:
                assert table.give_up(chain, message.number) == state.order.given_up(message.number)
            else:
                del naive.states[chain]
        else:
            taken = state.detector.mark(message.before, message.number)
            assert table.take(message) == taken
            if taken:
                delivery = Delivery(message, 1, 0)
                ready = [delivery] if table.is_in_order(chain) else table.ready(delivery)
                assert ready == state.order.arrived(delivery)
                assert table.is_whole(chain) == state.detector.is_whole(state.order.baseline)
        for chain, state in naive.states.items():
            for n in range(9):
                at = (NOW_MS + n, 0)
                assert bool(table.seen(chain, at)) == state.detector.seen(at)
            if state.detector.newest != BEGINNING:
                assert table.gaps(chain) == state.detector.gaps(state.order.baseline)
                assert table.newest(chain) == max(state.order.baseline, state.detector.newest)


class Admission(RuleBasedStateMachine):
    """Messages in any order, again and again, while time passes and chains come and go.

    The gate in front of the table is the one that flooding keeps: stale messages are refused,
    unless they come out of storage and are ours, and so are chains without room.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = ChainTable(SMALL)
        self.now_ms = NOW_MS
        self.taken: set[MessageId] = set()

    @rule(
        publisher=st.sampled_from([ALICE, BOB, CAROL]),
        chain=st.sampled_from("abc"),
        age_ms=st.integers(-3, 30),
        sequence=st.integers(0, 2),
        back=st.none() | st.integers(-2, 6),
        stored=st.booleans(),
    )
    def arrives(
        self,
        publisher: NodeId,
        chain: str,
        age_ms: int,
        sequence: int,
        back: int | None,
        stored: bool,
    ) -> None:
        timestamp_ms = self.now_ms - age_ms
        id = message_id(sequence, publisher=publisher, chain=chain, timestamp_ms=timestamp_ms)
        previous = None if back is None else Position(timestamp_ms - back, sequence)
        message = placed(id, previous)
        stale = age_ms * MS_NS > SMALL.freshness_ns
        if seen(self.table, id) or (stale and not (stored and self._is_ours(message))):
            return
        if has_room(self.table, id, self.now_ms * MS_NS) and self.table.take(message):
            assert id not in self.taken
            self.taken.add(id)

    @rule(data=st.data())
    def comes_again(self, data: st.DataObject) -> None:
        if not self.taken:
            return
        id = data.draw(st.sampled_from(sorted(self.taken, key=msgspec.structs.astuple)))
        stale = (self.now_ms - id.timestamp_ms) * MS_NS > SMALL.freshness_ns
        assert seen(self.table, id) or (stale and not self._is_ours(placed(id)))

    @rule(ms=st.integers(1, 8) | st.just(SEARCH_NS // MS_NS))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    def _is_ours(self, message: PlacedMessage) -> bool:
        return self.table.is_ours(message.chain, message.number)

    @invariant()
    def bounded(self) -> None:
        assert self.table.chain_count() <= SMALL.chains_per_stream_max


def test_no_message_is_ever_taken_twice() -> None:
    run_state_machine_as_test(
        Admission, settings=settings(max_examples=150, stateful_step_count=60)
    )
