"""Durable documents: how the network keeps them, with or without their owners.

A document's bubble of s nodes meets a query's bubble of q nodes, of n, if s q / n is about c^2. So
s nodes have to hold it, at any time, while nodes come and go after M each, on average. Those who
hold it make up for those who leave. They do not know each other, and cannot tell how many they are.

Why they have to ask. Let each of H holders cast the document to s nodes at a rate of 1 / (P s), so
that s of them cast it once in P, and forget it after k P. A holder then makes s / (P s) = 1 / P
new ones per unit of time for as long as it lasts, min(k P, M): k of them. That is a branching
process, H being on both sides of the equation. With k well above 1 it grows until nearly all nodes
hold the document, with k near 1 or below it dies out; no k keeps s. (Simulated, n = 1000, s = 78:
k = 3 has 827 holders after five hours, k = 1 and 1.2 lose all of 10 documents within the day.)
Whatever holders do has to depend on how many there are. So they count, before they cast.

The rule. When its turn comes, a holder sends a Lookup to q nodes. Those who hold this version say
so, m of them: there are about 1 + m n / q holders. If that is fewer than s, it casts the document
to as many nodes as are missing; otherwise it does nothing. The answers are few, s q / n = 6 for
c = 2, so the estimate is rough (by 40 %), and H settles a little above s: it errs on the safe side,
as too few answers cause a cast and too many cause nothing.

The turns. If each asked at a rate of 1 / (P s), fewer holders would ask less often. From s holders
on, nobody would ask at all before the last one has gone with probability exp(-M / P), which is
0.0025 for M = 60 min and P = 10 min, after each turn, and there are a hundred in a day (simulated:
8 of 20 documents are lost). So whoever has not heard of a document for a time a asks at a rate of
e^(a/B) / (P s). If B <= M, that makes up for those who left meanwhile: all together ask at 1 / P
at least, until the last of them leaves after about M ln s; nobody asks until then with probability
exp(-M ln s / P) = s^(-M / P), 4e-12. Each Lookup begins this anew at the m holders whom it reaches,
each cast at all that it reaches. A turn is drawn by inversion: a = B ln(1 + E P s / B), with E
exponential of mean 1.

What it costs. Holders leave at a rate of H / M, so as many copies are made; a turn is q small
messages. Simulated with P = 10 min and B = 30 min, n = 1000, c = 2 (s = q = 78), bubbles that reach
random nodes, all of them, and holders counted from the third hour on:

    M         documents x days   lost   holders: least, mean, most   turns/h   copies/h   found
    60 min    1000               0      30, 99, 211                  19        110        0.9989
    45 min    200                0      29, 92, 197                  17        134        0.9978
    30 min    200                0      5, 79, 183                   13        168        0.9916
    24 h      50                 0      109, 155, 222                31        11         1.0000

For M = 60 min the arithmetic says 2e-9 losses per document and day (4e-12 for each of 460 turns; it
leaves out turns that count too many). 0 of 1000 only shows that it is below 0.003, with 95 %.
At n = 10,000 and M = 60 min (s = 245, 10 documents): 195, 355, 591 holders, 36 turns, 373 copies.
Sessions below B are too short: at 20 min, 8 of 20 documents were lost within the day. If 90 % of
the holders go at once, 1 of 40 documents is lost, the others have s holders after 29 min (median).

Versions. A Lookup says which version it is about; who has a newer one answers with it, so who
holds an old one learns that when its turn comes, if not before. An old version that is cast again
is answered with the newer one, too; and since whoever casts it may not care, some of those who
know better cast theirs (see outdated()). A deletion is a version, and is kept in the same way
until it expires.

Weak: this is made for nodes that fail, not for nodes that lie. Whoever a Lookup reaches can answer
it under many ids, so that the holder believes that there are enough of them; and whoever asks again
and again about a document makes those who hold it wait. A managed document has an owner that does
not depend on others.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log1p
from random import Random

import msgspec

from shoal.base.containers import Ordered
from shoal.base.errors import InvariantViolated
from shoal.base.ids import NodeId
from shoal.base.units import S_NS
from shoal.protocols.search.documents.document import Document
from shoal.protocols.search.documents.document_store import Holdings

PERIOD_NS = 10 * 60 * S_NS  # P: s holders ask once in this time, if all of them heard just now
CHURN_NS = 30 * 60 * S_NS  # B: nodes stay for so long on average, at least
ANSWERS_NS = 20 * S_NS  # a bubble's way and back is a dial or two for each of 20 hops at most
TURNS_MAX = 16  # documents that one call of due() begins to ask about
OUTDATED_CASTS = 2.0  # so many of those who meet an old version cast the newer one, about


class Sizes(msgspec.Struct, frozen=True, gc=False):
    """Of the network, and of bubbles in it."""

    nodes: float
    documents: int
    """Nodes that shall keep each: of a bubble, those that have its space."""
    queries: int

    @property
    def meetings(self) -> float:
        """How many nodes two bubbles share: answers, if there are enough holders."""
        return self.documents * self.queries / max(self.nodes, 1.0)


class Ask(msgspec.Struct, frozen=True, gc=False):
    """Send a Lookup for this document, in a bubble of the size for queries."""

    document: Document


class Cast(msgspec.Struct, frozen=True, gc=False):
    """Have so many more nodes keep this document."""

    document: Document
    size: int


class _Entry(msgspec.Struct):
    """A document that we help to keep."""

    digest: bytes
    space: str
    due_ns: int
    """Our turn; while we count, the end of that."""
    answers: dict[NodeId, None] | None = None
    """Who else has it; None: we are not counting."""
    corrected_ns: int | None = None
    """When we cast it because somebody cast an older one."""
    correct: bool = False
    """That is to be done."""


class Durable:
    """Decides when to ask about a durable document, and when to cast it again."""

    def __init__(self, holdings: Holdings, sizes: dict[str, Sizes], rng: Random) -> None:
        self.sizes = sizes
        """Of each space, kept up to date by whoever measures."""
        self._holdings = holdings
        self._rng = rng
        self._entries: dict[bytes, _Entry] = {}
        self._order = Ordered()  # by due_ns

    def __len__(self) -> int:
        return len(self._entries)

    def heard(self, document: Document, now_ns: int) -> None:
        """A durable document that we keep was cast or asked about by somebody, or is new here."""
        if document.life != "durable":
            return
        id = document.id
        known = self._entries.get(id)
        if known is None or known.digest != document.digest:
            self._forget(id)
            self._sweep(now_ns)
            entry = self._entries[id] = _Entry(
                document.digest, document.space, self._turn_ns(document.space, now_ns)
            )
            self._order.add(entry.due_ns, (id, None))
        elif known.answers is None and not known.correct:
            self._move(id, known, self._turn_ns(known.space, now_ns))

    def outdated(self, id: bytes, now_ns: int) -> None:
        """Somebody cast an older version than ours. About `meetings` nodes notice; some of them
        cast what they have, each once in a period at most."""
        entry = self._entries.get(id)
        if entry is None or entry.correct:
            return
        corrected_ns = entry.corrected_ns
        if corrected_ns is not None and now_ns < corrected_ns + PERIOD_NS:
            return
        if self._rng.random() * self.sizes[entry.space].meetings < OUTDATED_CASTS:
            entry.corrected_ns = now_ns
            entry.correct = True
            entry.answers = None
            self._move(id, entry, now_ns)

    def answered(self, id: bytes, digest: bytes, node: NodeId) -> None:
        """A node has this version as well."""
        entry = self._entries.get(id)
        if entry is None or entry.answers is None or entry.digest != digest:
            return
        # More would change nothing: this is enough for s holders twice over.
        if len(entry.answers) <= 2 * self.sizes[entry.space].meetings:
            entry.answers[node] = None

    def due(self, now_ns: int) -> list[Ask | Cast]:
        """What to do now."""
        return list(self._due(now_ns))

    def _due(self, now_ns: int) -> Iterator[Ask | Cast]:
        for id, _ in self._order.up_to(now_ns, TURNS_MAX):
            entry = self._entries[id]
            document = self._holdings.get(id, now_ns)
            if document is None or document.digest != entry.digest:
                self._forget(id)
            elif entry.correct:
                yield Cast(document, self.sizes[entry.space].documents)
                self._rest(id, entry, now_ns)
            elif entry.answers is None:
                yield Ask(document)
                entry.answers = {}
                self._move(id, entry, now_ns + ANSWERS_NS)
            else:
                missing = self._missing(entry.space, len(entry.answers))
                if missing > 0:
                    yield Cast(document, missing)
                self._rest(id, entry, now_ns)

    def _missing(self, space: str, answers: int) -> int:
        """How many holders there should be more."""
        sizes = self.sizes[space]
        holders = 1 + answers * sizes.nodes / max(sizes.queries, 1)
        return ceil(sizes.documents - holders)

    def _turn_ns(self, space: str, now_ns: int) -> int:
        wait = self._rng.expovariate(1.0) * PERIOD_NS * self.sizes[space].documents
        return now_ns + round(CHURN_NS * log1p(wait / CHURN_NS))

    def _rest(self, id: bytes, entry: _Entry, now_ns: int) -> None:
        entry.answers = None
        entry.correct = False
        self._move(id, entry, self._turn_ns(entry.space, now_ns))

    def _move(self, id: bytes, entry: _Entry, due_ns: int) -> None:
        self._order.remove(entry.due_ns, (id, None))
        entry.due_ns = due_ns
        self._order.add(due_ns, (id, None))

    def _forget(self, id: bytes) -> None:
        entry = self._entries.pop(id, None)
        if entry is not None:
            self._order.remove(entry.due_ns, (id, None))

    def _sweep(self, now_ns: int) -> None:
        """What was evicted is forgotten when its turn comes, or here, if there is too much."""
        if len(self._entries) <= 2 * len(self._holdings) + 64:
            return
        for id in list(self._entries):
            if self._holdings.get(id, now_ns) is None:
                self._forget(id)

    def check_invariants(self) -> None:
        """Raise InvariantViolated if the books do not agree."""
        expected = sorted((entry.due_ns, id) for id, entry in self._entries.items())
        if expected != [(due_ns, slot[0]) for due_ns, slot in self._order.entries()]:
            raise InvariantViolated(f"{len(expected)} documents are kept, others are due")
