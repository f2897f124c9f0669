"""Links between simulated hosts, without faults but for a crash or two."""

from __future__ import annotations

from shoal.base.ids import Contact
from shoal.base.units import MS_NS, S_NS
from shoal.kernel.effects import CloseLink, OpenLink, Send
from shoal.kernel.host import HostLimits
from shoal.kernel.inputs import LinkClosed, LinkFailed, LinkOpened, MessageReceived
from shoal.kernel.records import LinkDown, LinkUp, Rejected, Undeliverable
from shoal.sim.simulation import DIAL_TIMEOUT_NS, START_NS
from tests.support.machines import Note, NoteCodec, Other, echo, peer_id
from tests.support.tiny_network import DELAY_MS, PURPOSE, TinyNetwork

A, B = peer_id(0), peer_id(1)


def opened_ms(net: TinyNetwork, number: int) -> list[float]:
    machine = net.machine(number)
    return [
        (time_ns - START_NS) / MS_NS
        for event, time_ns in zip(machine.inputs, machine.times_ns, strict=True)
        if isinstance(event, LinkOpened)
    ]


def test_a_dial_takes_two_round_trips() -> None:
    net = TinyNetwork()
    net.do(0, net.claim(0, 1))
    net.run(1)
    assert opened_ms(net, 0) == [4 * DELAY_MS]
    assert net.records(LinkUp) == [LinkUp(B), LinkUp(A)]


def test_a_message_takes_the_delay_and_keeps_its_order() -> None:
    net = TinyNetwork(react=echo)
    net.link()
    begin_ms = net.now_ms()
    net.send(0, 1, range(20))
    net.run(1)
    assert net.machine(1).notes() == net.machine(0).notes() == list(range(20))
    assert net.arrivals_ms(1) == [begin_ms + DELAY_MS] * 20
    assert net.arrivals_ms(0) == [begin_ms + 2 * DELAY_MS] * 20


def test_two_nodes_that_dial_each_other_share_one_link() -> None:
    net = TinyNetwork()
    net.do(0, net.claim(0, 1))
    net.do(1, net.claim(1, 0))
    net.run(1)
    assert net.machine(0).heard(LinkOpened, LinkFailed) == [LinkOpened(B, PURPOSE)]
    assert net.machine(1).heard(LinkOpened, LinkFailed) == [LinkOpened(A, PURPOSE)]
    assert len(net.records(LinkUp)) == 2


def test_nobody_listens_at_a_node_that_does_not_run() -> None:
    net = TinyNetwork()
    net.nodes[1].crash()
    net.do(0, net.claim(0, 1))
    net.run(1)
    assert net.machine(0).heard(LinkFailed) == [LinkFailed(B, PURPOSE, "refused")]


def test_a_node_that_does_not_exist_times_out() -> None:
    net = TinyNetwork()
    net.do(0, OpenLink(Contact(peer_id(77)), PURPOSE))
    net.run(DIAL_TIMEOUT_NS / S_NS - 0.001)
    assert net.machine(0).heard(LinkFailed) == []
    net.run(0.001)
    assert net.machine(0).heard(LinkFailed) == [LinkFailed(peer_id(77), PURPOSE, "no-such-host")]


def test_a_dial_is_lost_when_its_target_dies_meanwhile() -> None:
    net = TinyNetwork()
    net.do(0, net.claim(0, 1))
    net.run(0.001)
    net.nodes[1].crash()
    net.nodes[1].start()
    net.run(1)
    assert net.machine(0).heard(LinkFailed) == [LinkFailed(B, PURPOSE, "lost")]
    assert net.machine(1).heard(LinkOpened) == []


def test_a_closing_end_flushes() -> None:
    limits = HostLimits(parked_ns=0)
    net = TinyNetwork(limits=limits)
    net.do(0, net.claim(0, 1))
    net.do(1, net.claim(1, 0))
    net.run(1)
    net.machine(1).forget()
    net.do(0, Send(Note(1), (B,)), Send(Note(2), (B,)), CloseLink(B, PURPOSE))
    net.run(1)
    assert net.machine(1).heard() == [
        MessageReceived(A, Note(1)),
        MessageReceived(A, Note(2)),
        LinkClosed(A, PURPOSE, "closed"),
    ]
    assert net.records(LinkDown) == [LinkDown(B, "unclaimed"), LinkDown(A, "closed")]


def test_what_comes_in_after_closing_is_dropped() -> None:
    net = TinyNetwork(limits=HostLimits(parked_ns=0))
    net.do(0, net.claim(0, 1))
    net.do(1, net.claim(1, 0))
    net.run(1)
    net.send(1, 0, [1])
    net.do(0, CloseLink(B, PURPOSE))
    net.run(1)
    assert net.machine(0).notes() == []


def test_an_unclaimed_inbound_link_is_parked_and_then_closed() -> None:
    net = TinyNetwork()
    net.do(0, net.claim(0, 1))
    net.run(9)
    assert net.records(LinkDown) == []
    net.run(2)
    assert net.records(LinkDown) == [LinkDown(A, "unclaimed"), LinkDown(B, "closed")]
    assert net.machine(0).heard(LinkClosed) == [LinkClosed(B, PURPOSE, "closed")]


def test_a_message_without_a_link_is_counted() -> None:
    net = TinyNetwork()
    net.do(0, Send(Note(1), (B,)))
    assert net.records(Undeliverable) == [Undeliverable(B)]


def test_a_message_to_oneself_needs_no_link() -> None:
    for wire in (False, True):
        net = TinyNetwork(wire=wire)
        net.do(0, Send(Note(1), (A,)))
        assert net.machine(0).notes() == [1]


def test_a_message_of_no_machine_is_rejected_and_nothing_else_suffers() -> None:
    net = TinyNetwork()
    net.link()
    net.do(0, Send(Other(), (B,)), Send(Note(2), (B,)))
    net.run(1)
    assert net.records(Rejected) == [Rejected(A, "no-such-role")]
    assert net.machine(1).notes() == [2]


def test_in_wire_mode_bytes_that_are_no_message_are_rejected() -> None:
    class Garbling(NoteCodec):
        def encode(self, message: Note) -> bytes:
            return b"\xc1" if message.number == 1 else super().encode(message)

    net = TinyNetwork(wire=True, codecs=[Garbling()])
    net.link()
    net.send(0, 1, [1, 2])
    net.run(1)
    assert net.records(Rejected) == [Rejected(A, "malformed")]
    assert net.machine(1).notes() == [2]


def test_a_node_that_is_back_before_its_death_was_noticed_replaces_its_link() -> None:
    """The old link must not take the new one with it when the news of the crash arrives."""
    net = TinyNetwork()
    net.link()
    net.nodes[0].crash(5 * S_NS)
    net.nodes[0].start()
    net.do(0, net.claim(0, 1))
    net.run(1)
    assert net.machine(1).heard() == [LinkClosed(A, PURPOSE, "replaced")]
    net.do(1, net.claim(1, 0))
    net.run(8)
    net.send(0, 1, [1])
    net.send(1, 0, [2])
    net.run(1)
    assert net.machine(1).heard()[1:] == [LinkOpened(A, PURPOSE), MessageReceived(A, Note(1))]
    assert net.machine(0).notes() == [2]
    assert net.records(LinkDown) == [LinkDown(A, "replaced")]
