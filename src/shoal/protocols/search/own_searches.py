"""Searches of our own applications.

A question is a bubble whose size is made for the confidence that was asked for. Whoever needs only
so many answers has it cast slice by slice, each as large as all before it: most of the time the
first ones do, and the rest is never sent. Answers are checked, and told once for each document,
unless a newer version turns up.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from math import ceil
from typing import Any

import msgspec

from shoal.base.errors import RemoteError, UsageError
from shoal.kernel.effects import CancelTimer, Effect, Notify, SetTimer
from shoal.protocols.search.bubbles.answer_routes import Routes
from shoal.protocols.search.bubbles.bubble_size import confidence_of
from shoal.protocols.search.bubbles.own_bubbles import Bubble, Bubbles
from shoal.protocols.search.commands import FindDocuments, Found, SearchOver, SearchWidened
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.documents.document import Document, read_document
from shoal.protocols.search.payloads import (
    HITS_MAX,
    NOTHING,
    Hit,
    Lookup,
    Search,
    Wanted,
    decode_item,
)
from shoal.protocols.search.signature_checks import Checks
from shoal.protocols.search.spaces import Space, Spaces

SEARCH = "search"  # the timer of a search
SLICES = 4  # of a search that may end early: an eighth first, then as much again


Heard = Callable[[Document, int], list[Effect]]
"""A document was found, and its signature checked; and the time."""


class _Search(msgspec.Struct, eq=False, gc=False):
    bubble: Bubble
    token: Hashable
    space: Space
    query: Any
    only: bytes | None
    """The document that is looked for by its id."""
    limit: int | None
    deadline_ns: int
    meetings: float
    """Of each node that is asked, with any one document, as we saw it when we began: what was kept
    by then was cast for that."""
    heard: Heard | None = None
    """Told of each document instead of the application."""
    found: dict[bytes, tuple[int, bytes]] = {}
    """The version that was told of each document."""


class Searches:
    """Questions that wait for answers."""

    def __init__(
        self,
        spaces: Spaces,
        bubbles: Bubbles,
        routes: Routes,
        checks: Checks,
        config: SearchConfig,
    ) -> None:
        self._spaces = spaces
        self._bubbles = bubbles
        self._routes = routes
        self._checks = checks
        self._config = config
        self._searches: dict[bytes, _Search] = {}
        self._tokens: dict[Hashable, bytes] = {}

    def __len__(self) -> int:
        return len(self._searches)

    def begin(
        self, command: FindDocuments, token: Hashable, now_ns: int, heard: Heard | None = None
    ) -> list[Effect]:
        """Ask the network, for an application or for ourselves."""
        if not 0 < command.confidence < 1:
            raise UsageError(
                f"confidence {command.confidence}: write a part of one, as in 0.99; 1 would ask"
                " every node"
            )
        if command.limit is not None and command.limit < 1:
            raise UsageError(f"limit {command.limit}: write 1 or more")
        if command.within_ns <= 0:
            raise UsageError(f"{command.within_ns} ns is no time to search: write 1 or more")
        if token in self._tokens:
            raise UsageError(f"a search of token {token!r} goes on: stop it, or name another")
        space = self._spaces[command.space]
        query = space.read(command.text)  # what is wrong with it is told at once
        total = self._bubbles.query_size(command.confidence, space.name)
        hits = min(HITS_MAX, command.limit or HITS_MAX)
        life_ns = min(command.within_ns + self._config.answer_ns, self._config.bubble_ns_max)
        question: Search | Lookup = Search(command.text, hits)
        if command.id is not None:
            question = Lookup((Wanted(command.id, 0, NOTHING),))
        bubble = self._bubbles.make(space, question, total, life_ns, now_ns)
        deadline_ns = now_ns + command.within_ns
        meetings = self._bubbles.meetings(space.name)
        search = _Search(
            *(bubble, token, space, query, command.id, command.limit, deadline_ns, meetings),
            heard=heard,
        )
        self._searches[bubble.id] = search
        self._tokens[token] = bubble.id
        return self._widen(search, now_ns)

    def stop(self, token: Hashable) -> list[Effect]:
        """Nobody waits for it any more."""
        id = self._tokens.pop(token, None)
        if id is None:
            return []
        del self._searches[id]
        self._routes.forget(id)
        return [CancelTimer((SEARCH, id))]

    def due(self, id: bytes, now_ns: int) -> list[Effect]:
        """A slice has had its time."""
        search = self._searches.get(id)
        if search is None:
            return []
        enough = search.limit is not None and len(search.found) >= search.limit
        if enough or now_ns >= search.deadline_ns or search.bubble.cast_to >= search.bubble.total:
            return self._over(search)
        return self._widen(search, now_ns)

    def told(self, id: bytes, items: Sequence[bytes], now_ns: int) -> list[Effect]:
        """Answers have come in."""
        effects: list[Effect] = []
        for raw in items:
            try:
                item = decode_item(raw)
                if not isinstance(item, Hit):
                    continue
                document = read_document(item.signed)
            except RemoteError:
                continue  # whoever made it up has only wasted its own time
            checked = partial(self._checked, id, document, item.score)
            effects += self._checks.check(document.owner, item.signed, checked, now_ns)
        return effects

    # Steps

    def _checked(
        self, id: bytes, document: Document, score: float, valid: bool, now_ns: int
    ) -> list[Effect]:
        search = self._searches.get(id)
        if search is None or not valid or document.expires_ns <= self._bubbles.wall.read(now_ns):
            return []
        judged = _answers(search, document, score)
        if judged is None:
            return []
        known = search.found.get(document.id)
        if known is not None and known >= document.rank:
            return []
        if known is None and search.limit is not None and len(search.found) >= search.limit:
            return []
        search.found[document.id] = document.rank
        if search.heard is not None:
            return search.heard(document, now_ns)
        told: list[Effect] = [Notify(Found(document, judged, search.token))]
        if search.limit is not None and len(search.found) >= search.limit:
            return told + self._over(search)
        return told

    def _widen(self, search: _Search, now_ns: int) -> list[Effect]:
        """Cast the next slice; all at once, if all is wanted."""
        bubble = search.bubble
        first = ceil(bubble.total / 2 ** (SLICES - 1))
        end = bubble.total if search.limit is None else max(first, 2 * bubble.cast_to)
        effects = self._bubbles.cast(bubble, min(end, bubble.total), now_ns)
        wait_ns = min(self._config.answer_ns, max(0, search.deadline_ns - now_ns))
        asked = bubble.cast_to
        widened = SearchWidened(
            confidence_of((asked * search.meetings) ** 0.5),
            asked,
            self._bubbles.nodes(),
            search.token,
        )
        told = [] if search.heard is not None else [Notify(widened)]
        return [*told, *effects, SetTimer((SEARCH, bubble.id), wait_ns)]

    def _over(self, search: _Search) -> list[Effect]:
        asked = search.bubble.cast_to
        over = SearchOver(
            confidence_of((asked * search.meetings) ** 0.5),
            asked,
            self._bubbles.nodes(),
            search.token,
        )
        told = [] if search.heard is not None else [Notify(over)]
        return [*self.stop(search.token), *told]


def _answers(search: _Search, document: Document, told: float) -> float | None:
    """The score of what was asked for, None for what was not: whoever sent it may have made it up.
    A deletion answers no query; whoever asks for a document by its id wants to know of it."""
    if search.only is not None:
        return told if document.id == search.only else None
    if document.deleted or document.space != search.space.name:
        return None
    return search.space.judge(search.query, search.space.view(document), told)
