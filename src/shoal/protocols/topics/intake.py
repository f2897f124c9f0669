"""What peers bring is checked before it is believed: events, requests, topics.

Signatures are checked off the machine. Meanwhile the same thing is not checked twice, and a join
waits for the topic that came with it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shoal.base.errors import BadSignature, MalformedMessage
from shoal.base.ids import NodeId
from shoal.identity.topics.cid import Cid
from shoal.identity.topics.descriptors import Descriptor
from shoal.identity.topics.signing import claims
from shoal.kernel.effects import Effect, Verify
from shoal.kernel.inputs import Verified
from shoal.kernel.records import Rejected
from shoal.protocols.topics.config import TopicsConfig

WAITING_MAX = 256  # peers that wait for one topic

Then = Callable[[int], list[Effect]]


class _Check(msgspec.Struct):
    peer: NodeId
    id: Cid
    left: int
    then: dict[NodeId, Then]
    """By who wants it; more than one for a topic that several join."""
    otherwise: Then
    valid: bool = True


class Intake:
    """Signatures under way."""

    def __init__(self, config: TopicsConfig) -> None:
        self._config = config
        self._token = 0
        self._checks: dict[int, _Check] = {}
        self._ids: dict[Cid, int] = {}

    def __contains__(self, id: object) -> bool:
        """Whether a descriptor is being checked."""
        return id in self._ids

    def check(
        self,
        peer: NodeId,
        id: Cid,
        descriptor: Descriptor,
        then: Then,
        now_ns: int,
        otherwise: Then = lambda now_ns: [],
    ) -> list[Effect]:
        """Go on with a descriptor if all who have to have signed it, or else go on without it."""
        if id in self._ids:
            return []
        if len(self._checks) >= self._config.checks_max:
            return [Rejected(peer, "busy")]
        try:
            wanted = claims(descriptor)
        except (BadSignature, MalformedMessage):
            return [Rejected(peer, "bad-signature"), *otherwise(now_ns)]
        self._token += 1
        self._checks[self._token] = _Check(peer, id, len(wanted), {peer: then}, otherwise)
        self._ids[id] = self._token
        return [Verify(claim.signer, claim.signed, self._token) for claim in wanted]

    def add(self, id: Cid, peer: NodeId, then: Then) -> list[Effect]:
        """Go on with this once a descriptor that is being checked turns out to be good: the last
        word of each peer."""
        waiting = self._checks[self._ids[id]].then
        if peer not in waiting and len(waiting) >= WAITING_MAX:
            return [Rejected(peer, "busy")]
        waiting[peer] = then
        return []

    def verified(self, event: Verified, now_ns: int) -> list[Effect]:
        """A signature was checked."""
        token = event.token
        assert isinstance(token, int)  # they are all made here
        check = self._checks[token]
        check.left -= 1
        check.valid = check.valid and event.valid
        if check.left:
            return []
        del self._checks[token], self._ids[check.id]
        if not check.valid:
            return [Rejected(check.peer, "bad-signature"), *check.otherwise(now_ns)]
        effects: list[Effect] = []
        for then in check.then.values():
            effects += then(now_ns)
        return effects
