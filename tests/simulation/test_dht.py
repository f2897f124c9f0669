"""The DHT at 200 nodes: lookups, churn, deaths, attackers. The long form is campaigns/dht.py."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest

from campaigns.dht import Outcome, Settings, run_attack, run_churn, verdict
from shoal.identity import PrivateKey, SeededEntropy
from shoal.kernel.effects import Effect, Send
from shoal.kernel.inputs import Input
from shoal.kernel.records import Rejected
from shoal.protocols.dht.commands import Find, FindDone
from shoal.protocols.dht.config import MINUTE_NS, DhtConfig
from shoal.protocols.dht.key_space import SPACE, DhtId, id_of_key, id_of_node
from shoal.protocols.dht.messages import QUESTIONS
from shoal.protocols.dht.validators import content_key, sign_record
from shoal.sim import SimNode
from shoal.sim.checkers import MachineInvariants
from shoal.sim.faults import Partition
from shoal.sim.trace import Row, TraceHash
from shoal_lab.experiments.dht_network import DhtNetwork

NODES = 200
VALUES = [b"value %d" % number for number in range(20)]


@pytest.fixture(scope="module")
def quiet() -> DhtNetwork:
    """All nodes have joined, and hold a few values; tests may kill some of them."""
    network = DhtNetwork(7, NODES, DhtConfig(republish_ns=2 * MINUTE_NS))
    network.join()
    tokens = [network.put(network.rng.choice(network.honest), content_key(v), v) for v in VALUES]
    network.simulation.run_for(30)
    assert [network.replicas(token) for token in tokens] == [network.config.k] * len(VALUES)
    network.forget_lookups()
    return network


def test_lookups_find_the_nearest_nodes_within_log2_n_hops(quiet: DhtNetwork) -> None:
    told: list[FindDone] = []
    k = quiet.config.k
    found_all = 0
    for node in quiet.rng.sample(quiet.honest, 20):
        target = DhtId(quiet.rng.randrange(SPACE))
        node.listeners.append(lambda event: told.append(event))
        node.command(0, Find(target), "find")
        quiet.simulation.run_for(15)
        node.listeners.pop()
        others = [one.id for one in quiet.honest if one is not node]
        nearest = sorted(others, key=lambda id: id_of_node(id) ^ target)[:k]
        found = [one.node for one in told[-1].contacts]
        assert len(set(found) & set(nearest)) >= k - 1
        found_all += found == nearest
    assert found_all >= 18
    ended = [lookup for lookup in quiet.forget_lookups() if lookup.kind == "find"]
    assert len(ended) == 20
    assert all(1 <= lookup.hops <= math.log2(NODES) for lookup in ended)


def test_every_node_finds_every_value(quiet: DhtNetwork) -> None:
    tokens = [
        quiet.get(node, content_key(value))
        for node in quiet.rng.sample(quiet.honest, 10)
        for value in VALUES
    ]
    missing = quiet.get(quiet.honest[5], content_key(b"never stored"))
    quiet.simulation.run_for(30)
    assert [quiet.values(token) for token in tokens] == [(v,) for _ in range(10) for v in VALUES]
    assert quiet.answered(missing)
    assert quiet.values(missing) == ()


def test_the_newest_record_of_a_signer_is_found(quiet: DhtNetwork) -> None:
    signing = PrivateKey.generate(SeededEntropy("dht simulation"))
    records = [sign_record(signing.address, signing.sign, b"head", n, b"x") for n in (1, 2)]
    for record in records:
        quiet.put(quiet.rng.choice(quiet.honest), b"head", record)
        quiet.simulation.run_for(30)
    late = quiet.put(quiet.rng.choice(quiet.honest), b"head", records[0])
    tokens = [quiet.get(node, b"head") for node in quiet.rng.sample(quiet.honest, 10)]
    quiet.simulation.run_for(30)
    assert quiet.replicas(late) < 5, "an old record is not taken by those that have a newer one"
    assert [quiet.values(token) for token in tokens] == [(records[1],)] * 10


def test_a_value_survives_the_death_of_all_holders_but_one(quiet: DhtNetwork) -> None:
    key = content_key(VALUES[3])
    holders = quiet.holders(key)
    assert len(holders) >= quiet.config.k
    nearest = min(holders, key=lambda node: id_of_node(node.id) ^ id_of_key(key))
    for node in holders:
        if node is not nearest and node not in quiet.honest[:3]:
            node.crash()
    left = [node for node in quiet.running() if node not in quiet.holders(key)]
    tokens = [quiet.get(node, key) for node in quiet.rng.sample(left, 20)]
    quiet.simulation.run_for(60)
    assert [quiet.values(token) for token in tokens] == [(VALUES[3],)] * 20
    # And it is soon where it was before.
    quiet.simulation.run_for(4 * 60)
    assert len(quiet.holders(key)) >= quiet.config.k


def test_nothing_is_lost_while_a_quarter_of_the_nodes_changes_every_ten_minutes() -> None:
    settings = Settings(nodes=NODES, minutes=8, values=30)
    outcome = run_churn(1, settings)
    assert outcome.lookups > 430
    assert verdict([outcome], settings) == []
    assert outcome.holders_min >= 10


# A tenth of 200 nodes is 20: of 8 replicas it can be all.
FEW = DhtConfig(k=8)


def test_an_attacker_who_chose_its_places_hides_nothing() -> None:
    settings = Settings(nodes=NODES, attack_lookups=150, config=FEW)
    outcome = run_attack(1, settings)
    assert outcome.lookups == 150
    assert verdict([outcome], settings) == []


def test_without_the_density_check_it_would() -> None:
    blind = msgspec.structs.replace(FEW, crowded_part=0.0)
    settings = Settings(nodes=NODES, attack_lookups=100, config=blind)
    outcome = run_attack(1, settings)
    assert outcome.missed > 0.3 * outcome.lookups


def test_spam_does_not_evict_what_others_stored() -> None:
    config = DhtConfig(values_bytes_max=60_000)
    network = DhtNetwork(3, 40, config)
    network.join()
    tokens = [
        network.put(node, content_key(v), v)
        for v, node in zip(VALUES, network.honest[:20], strict=True)
    ]
    network.simulation.run_for(30)
    assert all(network.replicas(token) == config.k for token in tokens)
    spammer = network.honest[-1]
    for number in range(400):
        spam = b"spam %d" % number + bytes(1000)
        network.put(spammer, content_key(spam), spam)
    network.simulation.run_for(60)
    network.simulation.check_quiet()
    asking = [network.get(network.honest[30], content_key(value)) for value in VALUES]
    network.simulation.run_for(30)
    assert [network.values(token) for token in asking] == [(value,) for value in VALUES]
    now_ns = network.simulation.scheduler.now_ns
    for node in network.honest[:30]:
        machine = network.machine(node)
        assert machine.values.used <= config.values_bytes_max
        machine.check_invariants()
    kept = [len(network.machine(n).values.get(content_key(spam), now_ns)) for n in network.honest]
    assert sum(kept) < config.k, "the store was not full: the test shows nothing"


def count_questions(network: DhtNetwork, node: SimNode) -> Counter[str]:
    """What a node asks others from now on, by kind."""
    counted: Counter[str] = Counter()

    def watch(event: Input, effects: Sequence[Effect]) -> None:
        sent = [effect.message for effect in effects if isinstance(effect, Send)]
        counted.update([type(one).__name__ for one in sent if isinstance(one, QUESTIONS)])

    assert node.host is not None
    node.host.watch = watch
    return counted


def test_a_publisher_of_many_values_looks_up_few_places() -> None:
    network = DhtNetwork(2, 100)
    network.join()
    publisher = network.honest[40]
    asked = count_questions(network, publisher)
    values = [b"event %d" % number for number in range(300)]
    tokens = []
    for value in values:
        tokens.append(network.put(publisher, content_key(value), value))
        network.simulation.run_for(0.1)
    network.simulation.run_for(10)
    k = network.config.k
    assert [network.replicas(token) for token in tokens] == [k] * len(values)
    assert asked["StoreValue"] == k * len(values)
    assert asked["FindNode"] < 4 * len(values), "a lookup asks thirty"
    others = [node for node in network.honest if node is not publisher]
    for value in values[::10]:
        key = content_key(value)
        nearest = sorted(others, key=lambda node: id_of_node(node.id) ^ id_of_key(key))[:k]
        assert len(set(network.holders(key)) & set(nearest)) >= k - 1


def test_a_hundred_events_a_second_on_twenty_nodes_are_within_the_rate() -> None:
    network = DhtNetwork(4, 21)
    rejected: list[Rejected] = []
    network.simulation.trace.to(
        lambda rows: rejected.extend([row[2] for row in rows if isinstance(row[2], Rejected)])
    )
    network.join()
    tokens = []
    for number in range(1500):
        value = (b"event %d " % number).ljust(300, b"x")
        tokens.append(network.put(network.honest[7], content_key(value), value))
        network.simulation.run_for(0.01)
    network.simulation.run_for(2)
    assert [network.replicas(token) for token in tokens] == [20] * len(tokens)
    # All at once: they wait, nobody is asked too much, and no link is given up.
    tokens = []
    for number in range(3000):
        value = b"burst %d" % number
        tokens.append(network.put(network.honest[9], content_key(value), value))
    network.simulation.run_for(15)
    assert [network.replicas(token) for token in tokens] == [20] * len(tokens)
    assert rejected == []


def test_one_holder_republishes_for_all() -> None:
    network = DhtNetwork(6, 60)
    network.join()
    values = [b"value %d" % number for number in range(50)]
    for value in values:
        network.put(network.honest[30], content_key(value), value)
    network.simulation.run_for(1000)
    asked = [count_questions(network, node) for node in network.honest]
    intervals = 4
    network.simulation.run_for(intervals * 600)
    stored = sum(counted["StoreValue"] for counted in asked) / len(values) / intervals
    assert 0.6 * network.config.k < stored < 1.3 * network.config.k
    assert min(len(network.holders(content_key(value))) for value in values) >= network.config.k


def test_halves_that_lost_each_other_meet_again() -> None:
    network = DhtNetwork(5, 40, DhtConfig(k=4))
    network.join()
    begin_s = network.simulation.time_s
    Partition(start_s=begin_s, end_s=begin_s + 1200, fraction=0.5).install(network.simulation)
    network.simulation.run_for(600)
    key = content_key(b"meanwhile")
    network.put(network.honest[10], key, b"meanwhile")
    network.simulation.run_for(590)
    # In each half, the others were forgotten.
    assert max(len(network.machine(node).table) for node in network.honest) < 20
    assert finders(network, key, b"meanwhile") == 20
    network.simulation.run_for(60)
    assert finders(network, key, b"meanwhile") == 40


def finders(network: DhtNetwork, key: bytes, value: bytes) -> int:
    """How many nodes find a value within ten seconds."""
    tokens = [network.get(node, key) for node in network.honest]
    network.simulation.run_for(10)
    return sum(network.values(token) == (value,) for token in tokens)


def digest(seed: int, *, wire: bool) -> tuple[str, list[Row]]:
    network = DhtNetwork(seed, 25, checkers=(MachineInvariants(),), wire=wire)
    trace, rows = TraceHash(), list[Row]()
    network.simulation.trace.to(trace)
    network.simulation.trace.to(rows.extend)
    network.join()
    token = network.put(network.honest[4], content_key(b"v"), b"v")
    network.honest[9].crash()
    network.simulation.run_for(30)
    found = network.get(network.honest[20], content_key(b"v"))
    network.simulation.run_for(30)
    assert network.replicas(token) >= 19
    assert network.values(found) == (b"v",)
    network.simulation.trace.flush()
    return trace.hexdigest(), rows


def test_one_seed_is_one_run_and_the_wire_changes_nothing() -> None:
    (first, rows), (again, _), (other, _) = (
        digest(1, wire=False),
        digest(1, wire=True),
        digest(2, wire=False),
    )
    assert first == again
    assert first != other
    assert not [row for row in rows if isinstance(row[2], Rejected)]


def test_the_verdict_names_what_is_wrong() -> None:
    settings = Settings(nodes=NODES)
    good = Outcome("churn", 1, NODES, 1000, 1, 5, 2.0, 20, 0.0)
    attack = msgspec.structs.replace(good, kind="attack", missed=10)
    assert verdict([good, attack], settings) == []
    assert "2 of 1000" in verdict([msgspec.structs.replace(good, missed=2)], settings)[0]
    assert "attack" in verdict([msgspec.structs.replace(attack, missed=11)], settings)[0]
    assert "8 hops" in verdict([msgspec.structs.replace(good, hops_max=8)], settings)[0]
