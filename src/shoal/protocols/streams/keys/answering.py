"""Answering those who ask for a group key.

A key is handed to neighbours in the overlay, and to those whom the tracker of the stream has told
us to expect; in either case only if they may read the stream now, as the registry says, and wrapped
for their public key: a link is authentic, but need not be secret. Whoever comes by itself gets
nothing.
"""

from __future__ import annotations

import msgspec

from shoal.base.errors import InvariantViolated, MalformedMessage
from shoal.base.ids import NodeId, StreamId
from shoal.identity.entropy import Entropy
from shoal.identity.group_key import GroupKey
from shoal.identity.keys import PublicKey
from shoal.identity.wrapped_key import wrap_key
from shoal.kernel.access import Permission
from shoal.kernel.effects import CheckAccess, CloseLink, Effect, OpenLink, Send, SetTimer
from shoal.kernel.inputs import AccessChecked
from shoal.kernel.rate_limit import RateLimit
from shoal.kernel.records import Rejected
from shoal.protocols.streams.keys.config import ExchangeConfig
from shoal.protocols.streams.keys.messages import KeyAnswer, KeyRequest
from shoal.protocols.streams.keys.ring import KeyRing
from shoal.protocols.streams.keys.vicinity import Vicinity
from shoal.protocols.streams.messages import Expect

READER = "reader"  # the purpose of links to those who are expected, and of their timers


class _Asked(msgspec.Struct, frozen=True):
    """A request that waits for the registry's word."""

    request: int
    key: GroupKey
    reader: PublicKey


class Answers:
    """All requests that a node is asked for keys with."""

    def __init__(
        self,
        node: NodeId,
        ring: KeyRing,
        vicinity: Vicinity,
        entropy: Entropy,
        config: ExchangeConfig,
    ) -> None:
        self.met: dict[NodeId, PublicKey] = {}
        """Public keys of those who were given a key, the newest."""
        self._node = node
        self._ring = ring
        self._vicinity = vicinity
        self._entropy = entropy
        self._config = config
        self._expected: dict[NodeId, dict[StreamId, None]] = {}
        self._checks: dict[tuple[StreamId, NodeId], list[_Asked]] = {}
        self._checks_count = 0
        self._limit = RateLimit(config.requests_burst, config.request_ns, config.request_peers_max)

    # Who is expected

    def expect(self, tracker: NodeId, message: Expect) -> list[Effect]:
        """The tracker has told a reader to ask us. It dials us, and we dial it: one of the two may
        be where it cannot be dialled."""
        stream, reader = message.stream, message.reader.node
        if self._vicinity.tracker(stream) != tracker:
            return [Rejected(tracker, "not-my-tracker")]
        if reader == self._node:
            return [Rejected(tracker, "expects-myself")]
        timer = SetTimer((READER, reader), self._config.expected_ns)
        streams = self._expected.get(reader)
        if streams is not None:
            streams[stream] = None
            return [timer]
        if len(self._expected) >= self._config.expected_max:
            return [Rejected(reader, "too-many-readers")]
        self._expected[reader] = {stream: None}
        return [timer, OpenLink(message.reader, READER)]

    def streams_of(self, peer: NodeId) -> list[StreamId]:
        """In which streams somebody is expected."""
        return list(self._expected.get(peer, ()))

    def expect_no_longer(self, reader: NodeId) -> list[Effect]:
        """Its time is over."""
        del self._expected[reader]
        return [CloseLink(reader, READER)]

    # Requests

    def requested(self, peer: NodeId, request: KeyRequest, now_ns: int) -> list[Effect]:
        """Somebody asks for a key."""
        stream = request.stream
        is_neighbour = peer in self._vicinity.neighbours(stream)
        if not is_neighbour and stream not in self._expected.get(peer, ()):
            return [Rejected(peer, "not-introduced")]
        if not self._limit.allow(peer, now_ns):
            return [Rejected(peer, "too-many-key-requests")]
        try:
            reader = PublicKey.from_bytes(request.public_key)
        except MalformedMessage:
            return [Rejected(peer, "no-public-key")]
        if reader.address != peer:
            return [Rejected(peer, "another-public-key")]
        key = self._ring.get(request.key)
        full = self._checks_count >= self._config.checks_max
        if key is None or key.stream != stream or full:
            return [Send(KeyAnswer(request.request, None), (peer,))]
        waiting = self._checks.setdefault((stream, peer), [])
        waiting.append(_Asked(request.request, key, reader))
        self._checks_count += 1
        return [CheckAccess(stream, peer)] if len(waiting) == 1 else []

    def checked(self, checked: AccessChecked) -> list[Effect]:
        """The registry says what somebody may do."""
        peer = checked.who
        waiting = self._checks.pop((checked.stream, peer), [])
        self._checks_count -= len(waiting)
        if waiting and checked.verdict.allows(Permission.SUBSCRIBE):
            self._meet(peer, waiting[0].reader)
            return [
                Send(
                    KeyAnswer(
                        asked.request, wrap_key(asked.key, asked.reader, self._entropy).sealed
                    ),
                    (peer,),
                )
                for asked in waiting
            ]
        effects: list[Effect] = [Send(KeyAnswer(asked.request, None), (peer,)) for asked in waiting]
        if waiting and not checked.verdict.problem:
            effects.append(Rejected(peer, "key-not-permitted"))
        return effects

    def _meet(self, peer: NodeId, public: PublicKey) -> None:
        self.met.pop(peer, None)
        self.met[peer] = public
        if len(self.met) > self._config.met_max:
            del self.met[next(iter(self.met))]

    def check_invariants(self) -> None:
        """Raise InvariantViolated on impossible state."""
        if self._checks_count != sum(map(len, self._checks.values())):
            raise InvariantViolated(f"{self._checks_count} checks are counted, others are there")
        if self._checks_count > self._config.checks_max:
            raise InvariantViolated(f"{self._checks_count} requests wait for the registry")
        if len(self._expected) > self._config.expected_max:
            raise InvariantViolated(f"{len(self._expected)} readers are expected")
