"""Streams and topics of this node, put into the search network, so that others find them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from shoal.base.errors import SearchUnavailable, ShoalError
from shoal.base.ids import StreamId
from shoal.identity import base58
from shoal.identity.topics.cid import Cid, show_cid
from shoal.identity.topics.dates import show_moment
from shoal.identity.topics.descriptors import TopicDescriptor
from shoal.node.documents import NodeDocuments
from shoal.node.search import NodeSearch
from shoal.protocols.search.documents import NAME_CHARS_MAX, Kind

ANNOUNCED_MAX = 1000  # as many as a node keeps of its own
RETRY_S = 10.0
_DIGEST_CHARS = 16

log = logging.getLogger("shoal.node")


class Announcements:
    """What this node has told of."""

    def __init__(self, door: NodeSearch, documents: NodeDocuments) -> None:
        self._door = door
        self._documents = documents
        self._names: dict[str, None] = {}

    def stream(self, id: StreamId, partitions: int) -> None:
        """A stream that was made here."""
        owner, _, path = id.partition("/")
        content = {"id": id, "owner": owner, "path": f"/{path}", "partitions": partitions}
        self._announce("stream", id, content)

    def topic(self, id: Cid, topic: TopicDescriptor) -> None:
        """A durable topic of ours that was made or opened here, or one that is pinned here."""
        content = {
            "name": topic.name,
            "cid": show_cid(id),
            "author": base58.encode(topic.author),
            "created": show_moment(topic.metadata.created_ms),
        }
        self._announce("topic", show_cid(id), content)

    def _announce(self, kind: Kind, id: str, content: Mapping[str, Any]) -> None:
        if id in self._names or len(self._names) == ANNOUNCED_MAX:
            return
        self._names[id] = None
        self._door.start(self._put(kind, _name(id), content))

    async def _put(self, kind: Kind, name: str, content: Mapping[str, Any]) -> None:
        """Beside what the application does: it need not wait for the search network."""
        while True:
            try:
                await self._documents.put(content, "managed", name, None, kind)
            except SearchUnavailable:
                await asyncio.sleep(RETRY_S)
            except ShoalError as error:
                log.warning("%s %s cannot be found by others: %s", kind, name, error)
                return
            else:
                return


def _name(id: str) -> str:
    """The name of the document; ids of streams may be longer than that."""
    if len(id) <= NAME_CHARS_MAX:
        return id
    digest = sha256(id.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{id[: NAME_CHARS_MAX - _DIGEST_CHARS - 1]}~{digest}"
