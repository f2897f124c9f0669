"""Searches of applications: slices, answers that are checked, and the end."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.base.errors import UsageError
from shoal.base.units import S_NS
from shoal.protocols.search.commands import (
    FindDocuments,
    Found,
    SearchOver,
    SearchWidened,
    StopSearch,
)
from shoal.protocols.search.documents.document import Document
from shoal.protocols.search.messages import Match
from shoal.protocols.search.payloads import (
    NOTHING,
    BubbleType,
    Hit,
    Holding,
    Lookup,
    Search,
    decode_payload,
    encode_item,
)
from tests.support.bubbles import BubbleBench
from tests.support.documents import ALICE, BOB, a_document

WITHIN_NS = 60 * S_NS


class SearchBench(BubbleBench):
    """A node that searches."""

    def find(self, text: str = "air", **more: Any) -> bytes:
        """Begin, and give the bubble's id."""
        options: dict[str, Any] = {"confidence": 0.99, "limit": None, "within_ns": WITHIN_NS}
        options |= more
        token = options.pop("token", "t")
        self.host.command(self.machine, FindDocuments(text, **options), token)
        self.run()
        self.asked_parts = self.casts()
        return self.asked_parts[0][1].id

    def answers(self, id: bytes, *documents: Document, score: float = 1.0) -> None:
        items = tuple(encode_item(Hit(document.signed, score)) for document in documents)
        self.says(self.neighbours[0], Match(id, items, True))

    def told(self, kind: type) -> list[Any]:
        return [event for event in self.host.notified if type(event) is kind]

    @property
    def found(self) -> list[str]:
        return [event.document.name for event in self.told(Found)]


def test_all_at_once_if_all_is_wanted() -> None:
    bench = SearchBench()
    bench.find()
    total = bench.parts.bubbles.query_size(0.99)
    (widened,) = bench.told(SearchWidened)
    assert widened.asked == total
    assert widened.confidence >= 0.99
    assert widened.nodes == 1000.0
    assert sum(m.end - m.start for _, m in bench.asked_parts) == total - 1
    bench.wait(4)
    (over,) = bench.told(SearchOver)
    assert (over.asked, over.token) == (total, "t")
    assert over.confidence >= 0.99
    assert len(bench.parts.searches) == 0


def test_slice_by_slice_if_few_are_wanted() -> None:
    bench = SearchBench()
    bench.find(limit=1)
    bench.wait(20)
    total = bench.parts.bubbles.query_size(0.99)
    asked = [event.asked for event in bench.told(SearchWidened)]
    assert asked == [-(-total // 8), 2 * -(-total // 8), 4 * -(-total // 8), total]
    assert [event.asked for event in bench.told(SearchOver)] == [total]


def test_enough_is_enough() -> None:
    bench = SearchBench()
    id = bench.find(limit=2)
    bench.answers(id, a_document(name="1"), a_document(name="2"), a_document(name="3"))
    assert bench.found == ["1", "2"]
    (over,) = bench.told(SearchOver)
    assert over.asked < bench.parts.bubbles.query_size(0.99)
    assert over.confidence < 0.9
    bench.wait(20)
    assert len(bench.told(SearchOver)) == 1
    assert bench.casts() == []


def test_the_time_is_limited() -> None:
    bench = SearchBench()
    bench.find(limit=1, within_ns=4 * S_NS)
    bench.wait(3.5)
    assert bench.told(SearchOver) == []
    bench.wait(1)
    assert len(bench.told(SearchOver)) == 1
    assert len(bench.told(SearchWidened)) == 2


def test_a_document_is_told_once_and_again_if_it_is_newer() -> None:
    bench = SearchBench()
    id = bench.find()
    old, new = a_document(version=1), a_document(version=2)
    for document in (old, old, new, old):
        bench.answers(id, document)
    assert [event.document.version for event in bench.told(Found)] == [1, 2]


def test_what_nobody_signed_is_not_told() -> None:
    bench = SearchBench()
    id = bench.find()
    hit = encode_item(Hit(a_document().signed, 1.0))
    bench.says(bench.neighbours[0], Match(id, (hit,), True), valid=False)
    assert bench.found == []


@pytest.mark.parametrize(
    "document",
    [
        a_document(content={"title": "water"}),
        a_document(deleted=True),
        a_document(expires_ns=S_NS),
    ],
)
def test_what_does_not_answer_the_question_is_not_told(document: Document) -> None:
    bench = SearchBench()
    bench.wait(2)
    bench.sent()
    id = bench.find()
    bench.answers(id, document)
    assert bench.found == []


def test_nonsense_is_left_out() -> None:
    bench = SearchBench()
    id = bench.find()
    good = a_document()
    items = (
        b"nonsense",
        encode_item(Hit(b"no document", 1.0)),
        encode_item(Holding(good.id, good.digest, bench.neighbours[0].node)),
        encode_item(Hit(good.signed, 1.0)),
    )
    bench.says(bench.neighbours[0], Match(id, items, True))
    assert bench.found == ["a"]


def test_one_document_by_its_id() -> None:
    bench = SearchBench()
    wanted, other = a_document(deleted=True), a_document(BOB, "b")
    id = bench.find("*", id=wanted.id)
    part = bench.asked_parts[0][1]
    payload = decode_payload(BubbleType(part.kind), part.payload)
    assert isinstance(payload, Lookup)
    assert [(one.id, one.version, one.digest) for one in payload.documents] == [
        (wanted.id, 0, NOTHING)
    ]
    bench.answers(id, other, wanted)
    assert [event.document for event in bench.told(Found)] == [wanted]


def test_as_many_hits_of_each_node_as_are_wanted() -> None:
    bench = SearchBench()
    bench.find(limit=3)
    part = bench.asked_parts[0][1]
    assert decode_payload(BubbleType(part.kind), part.payload) == Search("air", 3)


def test_what_is_stopped_is_forgotten() -> None:
    bench = SearchBench()
    id = bench.find()
    bench.host.command(bench.machine, StopSearch(), "t")
    bench.host.command(bench.machine, StopSearch(), "unknown")
    bench.answers(id, a_document())
    bench.wait(20)
    assert bench.found == []
    assert bench.told(SearchOver) == []
    assert bench.rejected == ["no-such-bubble"]
    assert len(bench.parts.searches) == len(bench.parts.routes) == 0


def test_two_searches_keep_apart() -> None:
    bench = SearchBench()
    first, second = bench.find(token=1), bench.find("kallio", token=2)
    bench.answers(first, a_document(ALICE))
    bench.answers(second, a_document(content={"title": "kallio"}))
    assert [event.token for event in bench.told(Found)] == [1, 2]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"confidence": 1.0}, "confidence 1"),
        ({"confidence": 0.0}, "confidence 0"),
        ({"limit": 0}, "limit 0"),
        ({"within_ns": 0}, "no time"),
        ({"text": "(air"}, "never closed"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], says: str) -> None:
    bench = SearchBench()
    with pytest.raises(UsageError, match=says):
        bench.find(**wrong)
    assert len(bench.parts.searches) == 0
    assert bench.casts() == []


def test_a_token_means_one_search() -> None:
    bench = SearchBench()
    bench.find()
    with pytest.raises(UsageError, match="goes on"):
        bench.find()
