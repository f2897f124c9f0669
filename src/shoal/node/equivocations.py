"""Publishers that contradict themselves: counted, logged, and the newest proofs kept."""

from __future__ import annotations

import hashlib
from collections import deque

from shoal.base.ids import NodeId, show_node_id
from shoal.base.log_limit import log_of_others
from shoal.identity.stream_message import decode_body, split_signed
from shoal.protocols.streams.commands import EquivocationSeen

PROOFS_MAX = 16  # two messages each, of half a megabyte at most

log_others = log_of_others("shoal.node")


class Equivocations:
    """What a node knows of publishers that signed two messages under one id."""

    def __init__(self) -> None:
        self.count = 0
        """Ids with two messages, since this node was opened."""
        self.proofs: deque[EquivocationSeen] = deque(maxlen=PROOFS_MAX)
        """The newest ones: whoever checks both signatures knows too."""

    def seen(self, event: EquivocationSeen) -> None:
        """One more."""
        self.count += 1
        self.proofs.append(event)
        id = decode_body(event.first).id
        log_others.warning(
            "%s signed two messages as %s %d/%d-%d of chain %s: %s is taken, %s is not",
            show_node_id(NodeId(id.publisher)),
            event.stream,
            id.partition,
            id.timestamp_ms,
            id.sequence,
            id.chain,
            _digest(event.first),
            _digest(event.second),
        )


def _digest(signed: bytes) -> str:
    """Tells two bodies apart for a reader of the log."""
    return hashlib.sha256(split_signed(signed)[1]).hexdigest()[:16]
