"""Standing queries of our own applications: left with others, renewed, and what comes of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec

from shoal.base.errors import RemoteError, UsageError
from shoal.base.ids import NodeId
from shoal.base.units import MS_NS
from shoal.kernel.effects import Effect, Notify
from shoal.kernel.records import Rejected
from shoal.protocols.search.bubbles import Bubbles
from shoal.protocols.search.checks import Checks
from shoal.protocols.search.commands import Seen, WatchDocuments
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.documents import Document, read_document
from shoal.protocols.search.payloads import WATCH_ID_BYTES, Sighting, Watch, decode_item
from shoal.protocols.search.spaces import Space, Spaces
from shoal.protocols.search.watches import OWNER_WATCHES_MAX

GROWN = 1.1  # a query that needs so many times the nodes is cast again at once


class _Watch(msgspec.Struct, eq=False):
    id: bytes
    space: Space
    text: str | bytes
    query: Any
    token: Hashable
    due_ns: int
    nodes: int = 0
    """With so many it was left."""
    seen: dict[bytes, None] = {}
    """Digests of documents that were told."""


class Standing:
    """What we wait for."""

    def __init__(
        self,
        spaces: Spaces,
        bubbles: Bubbles,
        checks: Checks,
        rng: Random,
        config: SearchConfig,
        *,
        can_be_dialled: bool,
    ) -> None:
        self._can_be_dialled = can_be_dialled
        self._spaces = spaces
        self._bubbles = bubbles
        self._checks = checks
        self._rng = rng
        self._config = config
        self._watches: dict[bytes, _Watch] = {}

    def __len__(self) -> int:
        return len(self._watches)

    def begin(self, command: WatchDocuments, token: Hashable, now_ns: int) -> list[Effect]:
        """Leave a query in the network."""
        space = self._spaces[command.space]
        query = space.read(command.text)  # what is wrong with it is told at once
        if not self._can_be_dialled:
            raise UsageError(
                "a standing query has others call this node: let it listen, or search again"
            )
        if len(self._watches) >= OWNER_WATCHES_MAX:
            raise UsageError(
                f"{OWNER_WATCHES_MAX} standing queries are the most that others keep for a node:"
                " end one, or join two with OR"
            )
        id = self._rng.randbytes(WATCH_ID_BYTES)
        watch = _Watch(id, space, command.text, query, token, 0)
        effects = self._renew(watch, now_ns)
        self._watches[watch.id] = watch
        return effects

    def end(self, token: Hashable, now_ns: int) -> list[Effect]:
        """Take it back; nodes that do not hear of it forget it by themselves."""
        for watch in [watch for watch in self._watches.values() if watch.token == token]:
            del self._watches[watch.id]
            return self._cast(watch.space, Watch(watch.id, watch.text, 0), now_ns)
        return []

    def beat(self, now_ns: int) -> list[Effect]:
        """Renew what would be forgotten, and what too few nodes have: data bubbles have become
        smaller since, or the network larger."""
        if not self._watches:
            return []
        effects: list[Effect] = []
        for watch in self._watches.values():
            if watch.due_ns <= now_ns or self._nodes(watch.space) > GROWN * watch.nodes:
                effects += self._renew(watch, now_ns)
        return effects

    def told(self, peer: NodeId, items: Sequence[bytes], now_ns: int) -> list[Effect]:
        """Documents that one of our queries has met, as somebody says."""
        effects: list[Effect] = []
        for raw in items:
            if self._checks.busy:
                return [*effects, Rejected(peer, "busy")]
            try:
                item = decode_item(raw)
                if not isinstance(item, Sighting) or item.watch not in self._watches:
                    continue
                document = read_document(item.signed)
            except RemoteError:
                effects.append(Rejected(peer, "bad-sighting"))
                continue
            watch = self._watches[item.watch]
            if document.digest in watch.seen:
                continue
            if not _answers(watch, document):
                effects.append(Rejected(peer, "bad-sighting"))
                continue
            checked = partial(self._checked, item.watch, document)
            effects += self._checks.check(document.owner, item.signed, checked, now_ns)
        return effects

    def _checked(self, id: bytes, document: Document, valid: bool, now_ns: int) -> list[Effect]:
        watch = self._watches.get(id)
        if watch is None or not valid or document.digest in watch.seen:
            return []
        if document.expires_ns <= self._bubbles.wall.read(now_ns):
            return []
        watch.seen[document.digest] = None
        if len(watch.seen) > self._config.sightings_max:
            del watch.seen[next(iter(watch.seen))]
        return [Notify(Seen(document, watch.token))]

    def _nodes(self, space: Space) -> int:
        """With how many nodes a query has to be left now."""
        return self._bubbles.query_size(self._config.confidence, space.name)

    def _renew(self, watch: _Watch, now_ns: int) -> list[Effect]:
        watch.due_ns = now_ns + self._config.watch_ns // 2
        watch.nodes = self._nodes(watch.space)
        expires_ms = (self._bubbles.wall.read(now_ns) + self._config.watch_ns) // MS_NS
        return self._cast(watch.space, Watch(watch.id, watch.text, expires_ms), now_ns)

    def _cast(self, space: Space, watch: Watch, now_ns: int) -> list[Effect]:
        size = self._nodes(space)
        bubble = self._bubbles.make(space, watch, size, self._config.bubble_ns, now_ns, watch.id)
        return self._bubbles.cast(bubble, size, now_ns)


def _answers(watch: _Watch, document: Document) -> bool:
    """Whether this is what was asked for: whoever sent it may have made it up."""
    space = watch.space
    if document.deleted or document.space != space.name:
        return False
    return space.judge(watch.query, space.view(document), 0.0) is not None
