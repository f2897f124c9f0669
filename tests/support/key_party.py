"""A node with its key exchange alone, for tests of that machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.base.ids import Contact, NodeId, StreamId
from shoal.base.units import S_NS
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.group_key import GroupKey
from shoal.kernel.access import Permission, Verdict
from shoal.kernel.fake_host import FakeHost
from shoal.kernel.host import HostLimits
from shoal.kernel.records import Rejected
from shoal.protocols.streams.commands import FindKey
from shoal.protocols.streams.config import ExchangeConfig
from shoal.protocols.streams.keys.key_exchange import KeyExchange
from shoal.protocols.streams.keys.key_ring import KeyRing
from shoal.protocols.streams.member.stream_node import FixedVicinity
from shoal.protocols.streams.messages import KeyRequest

STREAM = StreamId("0x" + "11" * 20 + "/private")
ME, ALICE, BOB, CAROL = (
    PrivateKey.generate(SeededEntropy(name)) for name in ("me", "alice", "bob", "carol")
)
KEY = GroupKey.generate(STREAM, ALICE.address, SeededEntropy("key"))
FIND = FindKey(STREAM, ALICE.address, KEY.id)
YES = Verdict(Permission.SUBSCRIBE, 2**63 - 1)
NO = Verdict(Permission.PUBLISH, 2**63 - 1)


class Party:
    """A node with its exchange, whose neighbours are linked."""

    def __init__(
        self,
        key: PrivateKey,
        neighbours: Sequence[PrivateKey] = (),
        config: ExchangeConfig | None = None,
        trackers: Sequence[Contact] = (),
    ) -> None:
        self.key = key
        self.vicinity = FixedVicinity([one.address for one in neighbours], trackers)
        self.config = config
        self.begin()

    def begin(self) -> None:
        """A new incarnation: nothing is remembered."""
        entropy = SeededEntropy(f"party {self.key.address.hex()}")
        self.ring = KeyRing()
        self.machine = KeyExchange(self.key, self.ring, self.vicinity, entropy, self.config)
        limits = HostLimits(parked_ns=3600 * S_NS)  # as if the overlay held them
        self.host = FakeHost(self.key.address, [self.machine], limits)
        self.host.start()
        for peer in self.vicinity.around:
            self.host.link_opened(peer)

    def ask(self, find: FindKey = FIND) -> None:
        self.host.command(self.machine, find, "token")

    def take(self) -> list[tuple[NodeId, Any]]:
        """What was sent since."""
        sent, self.host.sent = self.host.sent, []
        self.machine.check_invariants()
        return sent

    def rejected(self) -> list[tuple[NodeId, str]]:
        return [(r.peer, r.reason) for r in self.host.records if isinstance(r, Rejected)]


def request(party: PrivateKey = ME, number: int = 1, key: bytes = KEY.id) -> KeyRequest:
    return KeyRequest(number, STREAM, key, party.public.to_bytes())
