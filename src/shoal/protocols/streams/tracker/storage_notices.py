"""A tracker tells the storage nodes of a stream that there is one.

Settings name storage nodes for streams that do not exist yet ("*" for all of them), so a storage
node does not know which streams to join. The tracker does: with each Join it looks whether the
stream's storage nodes are members. Those that are not are told (`KeepStreams`), over a link that
the tracker dials for that, until they have joined or were told often enough: one whose own settings
say otherwise, or that has no room, never comes. So a tracker that restarts, or takes a stream over,
tells again whatever it hears of. A storage node that is gone from a stream is told, too: it may
come back without knowing of it. The tracker also says who began a stream: storage charges the name
to it.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from shoal.base.ids import Contact, NodeId, StreamId
from shoal.kernel.effects import CloseLink, Effect, OpenLink, Send, SetTimer
from shoal.protocols.streams.config import STORAGE_NODES_MAX, TrackerConfig
from shoal.protocols.streams.messages import NOTICED_STREAMS_MAX, KeepStreams, NewStream

PURPOSE = "storage-notices"  # of the links that are dialled for that
NOTICES = "notices"  # the timer

StorageOf = Callable[[StreamId], tuple[Contact, ...]]
HolderOf = Callable[[StreamId], tuple[NodeId, str | None] | None]


class StorageNotices:
    """Which storage nodes have to be told of which streams."""

    def __init__(self, storage_of: StorageOf, config: TrackerConfig, holder_of: HolderOf) -> None:
        """`holder_of` says whom a stream's name is charged to."""
        self._holder_of = holder_of
        self._storage_of = storage_of
        self._config = config
        self._waiting: dict[NodeId, dict[StreamId, int]] = {}  # how often each was told
        self._contacts: dict[NodeId, Contact] = {}
        self._linked: dict[NodeId, None] = {}
        self._ticking = False

    def joined(self, stream: StreamId, node: NodeId, members: Container[NodeId]) -> list[Effect]:
        """A node has joined a stream: do all of its storage nodes know of it?"""
        self._came(stream, node)
        effects: list[Effect] = []
        for contact in self._storage_of(stream)[:STORAGE_NODES_MAX]:
            keeper = contact.node
            if keeper in members or stream in self._waiting.get(keeper, ()):
                continue
            is_first = keeper not in self._waiting
            self._waiting.setdefault(keeper, {})[stream] = 0
            if is_first and keeper not in self._contacts:
                self._contacts[keeper] = contact
                effects.append(OpenLink(contact, PURPOSE))
            elif keeper in self._linked:
                effects.extend(self._tell(keeper, (stream,)))
        if effects and not self._ticking:
            self._ticking = True
            effects.append(SetTimer(NOTICES, self._config.notice_ns))
        return effects

    def left(self, stream: StreamId, keeper: NodeId) -> list[Effect]:
        """A storage node is not in a stream any more, and others are. If it was stopped, it
        knows of the stream no more when it is back, unless it has a row of it."""
        self._waiting.setdefault(keeper, {}).setdefault(stream, 0)
        if self._ticking:
            return []
        self._ticking = True
        return [SetTimer(NOTICES, self._config.notice_ns)]

    def opened(self, keeper: NodeId) -> list[Effect]:
        """The link to a storage node is up."""
        if keeper not in self._contacts:
            return [CloseLink(keeper, PURPOSE)]
        self._linked[keeper] = None
        return self._tell_page(keeper)

    def lost(self, keeper: NodeId) -> None:
        """The link to a storage node broke, or could not be made: it is dialled again later."""
        self._linked.pop(keeper, None)
        self._contacts.pop(keeper, None)

    def tick(self, streams: Container[StreamId]) -> list[Effect]:
        """Tell again what had no effect yet; streams that are over need no storage."""
        effects: list[Effect] = []
        for keeper, waiting in list(self._waiting.items()):
            tries_max = self._config.notice_tries
            for stream in [s for s, tries in waiting.items() if tries >= tries_max]:
                del waiting[stream]
            for stream in [s for s in waiting if s not in streams]:
                del waiting[stream]
            if not waiting:
                del self._waiting[keeper]
                if self._contacts.pop(keeper, None) is not None:
                    self._linked.pop(keeper, None)
                    effects.append(CloseLink(keeper, PURPOSE))
            elif keeper in self._linked:
                effects.extend(self._tell_page(keeper))
            elif keeper not in self._contacts:
                effects.extend(self._dial(keeper, next(iter(waiting))))
        self._ticking = bool(self._waiting)
        if self._ticking:
            effects.append(SetTimer(NOTICES, self._config.notice_ns))
        return effects

    def waiting_count(self) -> int:
        """Streams that storage nodes have not joined yet."""
        return sum(len(waiting) for waiting in self._waiting.values())

    def _dial(self, keeper: NodeId, stream: StreamId) -> list[Effect]:
        """The settings may have another address for it by now, or name it no more."""
        for contact in self._storage_of(stream):
            if contact.node == keeper:
                self._contacts[keeper] = contact
                return [OpenLink(contact, PURPOSE)]
        del self._waiting[keeper][stream]
        return []

    def _came(self, stream: StreamId, node: NodeId) -> None:
        waiting = self._waiting.get(node)
        if waiting is not None:
            waiting.pop(stream, None)

    def _tell_page(self, keeper: NodeId) -> list[Effect]:
        """Those that were not told for longest."""
        waiting = self._waiting.get(keeper, {})
        return self._tell(keeper, tuple(waiting)[:NOTICED_STREAMS_MAX])

    def _tell(self, keeper: NodeId, streams: tuple[StreamId, ...]) -> list[Effect]:
        if not streams:
            return []
        waiting = self._waiting[keeper]
        for stream in streams:
            waiting[stream] = waiting.pop(stream) + 1  # to the end
        told = [NewStream(s, *(self._holder_of(s) or (None, None))) for s in streams]
        return [Send(KeepStreams(tuple(told)), (keeper,))]
