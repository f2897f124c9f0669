"""Who keeps a stream: asked of its trackers, one after the other, and remembered for a while."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shoal.base.ids import NodeId, StreamId
from shoal.kernel.contact import Contact
from shoal.kernel.effects import Effect
from shoal.protocols.streams.desk import Desk
from shoal.protocols.streams.history.config import ClientConfig
from shoal.protocols.streams.messages import FindStorage, StorageNodes

ROUNDS = 2  # every tracker is asked so often: a link may break under a question

TrackersOf = Callable[[StreamId], tuple[Contact, ...]]
FindKey = tuple[str, StreamId]


def find_key(stream: StreamId) -> FindKey:
    """What the answer to a FindStorage is known by; its owner too."""
    return ("find", stream)


class _Found(msgspec.Struct, frozen=True):
    contacts: tuple[Contact, ...]
    until_ns: int


class Finder:
    """The storage nodes of streams."""

    def __init__(
        self, node: NodeId, trackers_of: TrackersOf, desk: Desk, config: ClientConfig
    ) -> None:
        self._node = node
        self._trackers_of = trackers_of
        self._desk = desk
        self._config = config
        self._found: dict[StreamId, _Found] = {}
        self._asking: dict[StreamId, list[Contact]] = {}  # trackers not asked yet

    def known(self, stream: StreamId, now_ns: int) -> tuple[Contact, ...] | None:
        """The storage nodes, if they are known."""
        found = self._found.get(stream)
        return None if found is None or found.until_ns <= now_ns else found.contacts

    def find(self, stream: StreamId) -> list[Effect] | None:
        """Ask for them, unless that is under way; None if there is nobody to ask."""
        if stream in self._asking:
            return []
        self._asking[stream] = list(self._trackers_of(stream)) * ROUNDS
        return self._ask_next(stream)

    def failed(self, stream: StreamId) -> list[Effect] | None:
        """A tracker did not answer: ask the next; None after the last."""
        return self._ask_next(stream)

    def answered(self, nodes: StorageNodes, now_ns: int) -> tuple[Contact, ...]:
        """A tracker said who."""
        self._asking.pop(nodes.stream, None)
        self._found.pop(nodes.stream, None)
        contacts = self._in_turn(nodes.contacts)
        good_ns = self._config.found_ns if contacts else self._config.not_kept_ns
        self._found[nodes.stream] = _Found(contacts, now_ns + good_ns)
        if len(self._found) > self._config.streams_max:
            del self._found[next(iter(self._found))]
        return contacts

    def forget(self, stream: StreamId) -> None:
        """They were of no use: ask anew the next time."""
        self._found.pop(stream, None)

    def _ask_next(self, stream: StreamId) -> list[Effect] | None:
        left = self._asking[stream]
        if not left:
            del self._asking[stream]
            return None
        key = find_key(stream)
        return self._desk.ask(key, key, left.pop(0), FindStorage(stream))

    def _in_turn(self, contacts: tuple[Contact, ...]) -> tuple[Contact, ...]:
        """Ourselves first, if we are one; else each reader begins at another one, so that not all
        of them ask the first."""
        unique = {contact.node: contact for contact in contacts}
        ordered = list(unique.values())
        if not ordered:
            return ()
        own = unique.get(self._node)
        at = ordered.index(own) if own is not None else sum(self._node) % len(ordered)
        return (*ordered[at:], *ordered[:at])
