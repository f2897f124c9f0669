"""Documents that we put: signed, cast, cast again, and not faster than others take them."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.base.errors import UsageError
from shoal.base.units import S_NS
from shoal.kernel.effects import Send
from shoal.protocols.search.bubbles.data_density import Spread
from shoal.protocols.search.commands import DocumentPut, PutDocument
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.documents.document import (
    DOCUMENTS,
    LIFE_NS_MAX,
    Document,
    Life,
    read_document,
)
from shoal.protocols.search.documents.document_store import MANAGED_REFRESH_NS
from shoal.protocols.search.payloads import BubbleType, Put, decode_payload
from shoal.protocols.search.spaces import Columns
from tests.support.bubbles import BubbleBench

HOUR_NS = 3600 * S_NS


class PutBench(BubbleBench):
    def put(
        self,
        name: str = "a",
        content: dict[str, Any] | None = None,
        life: Life = "managed",
        life_ns: int = HOUR_NS,
        *,
        delete: bool = False,
    ) -> Document:
        said = None if delete else content or {"title": "air"}
        self.host.command(self.machine, PutDocument(name, said, life, life_ns), name)
        self.run()
        put = self.host.notified[-1]
        assert isinstance(put, DocumentPut)
        assert put.token == name
        document: Document = put.document
        return document

    def cast_documents(self) -> list[Document]:
        """What was cast since this was asked last, each once for each bubble."""
        documents = {}
        for _, part in self.casts():
            payload = decode_payload(BubbleType(part.kind), part.payload)
            assert isinstance(payload, Put)
            documents[part.id] = read_document(payload.signed)
        return list(documents.values())


def test_it_is_signed_cast_and_kept() -> None:
    bench = PutBench()
    document = bench.put()
    (_, part), *_ = bench.casts()
    assert part.total == bench.parts.bubbles.data_size()
    assert part.header.expires_ms <= 60_000
    held = bench.parts.holdings.get(document.id, bench.host.time_ns)
    assert held == document
    assert document.value == {"title": "air"}
    assert document.expires_ns == bench.host.time_ns + HOUR_NS


def test_versions_grow_whatever_the_clock_does() -> None:
    bench = PutBench()
    bench.host.time_ns = 1000 * S_NS
    versions = [bench.put(f"{number}").version for number in range(3)]
    assert versions == [1_000_000, 1_000_001, 1_000_002]
    bench.host.time_ns = 10 * S_NS
    assert bench.put().version == 1_000_003


def test_managed_documents_are_cast_again_until_they_expire() -> None:
    bench = PutBench()
    document = bench.put(life_ns=25 * 60 * S_NS)
    bench.put("f", life="fading")
    bench.cast_documents()
    cast = []
    for _ in range(30):
        bench.wait(60)
        cast += bench.cast_documents()
    assert cast == [document, document]
    assert len(bench.parts.publications) == 0


def test_an_update_takes_the_place_of_what_was_there() -> None:
    bench = PutBench()
    bench.put()
    newer = bench.put(content={"title": "better air"})
    bench.cast_documents()
    bench.wait(MANAGED_REFRESH_NS / S_NS + 10)
    assert bench.cast_documents() == [newer]
    assert bench.parts.holdings.get(newer.id, bench.host.time_ns) == newer


def test_a_new_version_goes_to_as_many_as_had_the_old_one() -> None:
    bench = PutBench()
    bench.parts.bubbles.spreads[DOCUMENTS] = Spread(Columns(DOCUMENTS), 4.0, 4.0)
    bench.put()
    before = bench.casts()[0][1].total
    bench.parts.bubbles.spreads[DOCUMENTS] = Spread(Columns(DOCUMENTS), 0.25, 0.25)
    bench.put(delete=True)
    after = bench.casts()[0][1]
    assert after.total == before > bench.parts.bubbles.data_size()
    bench.put("other")
    assert bench.casts()[0][1].total == bench.parts.bubbles.data_size()


def test_versions_take_the_same_ways_and_durable_copies_do_not() -> None:
    bench = PutBench()
    first = bench.put(life="durable")
    ways = [part.header.way for _, part in bench.casts()]
    bench.put(life="durable")
    ways += [part.header.way for _, part in bench.casts()]
    assert len(set(ways)) == 1
    effects = bench.parts.publications.spread(first, 7, bench.host.time_ns)
    parts = [effect.message for effect in effects if isinstance(effect, Send)]
    assert [part.total for part in parts] == [7, 7]
    assert parts[0].header.way not in ways


def test_a_deletion_is_cast_once_and_ends_the_care() -> None:
    bench = PutBench()
    bench.put()
    bench.cast_documents()
    gone = bench.put(delete=True)
    assert bench.cast_documents() == [gone]
    assert gone.deleted
    bench.wait(MANAGED_REFRESH_NS / S_NS + 10)
    assert bench.cast_documents() == []
    assert len(bench.parts.publications) == 0


def test_others_get_no_more_than_they_take() -> None:
    bench = PutBench(SearchConfig(origin_burst=8, origin_refill_ns=S_NS))
    names = [f"{number}" for number in range(20)]
    for name in names:
        bench.put(name)
    at_once = bench.cast_documents()
    assert len(at_once) == 7
    assert bench.parts.publications.waiting == 13
    later = []
    for _ in range(30):
        bench.wait(1)
        later += bench.cast_documents()
    assert [document.name for document in at_once + later] == names
    assert bench.parts.publications.waiting == 0


def test_so_many_wait_and_no_more() -> None:
    config = SearchConfig(origin_burst=2, origin_refill_ns=S_NS, puts_max=3)
    bench = PutBench(config)
    for number in range(5):
        bench.put(f"{number}", life="fading")
    with pytest.raises(UsageError, match="3 documents wait"):
        bench.put("5", life="fading")


def test_so_many_are_managed_and_no_more() -> None:
    bench = PutBench(SearchConfig(puts_max=3))
    for number in range(3):
        bench.put(f"{number}")
    with pytest.raises(UsageError, match="3 documents wait or are managed"):
        bench.put("3")
    bench.put("2", {"title": "another version"})
    bench.put("2", delete=True)
    bench.put("3")


@pytest.mark.parametrize("life", ["instant", "fading", "managed", "durable"])
def test_lives_are_limited(life: Life) -> None:
    bench = PutBench()
    for wrong_ns in (0, LIFE_NS_MAX[life] + 1):
        with pytest.raises(UsageError, match=f"no life of a {life} document"):
            bench.put(life=life, life_ns=wrong_ns)
    bench.put(life=life, life_ns=LIFE_NS_MAX[life])


def test_before_we_know_the_network_nothing_is_put() -> None:
    bench = PutBench()
    bench.parts.measurement.known = None
    with pytest.raises(UsageError, match="not joined"):
        bench.put()
    assert len(bench.parts.publications) == bench.parts.publications.waiting == 0
