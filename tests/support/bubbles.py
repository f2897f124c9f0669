"""A search node among neighbours that a test plays, and bubbles for it."""

from __future__ import annotations

from itertools import count
from typing import Any

from shoal.base.units import MS_NS, S_NS
from shoal.kernel.records import BubbleStep
from shoal.protocols.search.circle.locations import Edge
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.messages import BubbleCast, EdgeName, Totals
from shoal.protocols.search.payloads import Payload, encode_payload, type_of
from shoal.protocols.search.signed_records import sign_header
from tests.support.circle import CircleBench, Peer

TOTALS = Totals(1000.0, 6000.0, 36000.0)
FOREIGN = 77  # a type of bubbles that is none of ours
_nonces = count(1)


class BubbleBench(CircleBench):
    """One search node with six neighbours, which knows a network of 1,000 nodes."""

    def __init__(self, config: SearchConfig | None = None) -> None:
        self.boot = Peer(99)
        super().__init__(self.boot, config=config)
        self.neighbours = [Peer(number) for number in range(1, 7)]
        for above, below in zip(self.neighbours[::2], self.neighbours[1::2], strict=True):
            self.stand(above, below)
        self.parts = self.machine.parts
        self.parts.measurement.known = TOTALS
        self.hear()  # so it has joined
        self._taken = len(self.host.sent)

    def edge_to(self, peer: Peer) -> Edge:
        """Our edge to a neighbour."""
        return next(edge for edge in self.circle.edges if edge.peer == peer.node)

    def name_from(self, peer: Peer) -> EdgeName:
        """The same, as the neighbour calls it."""
        edge = self.edge_to(peer)
        return EdgeName(edge.theirs, edge.mine, not edge.master)

    def brings(self, peer: Peer, cast: BubbleCast, *, valid: bool = True) -> list[Any]:
        """A neighbour sends a part; gives all that we send then, and to whom."""
        part = BubbleCast(
            self.name_from(peer),
            *(cast.size, cast.total, cast.start, cast.end, cast.kind, cast.header, cast.payload),
        )
        self.says(peer, part, valid=valid)
        return self.sent()

    def sent(self) -> list[Any]:
        """What was sent since this was asked last: (peer, message)."""
        sent = self.host.sent[self._taken :]
        self._taken = len(self.host.sent)
        return sent

    def casts(self) -> list[tuple[Any, BubbleCast]]:
        """As sent(), parts of bubbles only."""
        return [entry for entry in self.sent() if type(entry[1]) is BubbleCast]

    @property
    def steps(self) -> list[str]:
        return [record.outcome for record in self.host.records if type(record) is BubbleStep]


def a_cast(
    origin: Peer,
    payload: Payload | bytes = b"payload",
    total: int = 9,
    *,
    size: int | None = None,
    start: int = 0,
    end: int | None = None,
    expires_ns: int = 60 * S_NS,
) -> BubbleCast:
    """A part of a bubble of this origin; each one is another bubble."""
    if isinstance(payload, bytes):
        kind, raw = FOREIGN, payload
    else:
        kind, raw = int(type_of(payload)), encode_payload(payload)
    header = sign_header(
        origin.key,
        origin.record,
        kind=kind,
        total=total,
        payload=raw,
        nonce=next(_nonces).to_bytes(8),
        expires_ms=expires_ns // MS_NS,
    )
    size = total if size is None else size
    return BubbleCast(None, size, total, start, size if end is None else end, kind, header, raw)
