"""A search node that casts bubbles of a given certainty when the lab asks it to.

Everything else is the machine as it is: sizes come from what this node has measured, and bubbles go
the way of all bubbles. Applications cannot choose the size of a document's bubble; a study of sizes
has to.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from shoal.base.units import MS_NS
from shoal.kernel.effects import Effect, Notify
from shoal.kernel.inputs import CommandIssued, Input
from shoal.protocols.search.document_space import DocumentSpace
from shoal.protocols.search.documents import sign_document
from shoal.protocols.search.node import SearchNode
from shoal.protocols.search.payloads import Payload, Put, Search
from shoal.protocols.search.sizes import bubble_size


class CastProbe(msgspec.Struct, frozen=True, gc=False):
    """Cast a bubble of c * sqrt(T): a document, or a question that nobody can answer."""

    certainty: float
    data: bool
    number: int


class ProbeCast(msgspec.Struct, frozen=True, gc=False):
    """Told: it is on its way."""

    bubble: bytes
    size: int
    token: Hashable


class ProbingNode(SearchNode):
    """A search node with one more command."""

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """Take one fact."""
        if type(event) is CommandIssued and type(event.command) is CastProbe:
            return self.parts.uplink.pass_on(
                self._probe(event.command, event.token, now_ns), now_ns
            )
        return super().handle(event, now_ns)

    def _probe(self, probe: CastProbe, token: Hashable, now_ns: int) -> list[Effect]:
        parts = self.parts
        totals = parts.totals()
        if totals is None:
            return []  # it came a moment ago, and would not be asked by anybody
        size, life_ns = bubble_size(probe.certainty, 1.0, totals), self.config.bubble_ns
        payload: Payload = Search("nothing", 1)
        if probe.data:
            document = sign_document(
                self._key,
                "probe",
                {"probe": probe.number},
                version=now_ns // MS_NS,
                life="instant",
                expires_ms=(now_ns + life_ns) // MS_NS,
            )
            payload = Put(document.signed)
        bubble = parts.bubbles.make(DocumentSpace(), payload, size, life_ns, now_ns)
        cast = parts.bubbles.cast(bubble, size, now_ns)
        return [Notify(ProbeCast(bubble.id, size, token)), *cast]
