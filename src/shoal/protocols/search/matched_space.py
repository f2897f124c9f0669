"""Spaces of applications: bytes that a matcher of theirs compares.

The matcher runs wherever a question meets data: at strangers' nodes that have the space as well,
and once more at the node that asked. So what a search tells its application is signed data, judged
by its own matcher, whoever sent it.

What it is given comes from anybody. If it raises, or says what is no score, that counts as no match
and as a failure, and the node goes on. It runs on the node's only thread: as long as it takes,
nothing else is done.
"""

from __future__ import annotations

from heapq import nlargest
from itertools import count
from typing import Protocol

from shoal.base.errors import UsageError
from shoal.protocols.search.documents import Document
from shoal.protocols.search.payloads import QUESTION_BYTES_MAX
from shoal.protocols.search.queries.hits import Hit
from shoal.protocols.search.spaces import first_type

_INFINITY = float("inf")


class Matcher(Protocol):
    """How the questions of a space meet its data."""

    def match(self, data: bytes, query: bytes) -> float | None:
        """How well they match, 0 or more; None: not at all. The same answer at every node, or
        hits are lost. Both may have been made up to do harm."""
        ...


class MatchedSpace:
    """A space whose rule is a matcher."""

    def __init__(self, name: str, matcher: Matcher) -> None:
        self.name = name
        self.first = first_type(name)
        if not callable(getattr(matcher, "match", None)):
            raise UsageError(
                f"a matcher of type {type(matcher).__name__}: give an object with"
                " match(data, query), which gives a score or None"
            )
        self.failures = 0
        self.problem = ""
        """The last failure, for whoever wrote the matcher."""
        self._matcher = matcher

    def read(self, query: str | bytes) -> bytes:
        """A question is bytes, as they are."""
        if not isinstance(query, bytes) or len(query) > QUESTION_BYTES_MAX:
            raise UsageError(
                f"a question in space {self.name!r} is {QUESTION_BYTES_MAX} bytes at most, not"
                f" {len(query)} of type {type(query).__name__}"
            )
        return query

    def view(self, document: Document) -> bytes:
        return document.content

    def judge(self, query: bytes, view: bytes, told: float = 0.0) -> float | None:
        """By our own matcher, whatever we were told."""
        try:
            score = self._matcher.match(view, query)
            # Who writes `return a == b` means no match by False, not a score of zero.
            given = None if score is None or score is False else float(score)
        except Exception as error:  # whatever it stumbles over: remote bytes are no fault of ours
            self._failed(f"{type(error).__name__}: {error}")
            return None
        if given is not None and not 0 <= given < _INFINITY:
            self._failed(f"a score of {score!r}: 0 or more, or None")
            return None
        return given

    def collection(self) -> Scanned:
        return Scanned(self)

    def filter(self) -> AllWatches:
        return AllWatches()

    def _failed(self, problem: str) -> None:
        self.failures += 1
        self.problem = problem


class Scanned:
    """Data without an index: a question looks at all of it."""

    def __init__(self, space: MatchedSpace) -> None:
        self._space = space
        self._numbers = count()
        self._held: dict[bytes, tuple[int, bytes]] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def put(self, key: bytes, document: bytes) -> bool:
        """Add or replace."""
        self.remove(key)
        self._held[key] = next(self._numbers), document
        self.bytes += len(document)
        return True

    def remove(self, key: bytes) -> bool:
        """Forget; False: there was none."""
        held = self._held.pop(key, None)
        if held is None:
            return False
        self.bytes -= len(held[1])
        return True

    def search(self, query: bytes, limit: int) -> list[Hit[bytes]]:
        """The best that match, best first; of equal ones, the one put last."""
        found = [
            (score, number, key)
            for key, (number, data) in self._held.items()
            if (score := self._space.judge(query, data)) is not None
        ]
        return [Hit(key, score) for score, _, key in nlargest(limit, found)]


class AllWatches:
    """Standing queries of which any could match: only the matcher knows."""

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: int, query: bytes) -> None:
        self._numbers[number] = None

    def remove(self, number: int) -> None:
        del self._numbers[number]

    def candidates(self, view: bytes) -> list[int]:
        """All of them."""
        return list(self._numbers)
