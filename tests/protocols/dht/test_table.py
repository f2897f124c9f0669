"""The routing table: who is kept, who waits, who goes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shoal.base.ids import Contact, NodeId
from shoal.base.units import S_NS
from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.key_space import SPACE, DhtId, id_of_node
from shoal.protocols.dht.routing_table import RoutingTable, prefixes_of
from tests.support.dht import ME, contact, sharing
from tests.support.machines import peer_id

SMALL = DhtConfig(k=3, ping_quiet_ns=10 * S_NS)


def full_table(config: DhtConfig = SMALL) -> tuple[RoutingTable, list[Contact]]:
    """Its far bucket is full; and nodes that belong there, the first k of them are in it."""
    table = RoutingTable(ME, config)
    far = sharing(0, config.k + 3)
    for near in sharing(1, 1):
        table.seen(near, 0)
    for at, one in enumerate(far[: config.k]):
        assert table.seen(one, at) is None
    # One more for the near side: the bucket is split, and the far one cannot be again.
    for near in sharing(1, 3):
        table.seen(near, 5)
    assert len(table.buckets) > 1
    return table, far


def test_a_full_bucket_keeps_its_nodes_and_doubts_the_oldest() -> None:
    table, far = full_table()
    assert table.seen(far[3], 20 * S_NS) == far[0]
    assert far[3].node not in table
    assert far[0].node in table
    # One doubt at a time.
    assert table.seen(far[4], 21 * S_NS) is None
    # It lives: it stays, and is now the last to be doubted.
    assert table.seen(far[0], 22 * S_NS) is None
    assert table.seen(far[5], 40 * S_NS) == far[1]
    # It does not: the newest spare has its place.
    table.failed(far[1].node)
    assert far[1].node not in table
    assert far[5].node in table
    table.check_invariants()


def test_who_was_heard_of_lately_is_not_doubted() -> None:
    table, far = full_table()
    assert table.seen(far[3], 9 * S_NS) is None


def test_a_bucket_doubts_one_node_in_a_while() -> None:
    table, far = full_table()
    begin_ns = 20 * S_NS
    assert table.seen(far[3], begin_ns) == far[0]
    table.seen(far[0], begin_ns)
    assert table.seen(far[4], begin_ns + SMALL.ping_pause_ns - 1) is None
    assert table.seen(far[4], begin_ns + SMALL.ping_pause_ns) == far[1]


def test_without_spares_a_node_has_several_chances_but_is_not_told_to_others() -> None:
    table, far = full_table()
    there = id_of_node(far[0].node)
    for _ in range(2):
        table.failed(far[0].node)
        assert far[0].node in table
        assert far[0] not in table.closest(there, 20)
        assert table.closest(there, 20, failing=True)[0] == far[0]
    table.seen(far[0], 50)
    assert table.closest(there, 1) == [far[0]]
    for _ in range(3):
        table.failed(far[0].node)
    assert far[0].node not in table


def test_prefixes_are_limited_in_a_bucket_and_in_the_table() -> None:
    config = DhtConfig(k=20, prefix_bucket_max=2, prefix_table_max=3)
    table = RoutingTable(ME, config)
    one_block = [contact(n, prefix=7) for n in range(1, 200)]
    for one in one_block:
        table.seen(one, 0)
    assert len(table) == 2  # one bucket so far
    for n in range(200, 400):
        table.seen(contact(n), 0)
    for one in one_block:
        table.seen(one, 0)
        table.check_invariants()
    inside = [one for one in one_block if one.node in table]
    assert len(inside) == 3
    loose = RoutingTable(ME, DhtConfig(prefix_bucket_max=20, prefix_table_max=1000))
    for one in one_block:
        loose.seen(one, 0)
    assert len(loose) > 20


def test_a_node_that_moves_into_a_full_prefix_keeps_its_old_address() -> None:
    table = RoutingTable(ME, DhtConfig(prefix_bucket_max=1))
    table.seen(contact(1, prefix=7), 0)
    table.seen(contact(2, prefix=8), 0)
    moved = contact(2, prefix=7)
    table.seen(moved, 1)
    assert table.contact(moved.node) == contact(2, prefix=8)
    table.check_invariants()


def test_we_ourselves_and_nodes_that_cannot_be_dialled_stay_out() -> None:
    table = RoutingTable(ME, SMALL)
    table.seen(contact(0), 0)
    table.seen(Contact(peer_id(5)), 0)
    assert len(table) == 0


def test_addresses_of_a_block_share_a_prefix() -> None:
    config = DhtConfig()

    def prefix(*addresses: str) -> tuple[str, ...]:
        return prefixes_of(addresses, config)

    assert prefix("ws://10.1.2.3:1") == prefix("wss://10.1.2.200:9/x") == ("10.1.2.0/24",)
    assert prefix("ws://10.1.3.3:1") != prefix("ws://10.1.2.3:1")
    assert prefix("ws://[::ffff:10.1.2.3]:1") == ("10.1.2.0/24",)
    assert prefix("ws://[2001:db8:1:2::1]:1") == prefix("ws://[2001:db8:1:3::1]:1")
    assert prefix("ws://10.1.2.3:1", "ws://10.1.2.4:1") == ("10.1.2.0/24",)
    assert prefix("ws://[broken", "node.example:1")  # whatever a peer writes is a prefix, too


@given(
    st.sets(st.integers(1, 10_000), max_size=80),
    st.integers(0, SPACE - 1).map(DhtId),
    st.integers(1, 30),
)
def test_closest_is_what_sorting_everybody_gives(
    numbers: set[int], target: DhtId, count: int
) -> None:
    table = RoutingTable(ME, DhtConfig(k=4))
    for number in sorted(numbers):
        table.seen(contact(number), 0)
    everybody = [one for b in table.buckets for one in b.live]
    everybody.sort(key=lambda node: id_of_node(node) ^ target)
    assert [one.node for one in table.closest(target, count)] == everybody[:count]
    ours = id_of_node(ME) ^ target
    assert table.closer(target) == sum(id_of_node(node) ^ target < ours for node in everybody)


def test_the_longest_unlooked_bucket_is_the_first_to_be_refreshed() -> None:
    table, far = full_table()
    now_ns = SMALL.refresh_ns
    assert table.stale(now_ns - 1) == []
    table.looked(id_of_node(far[0].node), 5)
    assert 0 not in table.stale(now_ns)
    assert table.stale(now_ns + 5)[-1] == 0


class TableStory(RuleBasedStateMachine):
    """Nodes come, answer and fall silent in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RoutingTable(
            ME, DhtConfig(k=2, prefix_bucket_max=1, prefix_table_max=2, ping_quiet_ns=3)
        )
        self.now_ns = 0
        self.alive: dict[NodeId, None] = {}
        """Those in the table that never failed since they came in."""

    @rule(number=st.integers(1, 60), prefix=st.integers(1, 30))
    def seen(self, number: int, prefix: int) -> None:
        self.now_ns += 1
        oldest = self.table.seen(contact(number, prefix), self.now_ns)
        if oldest is not None:
            assert oldest.node in self.table
        if peer_id(number) in self.table:
            self.alive[peer_id(number)] = None

    @rule(number=st.integers(1, 60))
    def failed(self, number: int) -> None:
        self.alive.pop(peer_id(number), None)
        before = len(self.table)
        self.table.failed(peer_id(number))
        assert before - 1 <= len(self.table) <= before
        self.alive.update(dict.fromkeys(n for b in self.table.buckets for n in b.live))
        self.alive.pop(peer_id(number), None)

    @invariant()
    def live_nodes_are_never_washed_out(self) -> None:
        self.table.check_invariants()
        assert all(node in self.table for node in self.alive)


TestTableStory = TableStory.TestCase
TestTableStory.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
