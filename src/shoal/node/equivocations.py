"""Publishers that contradict themselves: counted, logged, and the newest proofs kept."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque

from shoal.base.ids import NodeId, show_node_id
from shoal.base.units import S_NS
from shoal.identity.stream_message import decode_body, split_signed
from shoal.kernel.rate_limit import RateLimit
from shoal.protocols.streams.commands import EquivocationSeen

PROOFS_MAX = 16  # two messages each, of half a megabyte at most
WARNINGS_BURST = 10  # per publisher, and then one a second: it must not fill our disk with them
PUBLISHERS_MAX = 1000

log = logging.getLogger("shoal.node")


class Equivocations:
    """What a node knows of publishers that signed two messages under one id."""

    def __init__(self) -> None:
        self.count = 0
        """Ids with two messages, since this node was opened."""
        self.proofs: deque[EquivocationSeen] = deque(maxlen=PROOFS_MAX)
        """The newest ones: whoever checks both signatures knows too."""
        self._warnings = RateLimit(WARNINGS_BURST, S_NS, PUBLISHERS_MAX)

    def seen(self, event: EquivocationSeen) -> None:
        """One more."""
        self.count += 1
        self.proofs.append(event)
        id = decode_body(event.first).id
        if self._warnings.allow(id.publisher, time.monotonic_ns()):
            log.warning(
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
