"""Chains of a stream: how many are held, which are forgotten, and that none is ever replayed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from shoal.base.ids import PARTITIONS_MAX, MessageId, NodeId
from shoal.base.units import MS_NS
from shoal.protocols.streams.chains import SEARCH_NS, ChainTable, chain_of
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.duplicates import DuplicateDetector, Number
from shoal.protocols.streams.messages import Position
from tests.support.streams import ALICE, BOB, CAROL, NOW_MS, NOW_NS, message_id, node

SMALL = NodeConfig(
    chains_per_publisher_max=2,
    publishers_per_stream_max=2,
    ranges_per_chain_max=3,
    freshness_ns=10 * MS_NS,
)


def later_ns(ms: int) -> int:
    return NOW_NS + ms * MS_NS


def test_a_marked_message_is_seen_and_marked_once() -> None:
    table = ChainTable(SMALL)
    id = message_id(3)
    assert not table.seen(id)
    assert table.mark(id, None)
    assert table.seen(id)
    assert not table.mark(id, None)
    assert table.chain_count() == 1


def test_publisher_partition_and_chain_are_told_apart() -> None:
    table = ChainTable(NodeConfig())
    assert table.mark(message_id(), None)
    others = [message_id(publisher=ALICE), message_id(partition=1), message_id(chain="d")]
    for id in others:
        assert not table.seen(id)
        assert table.mark(id, None)
    assert table.chain_count() == 4


def test_the_previous_reference_closes_the_gap() -> None:
    table = ChainTable(SMALL)
    assert table.mark(message_id(9), Position(NOW_MS, 5))
    assert table.seen(message_id(6))
    assert not table.seen(message_id(5))


def test_a_gap_begins_where_it_can_be_asked_for() -> None:
    """Fill names what lies after a position, and positions are not negative: a message of the very
    millisecond in which our time began would be asked for in vain."""
    table = ChainTable(SMALL, NOW_MS)
    table.mark(message_id(timestamp_ms=NOW_MS + 5), Position(NOW_MS, 0))
    assert table.gaps(chain_of(message_id())) == []
    unseen = chain_of(message_id(chain="other"))
    assert not table.lacks(unseen, (NOW_MS, 0), NOW_NS)
    assert table.lacks(unseen, (NOW_MS, 1), NOW_NS)
    assert min(table.baseline) >= 0


def test_a_publisher_gets_so_many_chains_and_no_more() -> None:
    table = ChainTable(SMALL)
    for chain in ("a", "b"):
        assert table.has_room(message_id(chain=chain), NOW_NS)
        table.mark(message_id(chain=chain), None)
    assert not table.has_room(message_id(chain="c"), NOW_NS)
    assert not table.has_room(message_id(chain="a", partition=1), NOW_NS)
    assert table.has_room(message_id(1, chain="a"), NOW_NS)  # known: goes on
    assert table.has_room(message_id(publisher=BOB, chain="c"), NOW_NS)  # another publisher's


def test_a_stream_gets_so_many_publishers_and_no_more() -> None:
    table = ChainTable(SMALL)
    for publisher in (ALICE, BOB):
        assert table.has_room(message_id(publisher=publisher), NOW_NS)
        table.mark(message_id(publisher=publisher), None)
    assert not table.has_room(message_id(publisher=CAROL), NOW_NS)
    assert table.has_room(message_id(publisher=ALICE, chain="d"), NOW_NS)


def test_a_chain_makes_room_only_when_all_of_it_is_stale() -> None:
    table = ChainTable(SMALL)
    table.mark(message_id(chain="a"), None)
    table.mark(message_id(chain="b", timestamp_ms=NOW_MS + 1), None)
    fresh_ms = SMALL.freshness_ns // MS_NS
    assert table.has_room(message_id(chain="c"), later_ns(fresh_ms + 1))
    assert not table.seen(message_id(chain="a"))
    assert table.seen(message_id(chain="b", timestamp_ms=NOW_MS + 1))


def test_a_chain_is_kept_as_long_as_its_newest_message_is_fresh() -> None:
    table = ChainTable(SMALL)
    for chain in ("a", "b"):
        table.mark(message_id(chain=chain), None)
    fresh_ms = SMALL.freshness_ns // MS_NS
    assert not table.has_room(message_id(chain="c"), later_ns(fresh_ms))
    assert table.seen(message_id(chain="a"))
    # What is full is not searched again before:
    assert not table.has_room(message_id(chain="c"), later_ns(fresh_ms) + SEARCH_NS - 1)
    assert table.has_room(message_id(chain="c"), later_ns(fresh_ms) + SEARCH_NS)


def test_a_publisher_makes_room_only_when_all_its_chains_are_stale() -> None:
    table = ChainTable(SMALL)
    table.mark(message_id(publisher=ALICE), None)
    table.mark(message_id(publisher=BOB), None)
    table.mark(message_id(publisher=BOB, chain="d", timestamp_ms=NOW_MS + 5), None)
    fresh_ms = SMALL.freshness_ns // MS_NS
    assert not table.has_room(message_id(publisher=CAROL), later_ns(fresh_ms))
    later = later_ns(fresh_ms) + SEARCH_NS  # a full table is not searched again before
    table.mark(message_id(publisher=BOB, chain="d", timestamp_ms=later // MS_NS), None)
    assert table.has_room(message_id(publisher=CAROL), later)
    assert not table.seen(message_id(publisher=ALICE))
    assert table.seen(message_id(publisher=BOB, chain="d", timestamp_ms=later // MS_NS))
    assert table.chain_count() == 1


def test_a_publisher_may_use_every_partition_and_start_again_within_the_freshness_window() -> None:
    # Otherwise every subscriber refuses its last partitions as too many chains.
    config = NodeConfig()
    table = ChainTable(config)
    for incarnation in ("before", "after"):
        for partition in range(PARTITIONS_MAX):
            id = message_id(partition=partition, chain=incarnation)
            assert table.has_room(id, NOW_NS), (incarnation, partition)
            table.mark(id, None)


@pytest.mark.parametrize("what", ["publisher", "chain"])
def test_what_is_full_is_not_searched_through_for_every_forged_name(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Room is asked for before the signature is checked: refusing must cost less than checking.
    def named(number: int) -> MessageId:
        if what == "publisher":
            return message_id(publisher=node(1000 + number))
        return message_id(chain=f"c{number}")

    table = ChainTable(NodeConfig(publishers_per_stream_max=100, chains_per_publisher_max=100))
    for number in range(100):
        table.mark(named(number), None)
    looks: list[int] = []
    monkeypatch.setattr(DuplicateDetector, "newest", property(lambda _: _count(looks)))
    for number in range(1000):
        assert not table.has_room(named(100 + number), NOW_NS + number)
    assert len(looks) <= 100


def _count(looks: list[int]) -> Number:
    looks.append(1)
    return (NOW_MS, 0)


class Admission(RuleBasedStateMachine):
    """Messages in any order, again and again, while time passes and chains come and go.

    The gate in front of the table is the one that flooding keeps: stale messages are refused, and
    so are chains without room.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = ChainTable(SMALL)
        self.now_ms = NOW_MS
        self.taken: set[MessageId] = set()

    @rule(
        publisher=st.sampled_from([ALICE, BOB, CAROL]),
        chain=st.sampled_from("abc"),
        age_ms=st.integers(-3, 12),
        sequence=st.integers(0, 2),
        back=st.none() | st.integers(-2, 6),
    )
    def arrives(
        self, publisher: NodeId, chain: str, age_ms: int, sequence: int, back: int | None
    ) -> None:
        timestamp_ms = self.now_ms - age_ms
        id = message_id(sequence, publisher=publisher, chain=chain, timestamp_ms=timestamp_ms)
        previous = None if back is None else Position(timestamp_ms - back, sequence)
        if self.table.seen(id) or age_ms * MS_NS > SMALL.freshness_ns:
            return
        if self.table.has_room(id, self.now_ms * MS_NS) and self.table.mark(id, previous):
            assert id not in self.taken
            self.taken.add(id)

    @rule(data=st.data())
    def comes_again(self, data: st.DataObject) -> None:
        if not self.taken:
            return
        id = data.draw(st.sampled_from(sorted(self.taken, key=msgspec.structs.astuple)))
        stale = (self.now_ms - id.timestamp_ms) * MS_NS > SMALL.freshness_ns
        assert stale or self.table.seen(id)

    @rule(ms=st.integers(1, 8) | st.just(SEARCH_NS // MS_NS))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @invariant()
    def bounded(self) -> None:
        most = SMALL.chains_per_publisher_max * SMALL.publishers_per_stream_max
        assert self.table.chain_count() <= most


def test_no_message_is_ever_taken_twice() -> None:
    run_state_machine_as_test(
        Admission, settings=settings(max_examples=150, stateful_step_count=60)
    )
