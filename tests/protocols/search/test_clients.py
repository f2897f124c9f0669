"""Clients and their hosts, from both sides."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from shoal.base.units import S_NS
from shoal.kernel.fake_host import FakeHost
from shoal.kernel.records import Rejected
from shoal.protocols.search.circle.clients import (
    HELLO_BEATS,
    MISSED_MAX,
    REDIRECTED_MAX,
    WAITING_MAX,
)
from shoal.protocols.search.commands import FindDocuments, Found, Joined, Leave, Left
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.machine import SearchNode
from shoal.protocols.search.messages import (
    BubbleCast,
    ClientDeny,
    ClientHello,
    ClientOk,
    ClientRedirect,
    Match,
    Totals,
)
from shoal.protocols.search.payloads import Hit, Search, encode_item
from shoal.protocols.search.signed_records import AddressRecord
from tests.support.bubbles import TOTALS, BubbleBench, a_cast
from tests.support.circle import BEAT_S, ME, CircleBench, Peer
from tests.support.documents import a_document

ANN, BEN, CEM = Peer(50), Peer(51), Peer(52)
OK = ClientOk(TOTALS)


# The host's side


def accepted(bench: BubbleBench, peer: Peer) -> list[Any]:
    bench.says(peer, ClientHello(peer.record))
    return [message for to, message in bench.sent() if to == peer.node]


def test_a_client_is_told_how_large_the_network_is() -> None:
    bench = BubbleBench()
    assert accepted(bench, ANN) == [OK]
    assert ANN.node in bench.parts.clients


def test_the_link_of_a_client_is_kept() -> None:
    """Links that nobody claims are dropped after a while."""
    bench = BubbleBench()
    accepted(bench, ANN)
    bench.host.link_opened(BEN.node)
    bench.wait(30)
    assert bench.host.hung_up == [BEN.node]
    assert ANN.node in bench.parts.clients


def test_a_client_that_is_gone_makes_room() -> None:
    bench = BubbleBench(SearchConfig(clients_max=1))
    assert accepted(bench, ANN) == [OK]
    assert accepted(bench, BEN) == [ClientDeny("full")]
    assert accepted(bench, ANN) == [OK]  # it is one already
    bench.crash(ANN)
    assert accepted(bench, BEN) == [OK]
    assert len(bench.parts.clients) == 1


def test_a_client_gives_its_own_address() -> None:
    bench = BubbleBench()
    bench.says(ANN, ClientHello(BEN.record))
    assert bench.rejected == ["not-its-address"]
    assert len(bench.parts.clients) == 0


def test_who_has_no_place_has_no_clients() -> None:
    bench = CircleBench(Peer(1))
    bench.says(ANN, ClientHello(ANN.record))
    assert (ANN.node, ClientDeny("not joined yet")) in bench.host.sent


def test_who_leaves_sends_its_clients_to_its_neighbours() -> None:
    bench = BubbleBench()
    for client in (ANN, BEN):
        accepted(bench, client)
    bench.leave()
    redirects = [(to, m) for to, m in bench.sent() if type(m) is ClientRedirect]
    assert [to for to, _ in redirects] == [ANN.node, BEN.node]
    named = [record.node for record in redirects[0][1].others]
    assert len(named) == REDIRECTED_MAX
    assert all(node in [peer.node for peer in bench.neighbours] for node in named)
    assert accepted(bench, CEM) == [ClientDeny("leaving")]
    bench.says(ANN, a_cast(ANN))
    assert bench.rejected == ["no-client"]


def test_answers_go_back_to_a_client_over_its_link() -> None:
    bench = BubbleBench()
    accepted(bench, ANN)
    cast = a_cast(ANN, Search("air", 10))
    bench.says(ANN, cast)
    assert len(bench.casts()) == 2
    bench.says(bench.neighbours[0], Match(cast.id, (b"answer",), True))
    assert bench.sent() == [(ANN.node, Match(cast.id, (b"answer",), False))]
    assert ANN.node not in [contact.node for contact in bench.host.dialled]


def test_hosts_take_no_messages_for_clients() -> None:
    bench = BubbleBench()
    for message in (OK, ClientDeny("no"), ClientRedirect(())):
        bench.says(ANN, message)
    assert bench.rejected == ["not-asked"] * 3


# The client's side


class ClientBench:
    """A client whose hosts a test plays."""

    def __init__(self, *bootstrap: Peer) -> None:
        contacts = [peer.contact for peer in bootstrap]
        self.machine = SearchNode(ME.key, contacts, Random(1), client=True)
        self.host = FakeHost(ME.node, [self.machine])
        self.host.start()
        self._read = 0

    @property
    def asked(self) -> Peer:
        """Whom the last dial is for."""
        known = (ANN, BEN, CEM)
        return next(peer for peer in known if peer.node == self.host.dialled[-1].node)

    def sent(self) -> list[Any]:
        sent, self._read = self.host.sent[self._read :], len(self.host.sent)
        return sent

    def says(self, peer: Peer, message: Any, *, valid: bool = True) -> None:
        self.host.received(peer.node, message)
        self.host.finish_all(valid=valid)

    def enter(self) -> Peer:
        peer = self.asked
        self.host.link_opened(peer.node)
        self.says(peer, OK)
        self.sent()
        return peer

    def beat(self, beats: int = 1) -> None:
        self.host.advance(beats * BEAT_S * S_NS)

    @property
    def rejected(self) -> list[str]:
        return [r.reason for r in self.host.records if isinstance(r, Rejected)]


def test_a_client_finds_a_host() -> None:
    bench = ClientBench(ANN)
    bench.host.link_opened(ANN.node)
    [(to, hello)] = bench.sent()
    assert to == ANN.node
    assert isinstance(hello, ClientHello)
    assert hello.record.node == ME.node
    assert not bench.machine.joined
    bench.says(ANN, OK)
    assert bench.machine.joined
    assert bench.host.notified == [Joined()]
    assert bench.machine.parts.measurement.known == TOTALS


def test_it_does_not_ask_all_the_time() -> None:
    bench = ClientBench(ANN)
    bench.enter()
    bench.beat(HELLO_BEATS - 1)
    assert bench.sent() == []
    bench.beat()
    assert [type(message) for _, message in bench.sent()] == [ClientHello]


def test_it_follows_the_network_as_it_grows() -> None:
    bench = ClientBench(ANN)
    bench.enter()
    for size in (2000.0, 9000.0, 100.0):
        bench.says(ANN, ClientOk(Totals(size, 6 * size, 36 * size)))
    for _ in range(30):
        bench.says(ANN, ClientOk(Totals(50.0, 300.0, 1800.0)))
    known = bench.machine.parts.measurement.known
    assert known is not None
    assert known.nodes == 50.0
    bench.says(ANN, ClientOk(Totals(50.0, 1.0, 1800.0)))  # that cannot be
    assert bench.machine.parts.measurement.known == known


def test_a_host_that_does_not_answer_is_gone() -> None:
    bench = ClientBench(ANN, BEN)
    host = bench.enter()
    bench.beat(HELLO_BEATS)
    assert len(bench.sent()) == 1
    bench.beat(MISSED_MAX)
    assert bench.asked != host
    assert not bench.machine.joined
    bench.enter()
    assert bench.machine.joined


def test_who_is_denied_waits_for_the_next_beat() -> None:
    bench = ClientBench(ANN)
    bench.host.link_opened(ANN.node)
    bench.sent()
    bench.says(ANN, ClientDeny("full"))
    assert bench.sent() == []  # or two nodes would do nothing else
    bench.beat()
    assert [type(message) for _, message in bench.sent()] == [ClientHello]


def test_a_host_that_denies_later_is_left() -> None:
    bench = ClientBench(ANN)
    bench.enter()
    bench.says(ANN, ClientDeny("restarted"))
    assert not bench.machine.joined
    bench.host.advance(BEAT_S * S_NS // 2)
    assert len(bench.machine.parts.host_links) <= 1


def test_a_redirected_client_goes_on_at_once() -> None:
    bench = ClientBench(ANN)
    bench.enter()
    bench.says(ANN, ClientRedirect((BEN.record, CEM.record)))
    assert bench.asked == BEN
    bench.host.dial_failed(BEN.node, "refused")
    bench.beat(2)
    bench.host.link_opened(CEM.node)
    assert CEM.node in [contact.node for contact in bench.host.dialled]


def test_a_client_dials_nobody_who_did_not_sign_its_address() -> None:
    bench = ClientBench(ANN)
    bench.enter()
    fake = AddressRecord(BEN.node, ("ws://10.6.6.6:1",), 5, bytes(65))
    bench.says(ANN, ClientRedirect((fake,)), valid=False)
    bench.beat(3)
    assert BEN.node not in [contact.node for contact in bench.host.dialled]


@pytest.mark.parametrize("message", [OK, ClientDeny("no"), ClientRedirect((BEN.record,))])
def test_strangers_do_not_become_hosts(message: Any) -> None:
    bench = ClientBench(ANN)
    bench.enter()
    bench.host.link_opened(CEM.node)
    bench.says(CEM, message)
    assert bench.rejected == ["not-asked"]
    assert bench.machine.parts.hosting.host == ANN.node


def test_a_client_is_no_host() -> None:
    bench = ClientBench(ANN)
    bench.enter()
    bench.host.link_opened(BEN.node)
    bench.says(BEN, ClientHello(BEN.record))
    assert bench.sent() == [(BEN.node, ClientDeny("not joined yet"))]


def test_a_dial_that_came_too_late_is_given_back() -> None:
    bench = ClientBench(ANN, BEN)
    first = bench.asked
    bench.beat()
    second = bench.enter()
    assert second != first
    bench.host.link_opened(first.node)
    bench.host.advance(30 * S_NS)
    assert bench.host.hung_up == [first.node]
    assert bench.machine.parts.hosting.host == second.node


def test_searches_go_through_the_host() -> None:
    bench = ClientBench(ANN)
    bench.enter()
    bench.host.command(bench.machine, FindDocuments("air", 0.9, None, 60 * S_NS), "t")
    [(to, cast)] = bench.sent()
    assert to == ANN.node
    assert isinstance(cast, BubbleCast)
    assert cast.edge is None
    assert (cast.size, cast.start, cast.end) == (cast.total, 0, cast.total)
    bench.says(ANN, Match(cast.id, (encode_item(Hit(a_document().signed, 1.0)),), False))
    assert [type(event) for event in bench.host.notified][-1] is Found


def test_without_a_host_bubbles_wait_for_one() -> None:
    bench = ClientBench(ANN, BEN)
    first = bench.enter()
    bench.host.link_closed(first.node, "crashed")
    for number in range(WAITING_MAX + 3):
        bench.host.command(bench.machine, FindDocuments("air", 0.9, None, 60 * S_NS), f"{number}")
    assert bench.sent() == []
    bench.beat()
    peer = bench.asked
    bench.host.link_opened(peer.node)
    bench.sent()
    bench.says(peer, OK)
    assert [type(message) for _, message in bench.sent()] == [BubbleCast] * WAITING_MAX


def test_a_client_that_leaves_lets_its_host_go() -> None:
    bench = ClientBench(ANN)
    bench.enter()
    bench.host.command(bench.machine, Leave())
    assert bench.host.notified[-1] == Left()
    bench.host.advance(30 * S_NS)
    assert bench.host.hung_up == [ANN.node]
    assert bench.sent() == []
