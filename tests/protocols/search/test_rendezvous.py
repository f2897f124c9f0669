"""Where bubbles meet: what is kept, what is answered, and who is told."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.base.units import S_NS
from shoal.protocols.search.documents.document import LIFE_NS_MAX, Document
from shoal.protocols.search.documents.document_store import Holdings
from shoal.protocols.search.messages import BubbleCast, Match
from shoal.protocols.search.payloads import (
    NOTHING,
    BubbleType,
    Hit,
    Holding,
    Lookup,
    Put,
    Search,
    Sighting,
    Wanted,
    Watch,
    decode_item,
    encode_item,
)
from shoal.protocols.search.rendezvous import NO_BUBBLE
from tests.support.bubbles import FOREIGN, BubbleBench, a_cast
from tests.support.circle import ME, Peer
from tests.support.documents import ALICE, BOB, SPACES, a_document

ORIGIN, OWNER = Peer(50), Peer(51)


class MeetingBench(BubbleBench):
    """A node that bubbles reach; it is the last of each."""

    def meets(self, payload: Any, origin: Peer = ORIGIN, *, valid: bool = True) -> list[Any]:
        """A bubble comes; gives the answers that go back."""
        self.last = a_cast(origin, payload, total=1)
        sent = self.brings(self.neighbours[0], self.last, valid=valid)
        return self.items(sent, self.neighbours[0])

    def items(self, sent: list[Any], peer: Peer) -> list[Any]:
        return [
            decode_item(item)
            for to, message in sent
            if to == peer.node and type(message) is Match
            for item in message.items
        ]

    def holds(self, document: Document) -> Document | None:
        return self.parts.holdings.get(document.id, self.host.time_ns)

    def watch(self, text: str = "air", owner: Peer = OWNER) -> Watch:
        watch = Watch(bytes(8), text, 1_000_000)
        self.meets(watch, owner)
        return watch


def test_documents_are_kept_and_found() -> None:
    bench = MeetingBench()
    document = a_document()
    assert bench.meets(Put(document.signed)) == []
    assert bench.holds(document) == document
    (hit,) = bench.meets(Search("title:air", 10))
    assert isinstance(hit, Hit)
    assert hit.signed == document.signed
    assert hit.score > 0
    assert bench.meets(Search("title:water", 10)) == []


def test_no_more_hits_than_were_asked_for() -> None:
    bench = MeetingBench()
    for name in "abc":
        bench.meets(Put(a_document(name=name).signed))
    assert len(bench.meets(Search("air", 2))) == 2


def test_the_newest_version_is_kept_and_who_casts_an_older_one_hears_of_it() -> None:
    bench = MeetingBench()
    old, new = a_document(version=1), a_document(version=2)
    bench.meets(Put(old.signed))
    assert bench.meets(Put(new.signed)) == []
    assert bench.meets(Put(old.signed)) == [Hit(new.signed, 0.0)]
    assert bench.holds(old) == new


def test_a_deletion_takes_a_document_away_and_keeps_older_ones_out() -> None:
    bench = MeetingBench()
    old, gone = a_document(version=1), a_document(version=2, deleted=True)
    for document in (old, gone, old):
        bench.meets(Put(document.signed))
    assert bench.holds(old) == gone
    assert bench.meets(Search("air", 10)) == []


def test_by_id_with_what_the_asker_knows() -> None:
    bench = MeetingBench()
    old, new = a_document(version=1), a_document(version=2)
    bench.meets(Put(new.signed))

    def look(id: bytes, version: int, digest: bytes) -> list[Any]:
        return bench.meets(Lookup((Wanted(id, version, digest),)))

    assert look(new.id, 0, NOTHING) == [Hit(new.signed, 0.0)]
    assert look(new.id, 1, old.digest) == [Hit(new.signed, 0.0)]
    assert look(new.id, 2, new.digest) == [Holding(new.id, new.digest, ME.node)]
    assert look(new.id, 3, new.digest) == []
    assert look(bytes(16), 0, NOTHING) == []


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (Put(b"no document"), "bad-document"),
        (Put(a_document(expires_ns=S_NS // 2).signed), "document-expired"),
        (Put(a_document(expires_ns=2 * LIFE_NS_MAX["fading"]).signed), "document-lasting"),
        (Search("(air", 10), "bad-query"),
        (Watch(bytes(8), "(air", 1_000_000), "watch-unreadable"),
        (Watch(bytes(8), "air", 1), "watch-expired"),
    ],
)
def test_refused(payload: Any, reason: str) -> None:
    bench = MeetingBench()
    bench.wait(1)
    bench.sent()
    assert bench.meets(payload) == []
    assert bench.rejected == [reason]


def test_a_payload_that_is_none_is_refused() -> None:
    bench = MeetingBench()
    cast = a_cast(ORIGIN, b"\xc1", total=1)
    query = BubbleCast(None, 1, 1, 0, 1, int(BubbleType.QUERY), cast.header, cast.payload)
    bench.brings(bench.neighbours[0], query)  # the fake host does not look at signatures
    assert bench.rejected == ["bad-payload"]


def test_bubbles_of_others_are_forwarded_and_their_answers_come_back() -> None:
    bench = MeetingBench()
    cast = a_cast(ORIGIN, b"\xc1 whatever", total=9)
    assert cast.kind == FOREIGN
    sent = bench.brings(bench.neighbours[0], cast)
    assert len(sent) == 2
    assert bench.rejected == []
    answers = (b"any", b"thing")
    bench.says(bench.neighbours[1], Match(cast.id, answers, True))
    assert bench.sent() == [(bench.neighbours[0].node, Match(cast.id, answers, True))]


def test_a_document_that_its_owner_did_not_sign_is_not_kept() -> None:
    bench = MeetingBench()
    document = a_document()
    part = a_cast(ORIGIN, Put(document.signed), total=1)
    bringer = bench.neighbours[0]
    name = bench.name_from(bringer)
    cast = BubbleCast(name, 1, 1, 0, 1, part.kind, part.header, part.payload)
    bench.host.received(bringer.node, cast)
    bench.host.finish_one()  # the bubble is its origin's
    bench.host.finish_one(valid=False)  # the document is not its owner's
    assert bench.rejected == ["bad-document"]
    assert bench.holds(document) is None


def test_our_own_documents_have_a_shelf_of_their_own() -> None:
    bench = MeetingBench()
    bench.parts.rendezvous._holdings = holdings = Holdings(SPACES, others_bytes_max=1)
    ours = a_document(ME.key, "ours")
    bench.meets(Put(ours.signed))
    bench.meets(Put(a_document().signed))
    assert len(holdings) == 1
    assert bench.rejected == ["document-full"]


# Standing queries


def told(bench: MeetingBench) -> list[Any]:
    """All that the owner of the standing query was sent."""
    return [message for to, message in bench.host.sent if to == OWNER.node]


def test_documents_are_shown_to_standing_queries() -> None:
    bench = MeetingBench()
    watch = bench.watch()
    document = a_document()
    for _ in range(3):  # as it is cast again
        bench.meets(Put(document.signed))
    bench.meets(Put(a_document(content={"title": "water"}, version=2).signed))
    sighting = encode_item(Sighting(watch.id, document.signed))
    assert told(bench) == [Match(NO_BUBBLE, (sighting,), False)]


def test_an_instant_document_is_shown_and_not_kept() -> None:
    bench = MeetingBench()
    bench.watch()
    event = a_document(life="instant", expires_ns=60 * S_NS)
    bench.meets(Put(event.signed))
    assert bench.holds(event) is None
    assert len(told(bench)) == 1


def test_a_full_node_shows_what_it_cannot_keep() -> None:
    bench = MeetingBench()
    bench.parts.rendezvous._holdings = Holdings(SPACES, others_bytes_max=1)
    bench.watch()
    bench.meets(Put(a_document().signed))
    assert bench.rejected == ["document-full"]
    assert len(told(bench)) == 1


def test_who_ended_its_query_is_told_nothing() -> None:
    bench = MeetingBench()
    watch = bench.watch()
    bench.meets(Watch(watch.id, watch.text, 0), OWNER)
    bench.meets(Put(a_document().signed))
    assert told(bench) == []


def test_an_owner_that_cannot_be_reached_is_not_dialled_for_each_document() -> None:
    """Its address may be somebody else's."""
    bench = MeetingBench()
    bench.held[OWNER.node] = None
    bench.watch()
    for number in range(20):
        bench.meets(Put(a_document(name=f"{number}").signed))
        if number == 0:
            bench.fail(OWNER)
    assert [contact.node for contact in bench.host.dialled].count(OWNER.node) == 1


# Answers to bubbles of ours


def test_a_newer_version_takes_the_place_of_ours() -> None:
    bench = MeetingBench()
    old, new = a_document(version=1), a_document(version=2)
    bench.meets(Put(old.signed))
    answers = [encode_item(Hit(new.signed, 0.0)), b"nonsense"]
    bench.parts.rendezvous.told(answers, bench.host.time_ns)
    document = bench.holds(old)
    assert document == old  # not before it is checked
    for effect in bench.parts.rendezvous.told(answers, bench.host.time_ns):
        bench.host.verify(0, effect)  # type: ignore[arg-type]
    bench.run()
    assert bench.holds(old) == new


def test_what_we_do_not_keep_is_not_taken_from_answers() -> None:
    bench = MeetingBench()
    hit = encode_item(Hit(a_document(BOB).signed, 1.0))
    assert bench.parts.rendezvous.told([hit], 0) == []


def test_other_holders_of_durable_documents_are_counted() -> None:
    bench = MeetingBench()
    document = a_document(ALICE, life="durable", expires_ns=100 * 24 * 3600 * S_NS)
    bench.meets(Put(document.signed))
    (entry,) = bench.parts.durable._entries.values()
    entry.answers = {}
    holding = encode_item(Holding(document.id, document.digest, OWNER.node))
    bench.parts.rendezvous.told([holding, holding], bench.host.time_ns)
    assert list(entry.answers) == [OWNER.node]
