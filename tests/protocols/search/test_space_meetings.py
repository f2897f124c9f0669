"""A node with a space of an application: what it keeps, answers, asks, and refuses."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.base.errors import UsageError
from shoal.base.units import S_NS
from shoal.protocols.search.bubbles.bubble_size import bubble_size, certainty_of, confidence_of
from shoal.protocols.search.commands import (
    FindDocuments,
    Found,
    OpenSpace,
    PutDocument,
    SearchOver,
    Seen,
    WatchDocuments,
)
from shoal.protocols.search.machine import SearchNode
from shoal.protocols.search.messages import BubbleCast, Match, Totals
from shoal.protocols.search.payloads import (
    BubbleType,
    Hit,
    Payload,
    Put,
    Search,
    Sighting,
    Watch,
    decode_item,
    encode_item,
    encode_payload,
    type_of,
)
from shoal.protocols.search.rendezvous import NO_BUBBLE
from shoal.protocols.search.signed_records import sign_header
from shoal.protocols.search.spaces import Columns, kind_of
from tests.support.bubbles import TOTALS, BubbleBench, a_cast
from tests.support.circle import Peer
from tests.support.documents import a_document
from tests.support.spaces import line

ORIGIN, OWNER = Peer(50), Peer(51)
COLUMNS = Columns("line")


class SpaceBench(BubbleBench):
    """A node among neighbours, which has the space unless told otherwise."""

    def __init__(self, *, opened: bool = True) -> None:
        super().__init__()
        self.space = line()
        if opened:
            self.host.command(self.machine, OpenSpace(self.space))

    def meets(self, payload: Payload, origin: Peer = ORIGIN) -> list[Any]:
        """A bubble of the space ends here; gives the answers that go back."""
        plain = a_cast(origin, payload, total=1)
        kind = kind_of(self.space, type_of(payload))
        raw = encode_payload(payload)
        header = sign_header(
            *(origin.key, origin.record),
            kind=kind,
            total=1,
            payload=raw,
            nonce=plain.header.nonce,
            expires_ms=plain.header.expires_ms,
        )
        cast = BubbleCast(None, 1, 1, 0, 1, kind, header, raw)
        sent = self.brings(self.neighbours[0], cast)
        matches = [message for _, message in sent if type(message) is Match]
        return [decode_item(item) for match in matches for item in match.items]

    def measured(self, members: float, data: float = 1.0, query: float = 1.0) -> None:
        """A round has ended."""
        self.parts.measurement.extras = {
            COLUMNS.members: members,
            COLUMNS.data: data,
            COLUMNS.query: query,
        }
        self.parts.bubbles.beat(self.parts.measurement.extras, self.host.time_ns)

    def find(self, query: bytes = b"5", **more: Any) -> bytes:
        options: dict[str, Any] = {"confidence": 0.99, "limit": None, "within_ns": 60 * S_NS}
        command = FindDocuments(query, **(options | more), space="line")
        self.host.command(self.machine, command, "t")
        self.run()
        self.cast = self.casts()[0][1]
        return self.cast.id

    def told(self, kind: type) -> list[Any]:
        return [event for event in self.host.notified if type(event) is kind]


def point(number: int, name: str = "a", **more: Any) -> Any:
    return a_document(content=b"%d" % number, name=name, kind="line", **more)


# What others ask


def test_data_is_kept_and_found_by_its_matcher() -> None:
    bench = SpaceBench()
    near, far = point(5, "near"), point(50, "far")
    for data in (near, far):
        assert bench.meets(Put(data.signed)) == []
    assert bench.meets(Search(b"7", 10)) == [Hit(near.signed, 8.0)]
    assert bench.meets(Search(b"99", 10)) == []
    assert bench.rejected == []
    bench.machine.check_invariants()


def test_versions_and_deletions_are_those_of_all_documents() -> None:
    bench = SpaceBench()
    old, new, gone = point(5), point(6, version=2), a_document(kind="line", version=3, deleted=True)
    bench.meets(Put(new.signed))
    assert bench.meets(Put(old.signed)) == [Hit(new.signed, 0.0)]
    assert bench.meets(Search(b"6", 10)) == [Hit(new.signed, 10.0)]
    bench.meets(Put(gone.signed))
    assert bench.meets(Search(b"6", 10)) == []
    bench.machine.check_invariants()


def test_spaces_do_not_see_each_other() -> None:
    bench = SpaceBench()
    document, data = a_document(), point(5)
    bench.meets(Put(document.signed))
    assert bench.rejected == ["bad-document"], "a document among the data of the space"
    foreign = a_cast(ORIGIN, Put(data.signed), total=1)
    bench.brings(bench.neighbours[0], foreign)
    assert bench.rejected == ["bad-document"] * 2, "and data of the space among documents"
    assert len(bench.parts.holdings) == 0


def test_who_does_not_have_the_space_keeps_and_answers_nothing() -> None:
    bench = SpaceBench(opened=False)
    data = point(5)
    for payload in (Put(data.signed), Search(b"5", 10), Watch(bytes(8), b"5", 1_000_000)):
        assert bench.meets(payload) == []
    assert bench.rejected == []
    assert len(bench.parts.holdings) == len(bench.parts.watches) == 0


def test_a_matcher_that_fails_is_counted_and_the_others_are_found() -> None:
    bench = SpaceBench()
    good, bad = point(5, "good"), a_document(content=b"five", name="bad", kind="line")
    for data in (good, bad):
        bench.meets(Put(data.signed))
    assert bench.meets(Search(b"5", 10)) == [Hit(good.signed, 10.0)]
    assert bench.rejected == ["matcher-failed"]
    assert bench.meets(Search(b"\xff", 10)) == []
    assert bench.rejected == ["matcher-failed"] * 2, "once for a question, whatever it meets"
    assert bench.space.failures == 3
    assert bench.space.problem.startswith("ValueError: invalid literal")
    assert bench.meets(Search(b"6", 10)) == [Hit(good.signed, 9.0)], "and the node goes on"


def test_text_is_no_question_of_a_space_and_bytes_are_none_of_documents() -> None:
    bench = SpaceBench()
    bench.meets(Search("air", 10))
    bench.meets(Watch(bytes(8), "air", 1_000_000))
    bench.brings(bench.neighbours[0], a_cast(ORIGIN, Search(b"5", 10), total=1))
    assert bench.rejected == ["bad-query", "watch-unreadable", "bad-query"]


def test_standing_queries_of_a_space_meet_its_data() -> None:
    bench = SpaceBench()
    bench.meets(Watch(bytes(8), b"5", 1_000_000), OWNER)
    bench.meets(Watch(b"12345678", b"bad", 1_000_000), OWNER)
    near, far = point(7, "near"), point(70, "far")
    for data in (near, far):
        bench.meets(Put(data.signed))
    told = [message for to, message in bench.host.sent if to == OWNER.node]
    assert told == [Match(NO_BUBBLE, (encode_item(Sighting(bytes(8), near.signed)),), False)]
    assert bench.rejected == ["matcher-failed"] * 2
    bench.machine.check_invariants()


# What our application asks


def test_hits_are_judged_by_our_own_matcher() -> None:
    bench = SpaceBench()
    id = bench.find(b"5")
    made_up = Hit(point(50, "far").signed, 100.0)
    other = Hit(a_document(name="document").signed, 100.0)
    broken = Hit(a_document(content=b"five", name="broken", kind="line").signed, 100.0)
    true = Hit(point(6, "near").signed, 0.0)
    items = tuple(encode_item(hit) for hit in (made_up, other, broken, true))
    bench.says(bench.neighbours[0], Match(id, items, True))
    assert [(one.document.name, one.score) for one in bench.told(Found)] == [("near", 9.0)]


def test_a_sighting_is_judged_by_our_own_matcher() -> None:
    bench = SpaceBench()
    bench.host.command(bench.machine, WatchDocuments(b"5", "line"), "w")
    bench.run()
    (_, cast) = bench.casts()[0]
    assert cast.kind == kind_of(bench.space, BubbleType.WATCH)
    (id,) = bench.parts.standing._watches
    for data in (point(50, "far"), point(6, "near")):
        item = encode_item(Sighting(id, data.signed))
        bench.says(bench.neighbours[0], Match(NO_BUBBLE, (item,), False))
    assert [one.document.name for one in bench.told(Seen)] == ["near"]
    assert bench.rejected == ["bad-sighting"]


def test_data_and_questions_are_of_the_types_of_the_space() -> None:
    bench = SpaceBench()
    bench.find()
    assert bench.cast.kind == kind_of(bench.space, BubbleType.QUERY)
    bench.host.command(bench.machine, PutDocument("a", b"5", "managed", 3600 * S_NS, "line"), "p")
    bench.run()
    assert {cast.kind for _, cast in bench.casts()} == {kind_of(bench.space, BubbleType.DOCUMENT)}
    rates = bench.parts.traffic.beat(S_NS)
    assert rates[COLUMNS.data] > 0 < rates[COLUMNS.query]
    documents = Columns("")
    assert rates[documents.data] == rates[documents.query] == 0


def test_one_name_in_two_spaces_is_two_things() -> None:
    bench = SpaceBench()
    for content, kind in ((b"5", "line"), ({"v": 1}, "document")):
        command = PutDocument("a", content, "managed", 3600 * S_NS, kind)
        bench.host.command(bench.machine, command, "p")
        bench.run()
    assert len(bench.parts.publications) == 2


def test_what_is_not_open_cannot_be_used() -> None:
    bench = SpaceBench(opened=False)
    for command in (
        PutDocument("a", b"5", "managed", S_NS, "line"),
        FindDocuments(b"5", 0.9, None, S_NS, space="line"),
        WatchDocuments(b"5", "line"),
    ):
        with pytest.raises(UsageError, match="no space 'line' on this node: open it first"):
            bench.host.command(bench.machine, command, "t")


def test_a_client_has_no_spaces() -> None:
    bench = SpaceBench(opened=False)
    client = SearchNode(OWNER.key, (), bench.machine._rng, client=True)
    with pytest.raises(UsageError, match="a client has no part in measurements"):
        client.parts.add_space(line())


# Sizes


def test_before_it_is_measured_everybody_is_asked_and_no_more_is_claimed_than_that() -> None:
    bench = SpaceBench()
    bubbles = bench.parts.bubbles
    assert bubbles.data_size("line") == pytest.approx(
        bubble_size(certainty_of(0.99), 1.0, TOTALS, 1 / TOTALS.nodes), abs=1
    )
    bench.parts.measurement.known = Totals(1e6, 6e6, 36e6)
    assert bubbles.data_size("line") == 4096
    asked = bubbles.query_size(0.99, "line")
    assert confidence_of((asked * bubbles.meetings("line")) ** 0.5) < 0.05


@pytest.mark.parametrize("members", [1000.0, 500.0, 100.0])
def test_bubbles_grow_where_few_have_the_space(members: float) -> None:
    bench = SpaceBench()
    bench.measured(members)
    bubbles = bench.parts.bubbles
    factor = (1000.0 / members) ** 0.5
    assert bubbles.data_size("line") == pytest.approx(factor * bubbles.data_size(), rel=0.02)
    asked = bubbles.query_size(0.99, "line")
    assert asked == pytest.approx(factor * bubbles.query_size(0.99), rel=0.02)
    # Of those both reach, so many have the space: enough, whatever the share.
    met = asked * bubbles.data_size("line") / 1500.0 * members / 1000.0
    assert confidence_of(met**0.5) == pytest.approx(0.99, abs=0.001)


def test_a_space_is_balanced_by_its_own_traffic() -> None:
    bench = SpaceBench()
    bench.measured(1000.0, data=100.0, query=400.0)
    bubbles = bench.parts.bubbles
    assert bubbles.data_size("line") == pytest.approx(2 * bubbles.data_size(), abs=2)


def test_the_stated_confidence_is_that_of_the_thinnest_data() -> None:
    bench = SpaceBench()
    bench.measured(1000.0)
    usual = bench.parts.bubbles.query_size(0.99, "line")
    bench.parts.measurement.known = Totals(4000.0, 24000.0, 144000.0)
    bench.find()
    assert bench.cast.total == pytest.approx(4 * usual, rel=0.03), "twice for the network of now"
    bench.wait(5)
    (over,) = bench.told(SearchOver)
    assert over.confidence == pytest.approx(0.99, abs=0.001)
