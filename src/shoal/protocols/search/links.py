"""Links to peers, and what waits for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from shoal.base.containers import RateLimit
from shoal.base.errors import InvariantViolated
from shoal.base.ids import Contact, NodeId, short_node_id
from shoal.base.units import S_NS
from shoal.kernel.effects import CloseLink, Effect, OpenLink

EDGE = "edge"  # held as long as an edge goes over it
CLIENT = "client"  # to our host, as long as we are its client
GUEST = "guest"  # from a client of ours, as long as it is one
USER = "user"  # for connections of applications
VISIT = "visit"  # for a few messages: taken away again when there are too many

WAITING_MAX = 256  # that wait for one link: a dial takes seconds, and answers do not stop for it

Then = Callable[[bool, int], list[Effect]]


def host_of(address: str) -> str:
    """The machine that an address leads to; nothing, if it makes no sense."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def is_private(address: str) -> bool:
    """Whether an address leads into somebody's own network. A name may, too: the driver has to
    look at what it stands for."""
    host = host_of(address)
    try:
        return not ip_address(host).is_global
    except ValueError:
        return host in ("", "localhost")


class Links:
    """Our claims for one purpose."""

    def __init__(self, purpose: str, *, soft: bool) -> None:
        self._purpose = purpose
        self._soft = soft
        self._up: dict[NodeId, None] = {}
        self._waiting: dict[NodeId, list[Then]] = {}
        self.may_dial: Callable[[str], bool] = lambda address: True
        """Whether an address is one that we go to, whoever names it."""

    def __contains__(self, peer: NodeId) -> bool:
        """Whether we hold a link to this peer."""
        return peer in self._up

    def __len__(self) -> int:
        return len(self._up) + len(self._waiting)

    def is_waiting(self, peer: NodeId) -> bool:
        """Whether somebody waits for a link to this peer."""
        return peer in self._waiting

    def open(self, contact: Contact, then: Then, now_ns: int) -> list[Effect]:
        """Do something when a link is up, or has failed; that may be at once."""
        peer = contact.node
        if peer in self._up:
            return then(True, now_ns)
        waiting = self._waiting.get(peer)
        if waiting is not None:
            if len(waiting) >= WAITING_MAX:
                return then(False, now_ns)
            waiting.append(then)
            return []
        self._waiting[peer] = [then]
        contact = Contact(peer, tuple(filter(self.may_dial, contact.addresses)))
        return [OpenLink(contact, self._purpose, self._soft)]

    def opened(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """A link that we claimed is up."""
        self._up[peer] = None
        return self._tell(peer, True, now_ns)

    def lost(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """A link is gone, or did not come to be."""
        self._up.pop(peer, None)
        return self._tell(peer, False, now_ns)

    def release(self, peer: NodeId) -> list[Effect]:
        """We need it no more."""
        if peer not in self._up:
            return []
        del self._up[peer]
        return [CloseLink(peer, self._purpose)]

    def check_invariants(self, used: Sequence[NodeId]) -> None:
        """Raise InvariantViolated if a link is held for nothing, or used without being held."""
        for peer in self._up:
            if peer not in used:
                raise InvariantViolated(f"the link to {short_node_id(peer)} is held for nothing")
        for peer in used:
            if peer not in self._up and peer not in self._waiting:
                raise InvariantViolated(f"the link to {short_node_id(peer)} is used, but not held")

    def _tell(self, peer: NodeId, up: bool, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for then in self._waiting.pop(peer, ()):
            effects += then(up, now_ns)
        return effects


# Links for a few messages, to whoever is named by a record or a bubble.
#
# Who signs a bubble names the address that answers go to, and may name somebody else's. A dial
# finds that out, since the link proves who is there; but hundreds of nodes that dial again and
# again would be a flood. So an address that did not lead to its node is left alone for a while, and
# each host gets few calls, whatever its ports are.


LEFT_ALONE_NS = 60 * S_NS  # longer than whoever restarts needs
REMEMBERED_MAX = 4096  # addresses and hosts
CALLS_BURST = 64  # to one host at once: a household, or a laboratory on one machine
CALLS_NS = 1 * S_NS  # and one more in each of these


class Visits(Links):
    """Claims that are taken away again when there are too many."""

    def __init__(self) -> None:
        super().__init__(VISIT, soft=True)
        self._failed: dict[str, int] = {}
        """Addresses that did not lead to their node, and when that was."""
        self._calls = RateLimit(CALLS_BURST, CALLS_NS, REMEMBERED_MAX)

    def call(self, contact: Contact, then: Then, now_ns: int) -> list[Effect]:
        """Open a link to somebody whose address nobody has proven yet."""
        node = contact.node
        if node in self or self.is_waiting(node):
            return self.open(contact, then, now_ns)
        addresses = [one for one in contact.addresses if not self._is_left_alone(one, now_ns)]
        hosts = dict.fromkeys(host_of(one) for one in addresses)
        called_lately = not all(self._calls.allow(host, now_ns) for host in hosts)
        if called_lately or (contact.addresses and not addresses):
            return then(False, now_ns)

        def reached(up: bool, now_ns: int) -> list[Effect]:
            for address in addresses:
                self._note(address, up, now_ns)
            return then(up, now_ns)

        return self.open(Contact(node, tuple(addresses)), reached, now_ns)

    def _is_left_alone(self, address: str, now_ns: int) -> bool:
        failed_ns = self._failed.get(address)
        return failed_ns is not None and now_ns < failed_ns + LEFT_ALONE_NS

    def _note(self, address: str, up: bool, now_ns: int) -> None:
        self._failed.pop(address, None)
        if not up:
            self._failed[address] = now_ns
            if len(self._failed) > REMEMBERED_MAX:
                del self._failed[next(iter(self._failed))]
