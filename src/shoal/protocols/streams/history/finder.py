"""Who keeps a stream: asked of its trackers, one after the other, and remembered for a while.

The settings of this node may name the storage nodes as well. A tracker knows them better: its own
settings are the owner's, and members tell it where they are reached. But one that is silent must
not stop those who know it all the same: after a second they go by their settings, at once for the
other streams of that tracker, and it is asked again now and then.
"""

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
        self,
        node: NodeId,
        trackers_of: TrackersOf,
        desk: Desk,
        config: ClientConfig,
        named: Callable[[StreamId], tuple[Contact, ...]],
    ) -> None:
        """`named` gives those that the settings name for a stream."""
        self._node = node
        self._trackers_of = trackers_of
        self._desk = desk
        self._config = config
        self._found: dict[StreamId, _Found] = {}
        self._named = named
        self._silent: dict[NodeId, None] = {}  # trackers that were not waited for any longer
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

    def named(self, stream: StreamId, now_ns: int) -> tuple[Contact, ...]:
        """The storage nodes as the settings have them, instead of a tracker that does not answer;
        none, if they name none."""
        contacts = self._in_turn(self._named(stream))
        if contacts:
            self._silent.update(dict.fromkeys(self._first(stream)))
            self._remember(stream, contacts, now_ns + self._config.named_ns)
        return contacts

    def waits(self, stream: StreamId) -> bool:
        """Whether the tracker of a stream is to be waited for; else ask, and go by the settings."""
        return not any(tracker in self._silent for tracker in self._first(stream))

    def is_named(self, stream: StreamId) -> bool:
        """Whether the settings name storage nodes of a stream."""
        return bool(self._named(stream))

    def failed(self, stream: StreamId) -> list[Effect] | None:
        """A tracker did not answer: ask the next; None after the last."""
        return self._ask_next(stream)

    def answered(self, tracker: NodeId, nodes: StorageNodes, now_ns: int) -> tuple[Contact, ...]:
        """A tracker said who. If it knows of nobody, and the settings do, those are asked: what is
        to be kept must not pass for what nobody keeps."""
        self._asking.pop(nodes.stream, None)
        self._silent.pop(tracker, None)
        contacts = self._in_turn(nodes.contacts or self._named(nodes.stream))
        good_ns = self._config.found_ns if contacts else self._config.not_kept_ns
        self._remember(nodes.stream, contacts, now_ns + good_ns)
        return contacts

    def forget(self, stream: StreamId) -> None:
        """They were of no use: ask anew the next time."""
        self._found.pop(stream, None)

    def _first(self, stream: StreamId) -> tuple[NodeId, ...]:
        """The tracker that a stream goes to, if there is one."""
        return tuple([contact.node for contact in self._trackers_of(stream)[:1]])

    def _remember(self, stream: StreamId, contacts: tuple[Contact, ...], until_ns: int) -> None:
        self._found.pop(stream, None)
        self._found[stream] = _Found(contacts, until_ns)
        if len(self._found) > self._config.streams_max:
            del self._found[next(iter(self._found))]

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
