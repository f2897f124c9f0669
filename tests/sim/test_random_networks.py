"""Random wishes, crashes and faults on a few nodes: links never end up half open, order is kept."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from shoal.base.units import MS_NS
from shoal.kernel.effects import CloseLink, PauseReading, ResumeReading
from shoal.kernel.host import HostLimits
from shoal.kernel.inputs import Input, LinkClosed, LinkFailed, LinkOpened, MessageReceived
from shoal.sim.faults import Bandwidth, Fault, Jitter, Loss, Partition, ServiceTime
from tests.support.machines import peer_id
from tests.support.tiny_network import PURPOSE, TinyNetwork

NODES = 4
FAULTY_S = 5.0
WISHES = ["open"] * 20 + ["send"] * 30 + ["close"] * 3 + ["pause", "resume", "resume", "crash"]
WISHES_COUNT = 300
BURST = 5
LIMITS = HostLimits(parked_ns=300 * MS_NS)
SEEDS = 100


def random_fault(rng: Random) -> Fault:
    """A fault that keeps order and is over in the end."""
    start_s, end_s = sorted((rng.uniform(0, FAULTY_S), rng.uniform(0, FAULTY_S)))
    match rng.randrange(5):
        case 0:
            return Jitter(mean_ms=300, start_s=start_s, end_s=end_s)
        case 1:
            return Loss(probability=0.3, start_s=start_s, end_s=end_s)
        case 2:
            return Bandwidth(mbit_s=0.05, queue_kib=4, start_s=start_s, end_s=end_s)
        case 3:
            return ServiceTime(per_message_ms=10, start_s=start_s, end_s=end_s)
        case _:
            return Partition(fraction=0.5, detect_s=0.5, start_s=start_s, end_s=end_s)


@pytest.mark.parametrize("first_seed", range(0, SEEDS, 10))
def test_links_are_whole_and_messages_in_order(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 10):
        try:
            assert play(seed) > 50, "hardly any message arrived"
        except BaseException as error:
            error.add_note(f"seed {seed}: play({seed}) shows it again")
            raise


def play(seed: int) -> int:
    """One random run; the number of messages that arrived."""
    rng = Random(seed)
    net = TinyNetwork(NODES, seed=seed, limits=LIMITS, wire=rng.random() < 0.5)
    for _ in range(rng.randrange(4)):
        random_fault(rng).install(net.simulation)
    for count in range(WISHES_COUNT):
        wish = partial(carry_out, net, count, rng.choice(WISHES), *rng.sample(range(NODES), 2))
        net.simulation.at_s(FAULTY_S * (count + rng.random()) / WISHES_COUNT, wish)
    net.simulation.run_until_s(FAULTY_S)
    for a in range(NODES):
        carry_out(net, 0, "start", a, a)
        for b in range(NODES):
            carry_out(net, 0, "resume", a, b)
    net.run(60)
    check_links(net)
    for machine in net.machines.values():
        check_order(machine.inputs)
        check_claims(machine.inputs)
    return sum(len(machine.notes()) for machine in net.machines.values())


def carry_out(net: TinyNetwork, count: int, what: str, a: int, b: int) -> None:
    node, peer = net.nodes[a], peer_id(b)
    runs = node.host is not None
    if what == "start" and not runs:
        node.start()
    elif what == "crash" and runs:
        node.crash(b * 200 * MS_NS)
        net.simulation.at_s(net.simulation.time_s + 0.3, partial(carry_out, net, 0, "start", a, b))
    elif runs and a != b:
        match what:
            case "open":
                net.do(a, net.claim(a, b))
            case "close":
                net.do(a, CloseLink(peer, PURPOSE))
            case "send":
                net.send(a, b, range(count * BURST, (count + 1) * BURST), padding=100)
            case "pause":
                net.do(a, PauseReading(peer))
            case "resume":
                net.do(a, ResumeReading(peer))


def check_links(net: TinyNetwork) -> None:
    """Both sides of every link agree, with each other and with their tables of claims."""
    for a, node in enumerate(net.nodes):
        assert node.host is not None
        for b in range(NODES):
            end = node.host.ends.get(peer_id(b))
            assert node.host.links.is_up(peer_id(b)) == (end is not None)
            if end is None:
                assert peer_id(b) not in node.host.links, "waits for a dial that is over"
            else:
                other = net.nodes[b].host
                assert other is not None
                assert end.open
                assert other.ends.get(peer_id(a)) is end.partner, "half open"
                assert not end.waiting
                assert end.marks == 0


def check_order(inputs: list[Input]) -> None:
    """Whatever was lost, the rest came in the order in which it was sent, and once."""
    last: dict[bytes, int] = {}
    for event in inputs:
        if isinstance(event, MessageReceived):
            sent = event.message.number
            assert last.get(event.peer, -1) < sent
            last[event.peer] = sent


def check_claims(inputs: list[Input]) -> None:
    """LinkClosed follows LinkOpened; a link that failed was not open, unless something waited."""
    is_open: dict[bytes, bool] = {}
    for event in inputs:
        match event:
            case LinkOpened(peer):
                is_open[peer] = True
            case LinkClosed(peer):
                assert is_open.get(peer)
                is_open[peer] = False
            case LinkFailed(peer):
                is_open[peer] = False
