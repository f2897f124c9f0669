"""Streams and topics of this node that everybody may know of, as documents in the search network.

Without a registry those are the streams and topics that were made with `public=True`. With one, a
stream is shown as long as the registry lets everybody subscribe to it, by the node of its owner:
what the registry says is read again when it changes, and a document is withdrawn when its stream is
public no more. To open or subscribe to something announces nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping
from hashlib import sha256
from typing import Any

from shoal.base.errors import (
    ClockWrong,
    NotFound,
    RegistryDamaged,
    RegistryUnavailable,
    SearchUnavailable,
    ShoalError,
)
from shoal.base.ids import NodeId, StreamId, show_node_id
from shoal.identity import peer_id
from shoal.identity.topics.cid import Cid, show_cid
from shoal.identity.topics.descriptors import TopicDescriptor, show_moment
from shoal.kernel.access import Permission
from shoal.node.roles.registry import RegistryRole
from shoal.node.search.client import NodeSearch
from shoal.node.search.documents import NodeDocuments
from shoal.protocols.search.documents.document import NAME_CHARS_MAX, Kind
from shoal.registry.port import EVERYBODY, Change

ANNOUNCED_MAX = 1000  # as many as a node keeps of its own
UNCHECKED_MAX = 10_000  # own streams whose permissions wait to be read
RETRY_S = 10.0
EXPIRY_LOOK_S = 60.0  # a permission may end by itself
_DIGEST_CHARS = 16

Content = Mapping[str, Any]
Work = Awaitable[None]
"""Ends when it is in the network, or taken back."""

log = logging.getLogger("shoal.node")


class Announcements:
    """What this node tells everybody of."""

    def __init__(self, door: NodeSearch, documents: NodeDocuments) -> None:
        self._door = door
        self._documents = documents
        self._wanted: dict[str, Content | None] = {}
        """By stream or topic: what is announced; None: it is being withdrawn."""
        self._working: dict[str, Work] = {}

    def stream(self, id: StreamId, partitions: int) -> None:
        """A stream of this node that everybody may know of."""
        owner, _, path = id.partition("/")
        content = {"id": id, "owner": owner, "path": f"/{path}", "partitions": partitions}
        self._want("stream", id, content)

    def topic(self, id: Cid, topic: TopicDescriptor) -> Work | None:
        """A durable topic of this node that everybody may know of."""
        content = {
            "name": topic.name,
            "cid": show_cid(id),
            "author": peer_id.encode(topic.author),
            "created": show_moment(topic.metadata.created_ms),
        }
        return self._want("topic", show_cid(id), content)

    def withdraw(self, id: str) -> Work | None:
        """Nobody shall find this stream or topic any more; also if it was announced by an earlier
        process with this key."""
        return self._want("stream", id, None)

    @property
    def announced(self) -> list[str]:
        """The streams and topics that are announced now."""
        return [id for id, content in self._wanted.items() if content is not None]

    def _want(self, kind: Kind, id: str, content: Content | None) -> Work | None:
        """What is done about it, if anything."""
        if id in self._wanted and self._wanted[id] == content:
            return self._working.get(id)
        if id not in self._wanted and len(self._wanted) >= ANNOUNCED_MAX:
            log.warning("%s %s cannot be found by others: %d are", kind, id, ANNOUNCED_MAX)
            return None
        self._wanted[id] = content
        if id not in self._working:
            self._working[id] = self._door.start(self._work(kind, id))
        return self._working[id]

    async def _work(self, kind: Kind, id: str) -> None:
        """Beside what the application does: it need not wait for the search network."""
        name = _name(id)
        try:
            while True:
                content = self._wanted[id]
                try:
                    if content is not None:
                        await self._documents.put(content, "managed", name, None, kind)
                    else:
                        await self._documents.delete(name)
                except NotFound:
                    pass  # it was never announced, or has expired
                except (SearchUnavailable, ClockWrong):
                    await asyncio.sleep(RETRY_S)
                    continue
                except ShoalError as error:
                    problem = "cannot be found by others" if content else "cannot be withdrawn"
                    log.warning("%s %s %s: %s", kind, name, problem, error)
                if self._wanted[id] == content:
                    break
            if content is None:
                del self._wanted[id]
        finally:
            self._working.pop(id, None)


class PublicStreams:
    """The streams of this node's key in a registry: those that everybody may subscribe to are
    announced, the others withdrawn."""

    def __init__(self, owner: NodeId, registry: RegistryRole, announcements: Announcements) -> None:
        self._prefix = f"{show_node_id(owner)}/"
        self._registry = registry
        self._announcements = announcements
        self._unchecked: dict[StreamId, None] = {}
        self._shown: dict[StreamId, None] = {}
        """Streams that everybody was permitted something with, now or before."""
        self._wake = asyncio.Event()

    def changed(self, change: Change) -> None:
        """The registry says something new."""
        stream = change.stream
        if change.what == "unknown":
            self._check_announced()
        elif stream is not None and stream.startswith(self._prefix):
            if change.what == "permissions" and change.who == EVERYBODY:
                self._shown[stream] = None
                self._check(stream)
            elif change.what in ("edited", "deleted") and stream in self._shown:
                self._check(stream)

    async def run(self) -> None:
        """Follow the registry until the end of the node."""
        while True:
            try:
                async with asyncio.timeout(EXPIRY_LOOK_S):
                    await self._wake.wait()
            except TimeoutError:
                self._check_announced()
            self._wake.clear()
            while self._unchecked:
                stream = next(iter(self._unchecked))
                del self._unchecked[stream]  # it may change again while it is read
                try:
                    await self._read(stream)
                except (RegistryUnavailable, RegistryDamaged):
                    self._unchecked[stream] = None
                    await asyncio.sleep(RETRY_S)

    def _check(self, stream: StreamId) -> None:
        if len(self._unchecked) < UNCHECKED_MAX:
            self._unchecked[stream] = None
            self._wake.set()

    def _check_announced(self) -> None:
        for id in self._announcements.announced:
            if id.startswith(self._prefix):
                self._check(StreamId(id))

    async def _read(self, stream: StreamId) -> None:
        try:
            partitions = (await self._registry.find(stream)).partitions
        except NotFound:
            self._announcements.withdraw(stream)
            return
        everybody = await self._registry.registry.permissions(stream, EVERYBODY)
        if everybody.holds(Permission.SUBSCRIBE, time.time()):
            self._announcements.stream(stream, partitions)
        else:
            self._announcements.withdraw(stream)


def _name(id: str) -> str:
    """The name of the document; ids of streams may be longer than that."""
    if len(id) <= NAME_CHARS_MAX:
        return id
    digest = sha256(id.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{id[: NAME_CHARS_MAX - _DIGEST_CHARS - 1]}~{digest}"
