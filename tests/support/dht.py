"""Parts of DHT tests: contacts with addresses, and one machine at a fake host."""

from __future__ import annotations

from random import Random
from typing import Any

from shoal.base.ids import Contact, NodeId
from shoal.kernel.fake_host import FakeHost
from shoal.kernel.records import Rejected
from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.key_space import common_bits, id_of_node
from shoal.protocols.dht.machine import DhtNode
from shoal.protocols.dht.validators import judge_any
from tests.support.machines import peer_id

ME = peer_id(0)


def contact(number: int, prefix: int | None = None) -> Contact:
    """A node with an address prefix of its own, or of the one named."""
    block = number if prefix is None else prefix
    host = f"10.{block >> 8 & 255}.{block & 255}.{number % 250 + 1}"
    return Contact(peer_id(number), (f"ws://{host}:4000",))


def sharing(bits: int, count: int, me: NodeId = ME, first: int = 1) -> list[Contact]:
    """Nodes that share exactly so many leading bits with one."""
    found: list[Contact] = []
    number = first
    while len(found) < count:
        if common_bits(id_of_node(peer_id(number)), id_of_node(me)) == bits:
            found.append(contact(number))
        number += 1
    return found


class DhtBench:
    """One DHT machine; the test is its peers."""

    def __init__(self, config: DhtConfig | None = None, *bootstrap: Contact) -> None:
        self.machine = DhtNode(ME, bootstrap, judge_any, Random(1), config, ("ws://10.9.9.9:1",))
        self.host = FakeHost(ME, [self.machine])
        self.host.start()

    def meet(self, *peers: Contact) -> None:
        """Links from these peers are up."""
        for peer in peers:
            self.host.link_opened(peer.node)

    def says(self, peer: Contact, message: Any) -> list[Any]:
        """A peer sends something; what the machine sends it in return."""
        before = len(self.host.sent)
        self.host.received(peer.node, message)
        self.machine.check_invariants()
        return [sent for to, sent in self.host.sent[before:] if to == peer.node]

    def sent_to(self, peer: Contact) -> list[Any]:
        """All that a peer was sent so far."""
        return [message for to, message in self.host.sent if to == peer.node]

    def rejected(self) -> list[str]:
        """Why things were dropped."""
        return [r.reason for r in self.host.records if isinstance(r, Rejected)]

    def command(self, command: Any, token: Any = None) -> None:
        """The application wants something."""
        self.host.command(self.machine, command, token)
        self.machine.check_invariants()
