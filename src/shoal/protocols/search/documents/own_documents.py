"""Documents of our own applications: cast when put, and again as long as we manage them.

Others take so many bubbles of one origin and no more, so whoever puts thousands of documents at
once has them cast one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

import msgspec

from shoal.base.errors import UsageError
from shoal.base.units import MS_NS
from shoal.identity import PrivateKey
from shoal.kernel.effects import Effect, Notify
from shoal.protocols.search.bubbles.own_bubbles import Bubbles
from shoal.protocols.search.commands import DocumentPut, PutDocument
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.documents.document import (
    LIFE_NS_MAX,
    Document,
    document_id,
    sign_document,
    space_of,
)
from shoal.protocols.search.documents.document_store import MANAGED_REFRESH_NS
from shoal.protocols.search.payloads import Put
from shoal.protocols.search.spaces import Spaces


class _Managed(msgspec.Struct):
    document: Document
    due_ns: int
    ends_ns: int
    """When it expires, in monotonic time: no wrong reading of the clock may end it."""


class Publications:
    """What we have put."""

    def __init__(
        self, key: PrivateKey, spaces: Spaces, bubbles: Bubbles, config: SearchConfig
    ) -> None:
        self._key = key
        self._spaces = spaces
        self._bubbles = bubbles
        self._waiting_max = config.puts_max
        self._waiting: deque[tuple[Document, int]] = deque()
        """Their turn has not come; so many nodes shall have each, at least."""
        self._reached: dict[bytes, int] = {}
        """How many nodes a document was cast to: each new version has to find them all."""
        self._version = 0
        self._managed: dict[bytes, _Managed] = {}  # by id

    def __len__(self) -> int:
        return len(self._managed)

    @property
    def waiting(self) -> int:
        """Documents that are not cast yet."""
        return len(self._waiting)

    def put(self, command: PutDocument, token: Hashable, now_ns: int) -> list[Effect]:
        """Sign a version, and cast it."""
        space = self._spaces[space_of(command.kind)].name
        id = document_id(self._key.address, command.name, space)
        life_ns, size = command.life_ns, self._bubbles.data_size(space)
        more = id not in self._managed
        if max(len(self._waiting), more * len(self._managed)) >= self._waiting_max:
            raise UsageError(
                f"{self._waiting_max} documents wait or are managed: put no more until some have"
                " been cast or deleted"
            )
        if not 0 < life_ns <= LIFE_NS_MAX[command.life]:
            most_s = LIFE_NS_MAX[command.life] // 10**9
            raise UsageError(
                f"{life_ns / 1e9:g} s is no life of a {command.life} document: write 0 to {most_s}"
            )
        wall_ns = self._bubbles.wall.read(now_ns)
        # Two within a millisecond, or a clock that was set back: still one after the other.
        self._version = max(self._version + 1, wall_ns // MS_NS)
        document = sign_document(
            self._key,
            command.name,
            command.content,
            version=self._version,
            life=command.life,
            expires_ms=(wall_ns + life_ns) // MS_NS,
            kind=command.kind,
        )
        self._managed.pop(id, None)
        if command.life == "managed" and not document.deleted:
            self._managed[id] = _Managed(document, now_ns + MANAGED_REFRESH_NS, now_ns + life_ns)
        size = max(size, self._reached.pop(id, 0))
        self._reached[id] = size
        if len(self._reached) > self._waiting_max:
            del self._reached[next(iter(self._reached))]
        self._waiting.append((document, size))
        return [*self._cast_waiting(now_ns), Notify(DocumentPut(document, size, token))]

    def spread(self, document: Document, nodes: int, now_ns: int) -> list[Effect]:
        """Bring a durable document, ours or another's, to so many nodes, whichever they are."""
        return self._cast(document, nodes, now_ns, about=b"")

    def beat(self, now_ns: int) -> list[Effect]:
        """Cast again what is due."""
        for id, managed in list(self._managed.items()):
            if managed.ends_ns <= now_ns:
                del self._managed[id]
            elif managed.due_ns <= now_ns:
                managed.due_ns = now_ns + MANAGED_REFRESH_NS
                self._waiting.append((managed.document, 0))
        return self._cast_waiting(now_ns)

    def _cast_waiting(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        while self._waiting and self._bubbles.may_put(now_ns):
            document, least = self._waiting.popleft()
            nodes = max(least, self._bubbles.data_size(document.space))
            effects += self._cast(document, nodes, now_ns, about=document.id)
        return effects

    def _cast(self, document: Document, nodes: int, now_ns: int, about: bytes) -> list[Effect]:
        life_ns = min(self._bubbles.life_ns, document.expires_ns - self._bubbles.wall.read(now_ns))
        if life_ns <= 0:
            return []
        space, put = self._spaces[document.space], Put(document.signed)
        bubble = self._bubbles.make(space, put, nodes, life_ns, now_ns, about)
        return self._bubbles.cast(bubble, nodes, now_ns)
