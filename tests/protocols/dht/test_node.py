"""The DHT machine with a test for its peers: what it answers, keeps, counts and refuses."""

from __future__ import annotations

import pytest

from shoal.base.errors import ConfigError, UsageError
from shoal.base.ids import Contact
from shoal.base.units import S_NS
from shoal.identity import PrivateKey, SeededEntropy
from shoal.kernel.effects import Send
from shoal.kernel.inputs import MessageReceived
from shoal.kernel.records import LookupDone
from shoal.protocols.dht.commands import DhtReady, Find, FindDone, Get, GetDone, Put, PutDone
from shoal.protocols.dht.config import HOUR_NS, VALUE_BYTES_MAX, DhtConfig
from shoal.protocols.dht.key_space import SPACE, DhtId, id_of_key, id_of_node, wire_of_id
from shoal.protocols.dht.messages import (
    FindNode,
    FindValue,
    Nodes,
    Ping,
    Pong,
    StoreValue,
    Values,
    ValueStored,
)
from shoal.protocols.dht.put_and_get import store_tokens
from shoal.protocols.dht.validators import content_key, sign_record
from tests.support.dht import ME, DhtBench, contact
from tests.support.machines import peer_id

BOB, EVE = contact(1), contact(2)
VALUE = b"value"
KEY = content_key(VALUE)
PLACE = wire_of_id(id_of_key(KEY))
SIGNING = PrivateKey.generate(SeededEntropy("dht node"))
DAY_S = 86_400


def store(number: int = 1, value: bytes = VALUE, *, cached: bool = False) -> StoreValue:
    return StoreValue(number, BOB.addresses, content_key(value), value, DAY_S, cached)


def bench_with(*peers: Contact, config: DhtConfig | None = None) -> DhtBench:
    bench = DhtBench(config)
    bench.meet(*peers)
    for peer in peers:
        assert bench.says(peer, Ping(1, peer.addresses)) == [Pong(1)]
    return bench


def test_whoever_asks_is_remembered_and_told_of_to_others() -> None:
    bench = bench_with(BOB, EVE)
    (answer,) = bench.says(BOB, FindNode(2, BOB.addresses, PLACE))
    assert answer == Nodes(2, (EVE,))  # nobody is told of itself
    assert bench.machine.table.contact(BOB.node) == BOB


def test_a_value_is_kept_and_given() -> None:
    bench = bench_with(BOB, EVE)
    assert bench.says(BOB, store()) == [ValueStored(1, "")]
    (answer,) = bench.says(EVE, FindValue(2, EVE.addresses, PLACE, KEY))
    assert answer == Values(2, (VALUE,), (BOB,))
    bench.host.advance(DAY_S * S_NS)
    (answer,) = bench.says(EVE, FindValue(3, EVE.addresses, PLACE, KEY))
    assert answer.values == ()
    bench.host.advance(bench.machine.config.tick_ns)
    assert len(bench.machine.values) == 0


def test_what_is_not_valid_is_not_kept() -> None:
    bench = bench_with(BOB)
    wrong = StoreValue(1, BOB.addresses, KEY, b"other", DAY_S, False)
    assert bench.says(BOB, wrong) == [ValueStored(1, "invalid")]
    assert bench.rejected() == ["bad-value"]
    assert len(bench.machine.values) == 0


@pytest.mark.parametrize("valid", [True, False])
def test_a_record_is_kept_when_its_signature_was_checked(valid: bool) -> None:
    bench = bench_with(BOB)
    record = sign_record(SIGNING.address, SIGNING.sign, b"head", 1, b"x")
    assert bench.says(BOB, StoreValue(1, BOB.addresses, b"head", record, DAY_S, False)) == []
    assert len(bench.machine.values) == 0
    bench.host.finish_one(valid=valid)
    assert bench.sent_to(BOB)[-1] == ValueStored(1, "" if valid else "invalid")
    assert len(bench.machine.values) == valid


def test_too_many_checks_at_once_are_refused() -> None:
    bench = bench_with(BOB, config=DhtConfig(checks_max=1))
    for number, said in ((1, []), (2, [ValueStored(2, "busy")])):
        record = sign_record(SIGNING.address, SIGNING.sign, b"head", number, b"x")
        message = StoreValue(number, BOB.addresses, b"head", record, DAY_S, False)
        assert bench.says(BOB, message) == said


def test_copies_live_shorter_the_farther_they_are_from_the_key() -> None:
    place = id_of_key(KEY)
    ours = id_of_node(ME) ^ place
    everybody = [contact(n) for n in range(1, 60)]
    closer = [one for one in everybody if id_of_node(one.node) ^ place < ours]
    config = DhtConfig(k=2)
    bench = bench_with(*closer, config=config)
    beyond = bench.machine.table.closer(id_of_key(KEY)) - config.k
    assert beyond > 0, "the test needs nodes nearer to the key"
    bench.says(closer[0], store(cached=True))
    life_ns = HOUR_NS >> beyond
    bench.host.advance(life_ns - 1)
    assert bench.machine.values.get(KEY, bench.host.time_ns)
    bench.host.advance(1)
    assert not bench.machine.values.get(KEY, bench.host.time_ns)


def test_unasked_answers_and_commands_of_strangers_are_counted() -> None:
    bench = bench_with(BOB)
    assert bench.says(BOB, Nodes(7, (EVE,))) == []
    assert bench.says(BOB, Get(KEY)) == []
    assert bench.rejected() == ["unasked-answer", "not-ours"]
    assert EVE.node not in bench.machine.table


def test_questions_are_rate_limited_by_number_and_by_size() -> None:
    burst = store_tokens(bytes(VALUE_BYTES_MAX))
    bench = bench_with(BOB, EVE, config=DhtConfig(burst=burst, refill_ns=S_NS))
    answers = [bench.says(BOB, Ping(n, BOB.addresses)) for n in range(burst + 10)]
    assert sum(map(bool, answers)) == burst - 1
    assert bench.rejected() == ["rate-limited"] * 11
    assert bench.says(EVE, Ping(1, EVE.addresses))
    bench.host.advance(burst * S_NS)
    assert bench.says(BOB, store(1, bytes(VALUE_BYTES_MAX))) == [ValueStored(1, "")]
    assert bench.says(BOB, store(2, bytes(VALUE_BYTES_MAX - 1))) == []


def test_a_get_asks_peers_and_believes_only_what_is_valid() -> None:
    bench = bench_with(BOB, EVE)
    bench.command(Get(KEY), "token")
    (asked,) = bench.sent_to(EVE)[1:]
    assert asked == FindValue(asked.request, ("ws://10.9.9.9:1",), PLACE, KEY)
    bench.says(EVE, Values(asked.request, (b"forged",), ()))
    assert bench.rejected() == ["bad-value"]
    (asked,) = bench.sent_to(BOB)[1:]
    bench.says(BOB, Values(asked.request, (VALUE,), ()))
    assert bench.host.notified[-1] == GetDone(KEY, (VALUE,), "token")
    (done,) = [r for r in bench.host.records if isinstance(r, LookupDone)]
    assert (done.kind, done.hops, done.asked, done.success) == ("get", 1, 2, True)


def test_of_records_the_newest_is_told() -> None:
    bench = bench_with(BOB, EVE)
    old, new = (sign_record(SIGNING.address, SIGNING.sign, b"head", n, b"x") for n in (1, 2))
    bench.command(Get(b"head"), 5)
    for peer, record in ((BOB, new), (EVE, old)):
        asked = bench.sent_to(peer)[-1]
        bench.says(peer, Values(asked.request, (record,), ()))
    assert not any(isinstance(event, GetDone) for event in bench.host.notified)
    bench.host.finish_all()
    assert bench.host.notified[-1] == GetDone(b"head", (new,), 5)


@pytest.mark.parametrize("patient", [False, True])
def test_who_is_patient_hears_of_a_newer_record_that_a_slow_node_has(patient: bool) -> None:
    bench = bench_with(BOB, EVE)
    old, new = (sign_record(SIGNING.address, SIGNING.sign, b"head", n, b"x") for n in (1, 2))
    bench.command(Get(b"head", patient=patient), 5)
    bench.says(EVE, Values(bench.sent_to(EVE)[-1].request, (old,), ()))
    bench.host.finish_all()
    bench.host.advance(DhtConfig().slow_ns)
    told = GetDone(b"head", (old,), 5)
    assert [one for one in bench.host.notified if isinstance(one, GetDone)] == [told] * (
        not patient
    )
    bench.says(BOB, Values(bench.sent_to(BOB)[-1].request, (new,), ()))
    bench.host.finish_all()
    done = [one for one in bench.host.notified if isinstance(one, GetDone)]
    assert done == [GetDone(b"head", (new,), 5) if patient else told]


def test_who_was_answered_by_nobody_is_alone_with_what_it_has_itself() -> None:
    bench = bench_with(BOB)
    record = sign_record(SIGNING.address, SIGNING.sign, b"head", 1, b"x")
    bench.says(BOB, StoreValue(2, BOB.addresses, b"head", record, DAY_S, False))
    bench.host.finish_all()
    bench.command(Get(b"head"), 1)
    bench.host.advance(10 * S_NS)
    assert bench.host.notified[-1] == GetDone(b"head", (record,), 1, alone=True)


def test_a_get_nobody_answers_ends() -> None:
    bench = bench_with(BOB)
    bench.command(Get(KEY), 1)
    bench.host.advance(10 * S_NS)
    assert bench.host.notified[-1] == GetDone(KEY, (), 1, alone=True)


def test_a_found_value_leaves_a_copy_with_whoever_lacked_it() -> None:
    bench = bench_with(BOB, EVE)
    bench.command(Get(KEY))
    bench.says(EVE, Values(bench.sent_to(EVE)[-1].request, (), ()))
    bench.says(BOB, Values(bench.sent_to(BOB)[-1].request, (VALUE,), ()))
    copy = bench.sent_to(EVE)[-1]
    assert isinstance(copy, StoreValue)
    assert (copy.value, copy.cached) == (VALUE, True)
    # What is held here need not be looked for.
    bench.says(BOB, store(9))
    bench.command(Get(KEY), 2)
    assert bench.host.notified[-1] == GetDone(KEY, (VALUE,), 2, alone=True)


def find_answered(bench: DhtBench, *peers: Contact) -> None:
    """Answer the FindNode that a put begins with."""
    for peer in peers:
        asked = bench.sent_to(peer)[-1]
        assert isinstance(asked, FindNode)
        bench.says(peer, Nodes(asked.request, ()))


def test_a_put_is_told_when_enough_hold_it() -> None:
    bench = bench_with(BOB, EVE)
    bench.command(Put(KEY, VALUE, replicas=1), 3)
    find_answered(bench, BOB, EVE)
    given = bench.sent_to(BOB)[-1]
    assert (given.key, given.value, given.life_s, given.cached) == (KEY, VALUE, DAY_S, False)
    assert PutDone not in map(type, bench.host.notified)
    bench.says(BOB, ValueStored(given.request, ""))
    assert bench.host.notified[-1] == PutDone(KEY, 1, 3)
    bench.says(EVE, ValueStored(bench.sent_to(EVE)[-1].request, ""))
    assert sum(isinstance(event, PutDone) for event in bench.host.notified) == 1


def test_a_put_says_how_few_there_are() -> None:
    bench = bench_with(BOB, EVE)
    bench.command(Put(KEY, VALUE), 3)
    find_answered(bench, BOB, EVE)
    bench.says(BOB, ValueStored(bench.sent_to(BOB)[-1].request, ""))
    bench.host.advance(10 * S_NS)  # the other one stays silent
    assert bench.host.notified[-1] == PutDone(KEY, 1, 3)
    alone = DhtBench()
    alone.command(Put(KEY, VALUE), 4)
    assert alone.host.notified[-1] == PutDone(KEY, 0, 4)
    assert alone.machine.values.get(KEY, 0), "it is kept here, and republished to whoever comes"


def test_who_has_no_room_is_made_up_for_by_the_next() -> None:
    peers = sorted(
        [contact(n) for n in range(1, 5)], key=lambda one: id_of_node(one.node) ^ id_of_key(KEY)
    )
    first, second, third, _ = peers
    bench = bench_with(second, third, config=DhtConfig(k=2))
    bench.command(Put(KEY, VALUE, replicas=2), 3)
    bench.says(second, Nodes(bench.sent_to(second)[-1].request, (first,)))
    bench.meet(first)
    bench.says(third, Nodes(bench.sent_to(third)[-1].request, ()))
    bench.says(first, Nodes(bench.sent_to(first)[-1].request, ()))
    bench.says(first, ValueStored(bench.sent_to(first)[-1].request, "full"))
    bench.says(second, ValueStored(bench.sent_to(second)[-1].request, ""))
    assert not bench.host.notified[1:]
    bench.says(third, ValueStored(bench.sent_to(third)[-1].request, ""))
    assert bench.host.notified[-1] == PutDone(KEY, 2, 3)


def test_values_are_republished_with_what_is_left_of_their_life() -> None:
    bench = bench_with(BOB, EVE)
    bench.says(BOB, store())
    while not isinstance(bench.sent_to(EVE)[-1], FindNode):
        bench.host.advance(S_NS)
    find_answered(bench, BOB, EVE)
    given = bench.sent_to(EVE)[-1]
    assert isinstance(given, StoreValue)
    assert DAY_S - 960 < given.life_s <= DAY_S - 600


def test_where_a_lookup_ended_a_moment_ago_values_are_given_without_one() -> None:
    bench = bench_with(BOB, EVE)
    bench.command(Put(KEY, VALUE), 1)
    find_answered(bench, BOB, EVE)
    bench.command(Put(content_key(b"other"), b"other"), 2)
    for peer in (BOB, EVE):
        given = bench.sent_to(peer)[-1]
        assert isinstance(given, StoreValue)
        assert given.value == b"other"
        bench.says(peer, ValueStored(given.request, ""))
    assert bench.host.notified[-1] == PutDone(content_key(b"other"), 2, 2)
    # A stranger has come: there may be more of them.
    bench.meet(contact(3))
    bench.says(contact(3), Ping(1, contact(3).addresses))
    bench.command(Put(content_key(b"third"), b"third"), 3)
    assert isinstance(bench.sent_to(BOB)[-1], FindNode)


def test_values_are_given_no_faster_than_peers_allow() -> None:
    config = DhtConfig(burst=20, refill_ns=S_NS)
    bench = bench_with(BOB, config=config)
    bench.command(Put(KEY, VALUE), 0)
    find_answered(bench, BOB)
    values = [b"value %d" % number for number in range(30)]
    for number, value in enumerate(values):
        bench.command(Put(content_key(value), value, replicas=1), number)

    def given() -> int:
        return sum(isinstance(message, StoreValue) for message in bench.sent_to(BOB))

    assert given() == config.burst // 2
    bench.host.advance(10 * config.refill_ns)
    assert given() == config.burst // 2 + 8


def test_who_waits_for_a_lookup_holds_up_nobody_and_few_look_at_once() -> None:
    bench = bench_with(BOB, EVE, config=DhtConfig(k=1, put_lookups_max=1, waiting_max=2))
    values = [b"value %d" % number for number in range(4)]
    for number, value in enumerate(values):
        bench.command(Put(content_key(value), value), number)
    # One is looked up, two wait, and for the last there is no room.
    assert [type(m) for m in bench.sent_to(BOB)].count(FindNode) == 1
    assert bench.host.notified[-1] == PutDone(content_key(values[3]), 0, 3)


def test_who_is_not_among_the_nearest_any_more_hands_over_and_keeps_a_copy() -> None:
    place = id_of_key(KEY)
    ours = id_of_node(ME) ^ place
    config = DhtConfig(k=2, crowded_part=0.0)
    closer = [one for one in map(contact, range(1, 60)) if id_of_node(one.node) ^ place < ours]
    bench = bench_with(*closer[:3], config=config)
    bench.says(closer[0], store())
    for _ in range(HOUR_NS // (2 * S_NS)):
        bench.host.advance(S_NS)
        for peer in closer[:3]:
            last = bench.sent_to(peer)[-1]
            if isinstance(last, FindNode):
                bench.says(peer, Nodes(last.request, ()))
            elif isinstance(last, StoreValue) and bench.machine.values.due(10**18, 1):
                bench.says(peer, ValueStored(last.request, ""))
    given = [m for peer in closer[:3] for m in bench.sent_to(peer) if isinstance(m, StoreValue)]
    assert len(given) == config.k
    (held,) = bench.machine.values.get(KEY, bench.host.time_ns)
    assert held.cached


def test_another_machine_asks_by_message_and_is_answered_by_one() -> None:
    bench = bench_with(BOB)
    effects = bench.machine.handle(
        MessageReceived(ME, Find(DhtId(1), local=True, token=("topic", 4))), 0
    )
    assert effects == [Send(FindDone(DhtId(1), (BOB,), ("topic", 4)), (ME,))]


def test_find_tells_who_answered() -> None:
    bench = bench_with(BOB, EVE)
    bench.command(Find(DhtId(1)), 2)
    bench.says(BOB, Nodes(bench.sent_to(BOB)[-1].request, ()))
    bench.host.advance(10 * S_NS)
    assert bench.host.notified[-1] == FindDone(DhtId(1), (BOB,), 2)


def test_joining_asks_the_bootstrap_until_it_answers() -> None:
    bench = DhtBench(None, BOB)
    assert bench.host.dialled == [BOB]
    bench.host.dial_failed(BOB.node, "refused")
    assert not bench.machine.ready
    bench.host.advance(10 * S_NS)
    assert bench.host.dialled == [BOB, BOB]
    bench.meet(BOB)
    (asked,) = bench.sent_to(BOB)
    assert asked.target == wire_of_id(id_of_node(ME))
    bench.says(BOB, Nodes(asked.request, ()))
    assert bench.machine.ready
    assert bench.host.notified == [DhtReady(1)]


def test_a_node_that_others_enter_through_works_alone_and_goes_on_asking() -> None:
    own = Contact(ME, ("ws://10.9.9.9:1",))
    bench = DhtBench(None, own, BOB)
    assert bench.host.dialled == [BOB]
    assert not bench.machine.ready
    bench.host.dial_failed(BOB.node, "refused")
    assert bench.machine.ready
    bench.host.advance(10 * S_NS)
    assert len(bench.host.dialled) > 1
    bench.meet(BOB)
    asked = bench.sent_to(BOB)[0]
    bench.says(BOB, Nodes(asked.request, ()))
    assert len(bench.machine.table) == 1
    assert bench.host.notified == [DhtReady(0)], "said once"


def test_the_oldest_of_a_full_bucket_is_asked_whether_it_lives() -> None:
    config = DhtConfig(k=1, ping_quiet_ns=0)
    bench = DhtBench(config)
    far = [n for n in range(1, 60) if (id_of_node(peer_id(n)) ^ id_of_node(ME)) * 2 >= SPACE]
    first, second = contact(far[0]), contact(far[1])
    near = next(contact(n) for n in range(1, 60) if n not in far)
    bench.meet(first, second, near)
    for peer in (first, near, second):
        bench.says(peer, Ping(1, peer.addresses))
    asked = bench.sent_to(first)[-1]
    assert isinstance(asked, Ping)
    bench.host.advance(10 * S_NS)
    assert first.node not in bench.machine.table
    assert second.node in bench.machine.table


def test_local_misuse_raises() -> None:
    bench = DhtBench()
    for wrong in (
        Get(b""),
        Get(bytes(65)),
        Put(KEY, b""),
        Put(KEY, bytes(VALUE_BYTES_MAX + 1)),
        Put(KEY, VALUE, replicas=21),
        Find(DhtId(SPACE)),
        "what?",
    ):
        with pytest.raises(UsageError):
            bench.command(wrong)
    with pytest.raises(ConfigError):
        DhtConfig(k=21)
    with pytest.raises(ConfigError):
        DhtConfig(paths=0)


def test_a_put_that_is_not_valid_is_held_by_nobody() -> None:
    bench = bench_with(BOB)
    bench.command(Put(KEY, b"other"), 1)
    assert bench.host.notified[-1] == PutDone(KEY, 0, 1)
    assert len(bench.machine.values) == 0
