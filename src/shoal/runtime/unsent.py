"""What goes back to machines when a link is lost: what waited in its queue, and never left.

The queue holds bytes, by reference, and not the messages: keeping those as well would cost every
send, for the sake of few links that are lost with anything in their queues. So the bytes are read
again at the end, and only where a machine wants something back: a queue can be long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.base.errors import RemoteError
from shoal.kernel.codec import Codec
from shoal.kernel.links import Unsent
from shoal.kernel.machine import Machine
from shoal.transport.port import Link


class WantedBack:
    """The kinds of messages that go back, each to the one machine that sends it."""

    def __init__(
        self, codecs: Sequence[Codec], machines: Sequence[Machine], senders: Mapping[type, Machine]
    ) -> None:
        self._slots = {kind: machines.index(sender) for kind, sender in senders.items()}
        self._codecs = {
            codec.number: codec
            for codec in codecs
            if not self._slots.keys().isdisjoint(codec.messages)
        }

    def of(self, link: Link) -> Unsent:
        """What a link that is over held of them, oldest first."""
        if not self._slots:
            return ()
        found = []
        for number, payload in link.unsent():
            codec = self._codecs.get(number)
            if codec is None:
                continue
            try:
                message = codec.decode(payload)
            except RemoteError:  # a peer would have refused it as well
                continue
            slot = self._slots.get(type(message))
            if slot is not None:
                found.append((slot, message))
        return found
