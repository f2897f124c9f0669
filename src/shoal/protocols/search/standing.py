"""Standing queries of our own applications: left with others, renewed, and what comes of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from random import Random

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
from shoal.protocols.search.queries.documents import document_of
from shoal.protocols.search.queries.matching import matches
from shoal.protocols.search.queries.parser import parse
from shoal.protocols.search.queries.query import Query
from shoal.protocols.search.watches import OWNER_WATCHES_MAX

GROWN = 1.1  # a query that needs so many times the nodes is cast again at once


class _Watch(msgspec.Struct, eq=False):
    id: bytes
    text: str
    query: Query
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
        bubbles: Bubbles,
        checks: Checks,
        rng: Random,
        config: SearchConfig,
        *,
        can_be_dialled: bool,
    ) -> None:
        self._can_be_dialled = can_be_dialled
        self._bubbles = bubbles
        self._checks = checks
        self._rng = rng
        self._config = config
        self._watches: dict[bytes, _Watch] = {}

    def __len__(self) -> int:
        return len(self._watches)

    def begin(self, command: WatchDocuments, token: Hashable, now_ns: int) -> list[Effect]:
        """Leave a query in the network."""
        query = parse(command.text)  # what is wrong with it is told at once
        if not self._can_be_dialled:
            raise UsageError(
                "a standing query has others call this node: let it listen, or search again"
            )
        if len(self._watches) >= OWNER_WATCHES_MAX:
            raise UsageError(
                f"{OWNER_WATCHES_MAX} standing queries are the most that others keep for a node:"
                " end one, or join two with OR"
            )
        watch = _Watch(self._rng.randbytes(WATCH_ID_BYTES), command.text, query, token, 0)
        effects = self._renew(watch, now_ns)
        self._watches[watch.id] = watch
        return effects

    def end(self, token: Hashable, now_ns: int) -> list[Effect]:
        """Take it back; nodes that do not hear of it forget it by themselves."""
        for watch in [watch for watch in self._watches.values() if watch.token == token]:
            del self._watches[watch.id]
            return self._cast(Watch(watch.id, watch.text, 0), now_ns)
        return []

    def beat(self, now_ns: int) -> list[Effect]:
        """Renew what would be forgotten, and what too few nodes have: data bubbles have become
        smaller since, or the network larger."""
        if not self._watches:
            return []
        effects: list[Effect] = []
        nodes = self._nodes()
        for watch in self._watches.values():
            if watch.due_ns <= now_ns or nodes > GROWN * watch.nodes:
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
            if document.deleted or not matches(
                watch.query, document_of(document.kind, document.value)
            ):
                effects.append(Rejected(peer, "bad-sighting"))
                continue
            checked = partial(self._checked, item.watch, document)
            effects += self._checks.check(document.owner, item.signed, checked, now_ns)
        return effects

    def _checked(self, id: bytes, document: Document, valid: bool, now_ns: int) -> list[Effect]:
        watch = self._watches.get(id)
        if watch is None or not valid or document.digest in watch.seen:
            return []
        if document.expires_ns <= now_ns:
            return []
        watch.seen[document.digest] = None
        if len(watch.seen) > self._config.sightings_max:
            del watch.seen[next(iter(watch.seen))]
        return [Notify(Seen(document, watch.token))]

    def _nodes(self) -> int:
        """With how many nodes a query has to be left now."""
        return self._bubbles.query_size(self._config.confidence)

    def _renew(self, watch: _Watch, now_ns: int) -> list[Effect]:
        watch.due_ns, watch.nodes = now_ns + self._config.watch_ns // 2, self._nodes()
        expires_ms = (now_ns + self._config.watch_ns) // MS_NS
        return self._cast(Watch(watch.id, watch.text, expires_ms), now_ns)

    def _cast(self, watch: Watch, now_ns: int) -> list[Effect]:
        size = self._nodes()
        bubble = self._bubbles.make(watch, size, self._config.bubble_ns, now_ns, watch.id)
        return self._bubbles.cast(bubble, size, now_ns)
