"""Small search networks: what applications do with them."""

from __future__ import annotations

import pytest

from shoal.base.units import S_NS
from shoal.protocols.search.commands import (
    CloseUser,
    ConnectUser,
    Contribute,
    Found,
    Joined,
    ListenUser,
    Seen,
    SendUser,
    Unwatch,
    UserArrived,
    UserClosed,
    UserOpened,
    UserReceived,
    WatchDocuments,
)
from shoal.protocols.search.documents.document import Life
from shoal.sim.checkers import MachineInvariants
from shoal.sim.trace import TraceHash
from tests.support.search_networks import HOUR_NS, MEASURED_S, Network, nodes_of


@pytest.fixture(scope="module")
def quiet() -> Network:
    """Forty nodes and two clients; nobody of them is lost in the tests that share it."""
    return Network(5, 40, clients=2)


# Documents


def test_documents_are_found_from_everywhere(quiet: Network) -> None:
    for number in range(40):
        quiet.put(quiet.nodes[number], f"needle{number}", {"title": f"needle{number} hay"})
    quiet.simulation.run_for(5)
    missed = 0
    for number in range(0, 40, 4):
        names, over = quiet.find(quiet.nodes[39 - number], f"title:needle{number}")
        assert names in ([f"needle{number}"], [])
        missed += not names
        assert over.confidence >= 0.99
        assert over.nodes == pytest.approx(40, rel=0.1)
    assert missed <= 1
    names, over = quiet.find(quiet.nodes[3], "hay")
    assert len(names) == len(set(names)) >= 38
    assert over.asked < 40


def test_an_update_takes_the_place_and_a_deletion_the_document(quiet: Network) -> None:
    """Versions go where those before them went; a few nodes are missed, as others stood in the
    way."""
    reader = quiet.nodes[30]
    names = [f"news{number}" for number in range(20)]

    def put(title: str | None) -> None:
        for number, name in enumerate(names):
            content = None if title is None else {"title": f"{title}{number}"}
            quiet.put(quiet.nodes[number], name, content, "managed")
        quiet.simulation.run_for(2)

    def held() -> int:
        return sum(quiet.holders(name) for name in names)

    put("bread")
    assert quiet.find(reader, "bread1")[0] == ["news1"]
    before = held()
    put("cake")
    assert quiet.find(reader, "cake1")[0] == ["news1"]
    assert quiet.heard(reader, Found)[-1].document.value == {"title": "cake1"}
    assert held() < 1.2 * before
    put(None)
    assert held() < 0.1 * before
    quiet.simulation.run_for(16 * 60)  # nobody casts the rest again
    assert held() == 0
    assert quiet.find(reader, "cake1 OR bread1")[0] == []


def test_managed_documents_stay_and_fading_ones_go(quiet: Network) -> None:
    owner = quiet.nodes[2]
    quiet.put(owner, "stays", {"title": "harbour"}, "managed")
    quiet.put(owner, "fades", {"title": "harbour"}, "fading", 20 * 60 * S_NS)
    quiet.simulation.run_for(18 * 60)
    assert sorted(quiet.find(quiet.nodes[20], "harbour")[0]) == ["fades", "stays"]
    quiet.simulation.run_for(30 * 60)
    assert quiet.find(quiet.nodes[20], "harbour")[0] == ["stays"]


def test_few_answers_cost_less_than_all(quiet: Network) -> None:
    for number in range(10):
        quiet.put(quiet.nodes[number], f"common{number}", {"title": "ubiquitous"})
    quiet.simulation.run_for(2)
    before = quiet.records["handled"]
    names, over = quiet.find(quiet.nodes[33], "ubiquitous", limit=1)
    first = quiet.records["handled"] - before
    assert len(names) == 1
    _, all_of_it = quiet.find(quiet.nodes[33], "ubiquitous")
    second = quiet.records["handled"] - before - first
    assert over.asked < all_of_it.asked / 2
    assert first < second / 2
    assert over.confidence < all_of_it.confidence


def test_one_document_by_its_id(quiet: Network) -> None:
    quiet.put(quiet.nodes[4], "by id", {"title": "anything"})
    quiet.simulation.run_for(2)
    document = quiet.told[4][-1].document
    assert quiet.find(quiet.nodes[25], "*", id=document.id)[0] == ["by id"]


# Standing queries


def test_standing_queries_are_told_once(quiet: Network) -> None:
    watchers = nodes_of(quiet, 6, 7, 8)
    for watcher in watchers:
        watcher.command(0, WatchDocuments("vehicle.speed:>25"), "watch")
    quiet.simulation.run_for(2)
    for number in range(20):
        content = {"vehicle": {"speed": 20 + number}, "title": f"tram {number}"}
        life: Life = "instant" if number % 2 else "managed"
        life_ns = 60 * S_NS if life == "instant" else HOUR_NS
        quiet.put(quiet.nodes[10 + number], f"tram{number}", content, life, life_ns)
    quiet.simulation.run_for(25 * 60)  # managed ones are cast again twice, queries as well
    fast = [f"tram{number}" for number in range(6, 20)]
    for watcher in watchers:
        seen = [event.document.name for event in quiet.heard(watcher, Seen, "watch")]
        assert len(seen) == len(set(seen))
        assert len(set(fast) - set(seen)) <= 1
        assert set(seen) <= set(fast)
        watcher.command(0, Unwatch(), "watch")
    quiet.simulation.run_for(2)
    counts = [len(quiet.heard(watcher, Seen)) for watcher in watchers]
    quiet.put(quiet.nodes[11], "tram99", {"vehicle": {"speed": 99}})
    quiet.simulation.run_for(5)
    assert [len(quiet.heard(watcher, Seen)) for watcher in watchers] == counts


# Clients and users


def test_clients_search_and_put(quiet: Network) -> None:
    first, second = quiet.nodes[40:42]
    quiet.put(first, "from afar", {"title": "lighthouse"})
    quiet.simulation.run_for(2)
    for reader in (second, quiet.nodes[17], first):
        names, over = quiet.find(reader, "lighthouse")
        assert names == ["from afar"]
        assert over.confidence >= 0.99
    quiet.simulation.run_for(120)  # their links are still there
    assert all(quiet.machine(client).joined for client in (first, second))
    assert quiet.heard(first, Joined) == [Joined()]


def test_two_applications_talk(quiet: Network) -> None:
    ann, ben = nodes_of(quiet, 12, 31)
    ben.command(0, ListenUser("chat"))
    ann.command(0, ConnectUser(quiet.contacts[31], "chat"), "call")
    quiet.simulation.run_for(2)
    (opened,) = quiet.heard(ann, UserOpened, "call")
    (arrived,) = quiet.heard(ben, UserArrived)
    assert (arrived.peer, arrived.number, arrived.type) == (ann.id, opened.number, "chat")
    quiet.simulation.run_for(60)
    ann.command(0, SendUser(ben.id, opened.number, b"hello"))
    ben.command(0, SendUser(ann.id, opened.number, b"hi"))
    quiet.simulation.run_for(1)
    ann.command(0, CloseUser(ben.id, opened.number))
    quiet.simulation.run_for(1)
    assert quiet.heard(ben, UserReceived)[0].content == b"hello"
    assert quiet.heard(ann, UserReceived)[0].content == b"hi"
    assert quiet.heard(ben, UserClosed) == [UserClosed(ann.id, opened.number)]


# Measurement


def test_sums_minima_and_maxima_over_the_network(quiet: Network) -> None:
    members = quiet.nodes[:40]
    for node in members:
        node.command(0, Contribute("s:load", float(node.index)))
        node.command(0, Contribute("min:age", 100.0 + node.index))
        node.command(0, Contribute("max:age", 100.0 + node.index))
    quiet.simulation.run_for(2 * MEASURED_S)
    for node in members:
        measured = quiet.machine(node).measured
        assert measured("s:load") == pytest.approx(sum(range(40)), rel=0.05)
        assert (measured("min:age"), measured("max:age")) == (100.0, 139.0)
    for node in members:
        node.command(0, Contribute("s:load", None))
    quiet.simulation.run_for(2 * MEASURED_S)
    assert quiet.machine(members[0]).measured("s:load") is None


def test_nothing_was_refused_and_the_books_are_in_order(quiet: Network) -> None:
    """Of all that the tests above did: last, and about honest nodes only."""
    refused = {
        reason: count
        for reason, count in quiet.records.items()
        if reason not in ("handled", "collision", "dropped", "congested", "no-such-bubble")
    }
    assert refused == {}
    for node in quiet.nodes:
        quiet.machine(node).check_invariants()


# Many at once, bytes, and one seed


def test_a_node_that_puts_much_at_once_loses_nothing() -> None:
    network = Network(15, 20)
    for number in range(600):
        network.put(network.nodes[0], f"bulk{number}", {"title": f"bulk{number}"})
    network.simulation.run_for(40)
    assert network.records["over-budget"] == 0
    assert network.machine(network.nodes[0]).parts.publications.waiting == 0
    found = sum(
        bool(network.find(network.nodes[number % 20], f"bulk{number}")[0])
        for number in range(0, 600, 60)
    )
    assert found == 10


def _run(wire: bool) -> tuple[list[list[str]], str]:
    network = Network(16, 20, wire=wire, clients=1, checkers=[MachineInvariants()])
    digest = TraceHash()
    network.simulation.trace.to(digest)
    for number in range(10):
        network.put(network.nodes[number], f"doc{number}", {"title": f"word{number} all"})
    network.nodes[3].command(0, WatchDocuments("word15"), "watch")
    network.simulation.run_for(2)
    network.put(network.nodes[20], "doc15", {"title": "word15"})
    network.leave(network.nodes[5])
    found = [network.find(network.nodes[20], "all")[0], network.find(network.nodes[2], "word3")[0]]
    found.append([event.document.name for event in network.heard(network.nodes[3], Seen)])
    assert not any(network.records[reason] for reason in ("malformed", "oversized"))
    return [sorted(names) for names in found], digest.hexdigest()


def test_bytes_say_the_same_as_messages() -> None:
    in_bytes, _ = _run(wire=True)
    names, needle, seen = in_bytes
    assert len(names) >= 9
    assert needle == ["doc3"]
    assert seen == ["doc15"]


def test_one_seed_is_one_run() -> None:
    assert _run(wire=False) == _run(wire=False)
