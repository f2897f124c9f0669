"""What a node holds: newer wins, everything expires, and nobody has more than a fair share."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shoal.base.ids import NodeId
from shoal.base.units import S_NS
from shoal.protocols.dht.config import VALUE_OVERHEAD_BYTES, VALUES_MAX, DhtConfig
from shoal.protocols.dht.key_space import id_of_key, id_of_node
from shoal.protocols.dht.validators import Judged
from shoal.protocols.dht.value_store import FULL, OLDER, ValueStore
from tests.support.dht import ME
from tests.support.machines import peer_id

SIZE = 1000
ROOM = 10
CONFIG = DhtConfig(values_bytes_max=ROOM * (SIZE + VALUE_OVERHEAD_BYTES))
LIFE_NS = 100 * S_NS
ALICE, BOB, EVE = peer_id(1), peer_id(2), peer_id(3)
CONTENT = Judged()


def store() -> ValueStore:
    return ValueStore(id_of_node(ME), CONFIG)


def put(values: ValueStore, key: bytes, storer: NodeId, now_ns: int = 0, **more: bool) -> str:
    return values.put(key, bytes(SIZE), CONTENT, storer, LIFE_NS, now_ns, **more)


def held(values: ValueStore, storer: NodeId) -> int:
    return sum(one.storer == storer for one in values.all())


def test_spam_evicts_its_own_kind_only() -> None:
    values = store()
    for number in range(3):
        assert put(values, b"alice %d" % number, ALICE) == ""
    refused = [put(values, b"spam %d" % number, EVE) for number in range(100)]
    assert refused[:7] == [""] * 7
    assert set(refused[7:]) == {FULL}
    assert held(values, ALICE) == 3
    # Whoever comes now gets its place from the one with most.
    for number in range(3):
        assert put(values, b"bob %d" % number, BOB) == ""
    assert (held(values, ALICE), held(values, BOB), held(values, EVE)) == (3, 3, 4)
    values.check_invariants()


def test_who_has_most_loses_what_is_farthest_from_us() -> None:
    values = store()
    keys = [b"%d" % number for number in range(ROOM)]
    for key in keys:
        put(values, key, EVE)
    put(values, b"alice", ALICE)
    farthest = max(keys, key=lambda key: id_of_key(key) ^ id_of_node(ME))
    assert [key for key in keys if not values.get(key, 0)] == [farthest]


def test_copies_along_paths_go_first_and_push_out_nobody() -> None:
    values = store()
    for number in range(4):
        put(values, b"copy %d" % number, EVE, now_ns=number, cached=True)
    for number in range(6):
        put(values, b"alice %d" % number, ALICE)
    put(values, b"alice 6", ALICE)
    assert not values.get(b"copy 0", 0)
    assert values.get(b"copy 1", 0)
    for number in range(7, 10):
        put(values, b"alice %d" % number, ALICE)
    assert put(values, b"copy 9", EVE, cached=True) == FULL
    assert held(values, ALICE) == 10


def test_a_copy_that_is_stored_in_earnest_is_no_copy_any_more() -> None:
    values = store()
    put(values, b"key", EVE, cached=True)
    assert values.due(10**18, 9) == []
    put(values, b"key", ALICE)
    assert [one.storer for one in values.due(10**18, 9)] == [ALICE]
    put(values, b"key", EVE, cached=True)
    assert not values.get(b"key", 0)[0].cached
    values.check_invariants()


def test_what_others_answer_for_is_a_copy_and_goes_first() -> None:
    values = store()
    put(values, b"ours", ALICE)
    values.release((b"ours", None))
    values.release((b"never held", None))
    assert values.due(10**18, 9) == []
    for number in range(ROOM):
        assert put(values, b"bob %d" % number, BOB) == ""
    assert not values.get(b"ours", 0)
    values.check_invariants()


def test_of_one_signer_the_newer_wins() -> None:
    values = store()

    def say(signer: NodeId, number: int, value: bytes) -> str:
        return values.put(b"key", value, Judged(signer, number, b"s"), BOB, LIFE_NS, 0)

    assert say(ALICE, 2, b"two") == ""
    assert say(ALICE, 1, b"one") == OLDER
    assert say(ALICE, 2, b"other two") == OLDER
    assert say(ALICE, 2, b"two") == ""
    assert say(EVE, 9, b"nine") == ""
    assert [one.value for one in values.get(b"key", 0)] == [b"nine", b"two"]
    assert say(ALICE, 3, b"three") == ""
    assert [one.value for one in values.get(b"key", 0)] == [b"nine", b"three"]


def test_a_copy_with_a_higher_number_is_not_replaced_by_an_older_one() -> None:
    values = ValueStore(id_of_node(ME), DhtConfig())
    newer, older = Judged(ALICE, 2, b"s"), Judged(ALICE, 1, b"s")
    assert values.put(b"key", b"same", newer, EVE, LIFE_NS, 0, cached=True) == ""
    assert values.put(b"key", b"same", older, EVE, LIFE_NS, 0) == OLDER
    assert [one.judged.number for one in values.get(b"key", 0)] == [2]


def test_one_storer_cannot_fill_a_key() -> None:
    values = ValueStore(id_of_node(ME), DhtConfig())

    def say(signer: int, storer: NodeId) -> str:
        judged = Judged(peer_id(signer), 1, b"s")
        return values.put(b"key", b"%d" % signer, judged, storer, LIFE_NS, 0)

    assert say(100, ALICE) == ""
    refused = [say(signer, EVE) for signer in range(200, 230)]
    assert refused.count("") == VALUES_MAX - 1
    assert say(101, BOB) == ""
    assert held(values, ALICE) == held(values, BOB) == 1
    values.check_invariants()


def test_of_many_signers_with_a_storer_each_the_latest_are_kept() -> None:
    values = ValueStore(id_of_node(ME), DhtConfig())

    def say(signer: int, now_ns: int) -> str:
        judged = Judged(peer_id(signer), 1, b"s")
        return values.put(b"key", b"%d" % signer, judged, peer_id(signer), LIFE_NS, now_ns)

    assert [say(signer, signer) for signer in range(VALUES_MAX + 4)] == [""] * (VALUES_MAX + 4)
    kept = {one.judged.signer for one in values.get(b"key", 0)}
    assert kept == {peer_id(signer) for signer in range(4, VALUES_MAX + 4)}
    assert say(1, 1) == FULL, "it is older than all that are here"
    values.check_invariants()


def test_values_expire_and_live_on_when_stored_again() -> None:
    values = store()
    put(values, b"key", ALICE)
    put(values, b"key", BOB, now_ns=LIFE_NS // 2)
    assert values.get(b"key", LIFE_NS)
    assert not values.get(b"key", LIFE_NS + LIFE_NS // 2)
    values.expire(LIFE_NS + LIFE_NS // 2)
    assert len(values) == values.used == 0


def test_no_life_is_longer_than_the_limit() -> None:
    values = store()
    values.put(b"key", b"v", CONTENT, ALICE, 10**30, 0)
    assert not values.get(b"key", CONFIG.value_ns)


def test_whoever_sees_a_value_republished_waits_with_its_own_turn() -> None:
    values = store()
    values.put(b"a", b"v", CONTENT, ALICE, LIFE_NS, 0, due_ns=10)
    values.put(b"b", b"v", CONTENT, ALICE, LIFE_NS, 0, due_ns=5)
    assert [one.key for one in values.due(10, 9)] == [b"b", b"a"]
    values.put(b"b", b"v", CONTENT, BOB, LIFE_NS, 0, due_ns=20)
    assert [one.key for one in values.due(10, 9)] == [b"a"]


class ValueStory(RuleBasedStateMachine):
    """Anybody stores anything at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.values = store()
        self.now_ns = 0

    @rule(
        key=st.sampled_from([b"%d" % n for n in range(20)]),
        size=st.sampled_from([1, SIZE, 3 * SIZE]),
        signer=st.sampled_from([None, ALICE, BOB]),
        number=st.integers(0, 3),
        storer=st.sampled_from([ALICE, BOB, EVE]),
        life_ns=st.integers(0, 20),
        cached=st.booleans(),
    )
    def put(
        self,
        key: bytes,
        size: int,
        signer: NodeId | None,
        number: int,
        storer: NodeId,
        life_ns: int,
        cached: bool,
    ) -> None:
        judged = Judged(signer, number if signer else 0, b"s")
        value = bytes(size)
        before = {one.judged.signer: one.judged.number for one in self.values.get(key, 0)}
        refused = self.values.put(key, value, judged, storer, life_ns, self.now_ns, cached=cached)
        after = {one.judged.signer: one.judged.number for one in self.values.get(key, 0)}
        assert all(after.get(who, number) >= number for who, number in before.items())
        if not refused and life_ns:
            assert value in [one.value for one in self.values.get(key, self.now_ns)]

    @rule(count=st.integers(1, 3), later_ns=st.integers(1, 20), released=st.booleans())
    def turns_come(self, count: int, later_ns: int, released: bool) -> None:
        due = self.values.due(self.now_ns, count)
        waiting = [one for one in self.values.all() if not one.cached and one not in due]
        assert all(one.due_ns <= self.now_ns and not one.cached for one in due)
        assert len(due) == count or all(one.due_ns > self.now_ns for one in waiting)
        for one in due:
            self.values.postpone(one, self.now_ns + later_ns)
            if released:
                self.values.release(one.slot)

    @rule(passed_ns=st.integers(1, 10))
    def time_passes(self, passed_ns: int) -> None:
        self.now_ns += passed_ns
        self.values.expire(self.now_ns)
        assert all(one.expires_ns > self.now_ns for one in self.values.all())

    @invariant()
    def books_agree(self) -> None:
        self.values.check_invariants()


TestValueStory = ValueStory.TestCase
TestValueStory.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
