"""Links for a few messages, to whoever is named by a record or a bubble.

Who signs a bubble names the address that answers go to, and may name somebody else's. A dial finds
that out, since the link proves who is there; but hundreds of nodes that dial again and again would
be a flood. So an address that did not lead to its node is left alone for a while, and each host
gets few calls, whatever its ports are.
"""

from __future__ import annotations

from shoal.base.units import S_NS
from shoal.kernel.contact import Contact
from shoal.kernel.effects import Effect
from shoal.kernel.rate_limit import RateLimit
from shoal.protocols.search.links import VISIT, Links, Then, host_of

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
