"""Standing queries of our own applications: left with others, renewed, and what comes of them.

A query is left with so many nodes that a document misses all of them as seldom as the confidence
says, if they live. We do not know who they are; but neighbours are drawn at random as they are, so
of those about as many are gone as of our neighbours, and as the network is measured to be smaller.
Once that is a tenth, the query is left anew,
what is kept in the network is searched for again, and the next document that is told says that some
may be missing: an instant one that passed by meanwhile cannot be had any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec

from shoal.base.errors import RemoteError, UsageError
from shoal.base.ids import NodeId
from shoal.base.units import MS_NS, S_NS
from shoal.kernel.effects import Effect, Notify
from shoal.kernel.records import Rejected
from shoal.kernel.wall_clock import NEVER_NS
from shoal.protocols.search.bubbles.own_bubbles import Bubbles
from shoal.protocols.search.commands import FindDocuments, Seen, WatchDocuments
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.documents.document import Document, read_document
from shoal.protocols.search.own_searches import Searches
from shoal.protocols.search.payloads import WATCH_ID_BYTES, Sighting, Watch, decode_item
from shoal.protocols.search.signature_checks import Checks
from shoal.protocols.search.spaces import Space, Spaces
from shoal.protocols.search.watches.stored_watches import OWNER_WATCHES_MAX

LOST_PART = 0.1
"""Of our edges, broken without a word since queries were left. At 0.99, documents that are missed
become one and a half times as many by that."""

BROKEN_MAX = 1024  # edges that are counted: several times as many as a node has

SETTLE_NS = 10 * S_NS  # whoever crashed with that neighbour is noticed by then
CATCH_UP_PAUSE_NS = 60 * S_NS  # between two catch-ups: each costs a search and a renewal
CATCH_UP_NS = 10 * S_NS  # a search's time
CATCH_UP = "catch-up"  # its token

GROWN = 1.1  # a query that needs so many times the nodes is cast again at once


class _Watch(msgspec.Struct, eq=False):
    id: bytes
    space: Space
    text: str | bytes
    query: Any
    token: Hashable
    due_ns: int
    since_ms: int
    """What is older is not caught up with: it was there before, or may have been told."""
    nodes: int = 0
    """With so many it was left,"""
    network: float = 0.0
    """of so many."""
    seen: dict[bytes, int] = {}
    """Digests of documents that were told, and their versions."""
    gap: bool = False
    """Some may be missing before the next one that is told."""
    behind: bool = False
    """To be searched for again at the next beat."""


class Standing:
    """What we wait for."""

    def __init__(
        self,
        spaces: Spaces,
        bubbles: Bubbles,
        checks: Checks,
        searches: Searches,
        rng: Random,
        config: SearchConfig,
        *,
        can_be_dialled: bool,
    ) -> None:
        self._can_be_dialled = can_be_dialled
        self._spaces = spaces
        self._bubbles = bubbles
        self._checks = checks
        self._searches = searches
        self._rng = rng
        self._config = config
        self._watches: dict[bytes, _Watch] = {}
        self._broken: deque[int] = deque(maxlen=BROKEN_MAX)
        """When edges of ours broke, since queries were left anew."""
        self._disturbed_ns: int | None = None
        self._caught_up_ns: int | None = None
        self._stepped_ns = NEVER_NS

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
        since_ms = self._bubbles.wall.read(now_ns) // MS_NS
        watch = _Watch(id, space, command.text, query, token, 0, since_ms)
        effects = self._renew(watch, now_ns)
        self._watches[watch.id] = watch
        return effects

    def end(self, token: Hashable, now_ns: int) -> list[Effect]:
        """Take it back; nodes that do not hear of it forget it by themselves."""
        for watch in [watch for watch in self._watches.values() if watch.token == token]:
            del self._watches[watch.id]
            effects = self._searches.stop((CATCH_UP, watch.id))
            return [*effects, *self._cast(watch.space, Watch(watch.id, watch.text, 0), now_ns)]
        return []

    def edge_lost(self, edges: int, now_ns: int) -> None:
        """An edge broke without a word; so many are left."""
        if not self._watches:
            return
        self._broken.append(now_ns)
        while self._broken[0] < now_ns - self._config.watch_ns // 2:
            self._broken.popleft()  # all queries were left anew since then
        if len(self._broken) >= LOST_PART * (edges + len(self._broken)):
            self._disturbed(now_ns)

    def _disturbed(self, now_ns: int) -> None:
        if self._disturbed_ns is None:
            self._disturbed_ns = now_ns
        for watch in self._watches.values():
            watch.gap = True

    def beat(self, now_ns: int) -> list[Effect]:
        """Renew what would be forgotten, and what too few nodes have: data bubbles have become
        smaller since, or the network larger. While our clock is off, others take no renewal of
        ours, and we take documents for expired."""
        stepped_ns, before_ns = self._bubbles.wall.stepped_ns, self._stepped_ns
        self._stepped_ns = stepped_ns
        if not self._watches:
            return []
        if stepped_ns > before_ns:
            self._disturbed(now_ns)
        effects: list[Effect] = []
        for watch in self._watches.values():
            if watch.behind:  # it is left anew by now: what comes from now on is told
                effects += self._catch_up(watch, now_ns)
        network = max([watch.network for watch in self._watches.values()])
        if self._disturbed_ns is None and self._bubbles.nodes() < (1 - LOST_PART) * network:
            self._disturbed(now_ns)
        if self._is_time_to_recover(now_ns):
            self._broken.clear()
            self._disturbed_ns, self._caught_up_ns = None, now_ns
            for watch in self._watches.values():
                watch.behind = watch.gap = True
                effects += self._renew(watch, now_ns)
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

    def _is_time_to_recover(self, now_ns: int) -> bool:
        begun_ns, last_ns = self._disturbed_ns, self._caught_up_ns
        settled = begun_ns is not None and now_ns >= begun_ns + SETTLE_NS
        return settled and (last_ns is None or now_ns >= last_ns + CATCH_UP_PAUSE_NS)

    def _catch_up(self, watch: _Watch, now_ns: int) -> list[Effect]:
        """Search for what is kept, and was put since the query began."""
        watch.behind = False
        token = (CATCH_UP, watch.id)
        command = FindDocuments(
            watch.text, self._config.confidence, None, CATCH_UP_NS, None, watch.space.name
        )
        stopped = self._searches.stop(token)
        found = partial(self._found, watch.id)
        return [*stopped, *self._searches.begin(command, token, now_ns, found)]

    def _found(self, id: bytes, document: Document, now_ns: int) -> list[Effect]:
        watch = self._watches.get(id)
        if watch is None or document.version < watch.since_ms:
            return []
        return self._checked(id, document, True, now_ns)

    def _checked(self, id: bytes, document: Document, valid: bool, now_ns: int) -> list[Effect]:
        watch = self._watches.get(id)
        if watch is None or not valid or document.digest in watch.seen:
            return []
        if document.expires_ns <= self._bubbles.wall.read(now_ns):
            return []
        watch.seen[document.digest] = document.version
        if len(watch.seen) > self._config.sightings_max:
            forgotten = watch.seen.pop(next(iter(watch.seen)))
            # A later search must not tell it again.
            latest_ms = self._bubbles.wall.read(now_ns) // MS_NS
            watch.since_ms = max(watch.since_ms, min(forgotten, latest_ms) + 1)
        gap, watch.gap = watch.gap, False
        return [Notify(Seen(document, watch.token, gap))]

    def _nodes(self, space: Space) -> int:
        """With how many nodes a query has to be left now."""
        return self._bubbles.query_size(self._config.confidence, space.name)

    def _renew(self, watch: _Watch, now_ns: int) -> list[Effect]:
        watch.due_ns = now_ns + self._config.watch_ns // 2
        watch.nodes, watch.network = self._nodes(watch.space), self._bubbles.nodes()
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
