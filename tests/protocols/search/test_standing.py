"""Standing queries of applications: left, renewed, taken back, and told once."""

from __future__ import annotations

from random import Random

import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import Contact
from shoal.base.units import MS_NS, S_NS
from shoal.kernel.fake_host import FakeHost
from shoal.protocols.search.commands import (
    Found,
    SearchOver,
    SearchWidened,
    Seen,
    Unwatch,
    WatchDocuments,
)
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.documents.document import Document
from shoal.protocols.search.machine import SearchNode
from shoal.protocols.search.messages import Match, Totals
from shoal.protocols.search.payloads import (
    BubbleType,
    Hit,
    Search,
    Sighting,
    Watch,
    decode_payload,
    encode_item,
)
from shoal.protocols.search.rendezvous import NO_BUBBLE
from shoal.protocols.search.watches.stored_watches import OWNER_WATCHES_MAX
from tests.support.bubbles import TOTALS, BubbleBench
from tests.support.circle import ME, Peer
from tests.support.documents import a_document

STRANGER = Peer(60)


class WatchBench(BubbleBench):
    def watch(self, text: str = "air", token: object = "t") -> Watch:
        self.host.command(self.machine, WatchDocuments(text), token)
        self.run()
        (watch,) = self.cast_watches()
        return watch

    def cast_watches(self) -> list[Watch]:
        """Queries that were cast since this was asked last, each once for each bubble."""
        watches = {}
        for _, part in self.casts():
            payload = decode_payload(BubbleType(part.kind), part.payload)
            assert isinstance(payload, Watch)
            watches[part.id] = payload
        return list(watches.values())

    def tells(self, watch: Watch, *documents: Document, valid: bool = True) -> None:
        items = tuple(encode_item(Sighting(watch.id, document.signed)) for document in documents)
        self.says(STRANGER, Match(NO_BUBBLE, items, False), valid=valid)

    @property
    def seen(self) -> list[tuple[str, object]]:
        return [(e.document.name, e.token) for e in self.host.notified if type(e) is Seen]


def test_it_is_left_with_others_and_renewed_at_half_time() -> None:
    bench = WatchBench(SearchConfig(watch_ns=100 * S_NS))
    watch = bench.watch()
    assert watch.text == "air"
    assert watch.expires_ms == (bench.host.time_ns + 100 * S_NS) // MS_NS
    bench.wait(45)
    assert bench.cast_watches() == []
    bench.wait(12)
    (again,) = bench.cast_watches()
    assert (again.id, again.text) == (watch.id, "air")
    assert again.expires_ms > watch.expires_ms


def test_the_end_is_cast_and_nothing_is_told_any_more() -> None:
    bench = WatchBench(SearchConfig(watch_ns=100 * S_NS))
    watch = bench.watch()
    bench.host.command(bench.machine, Unwatch(), "t")
    bench.run()
    assert bench.cast_watches() == [Watch(watch.id, "air", 0)]
    bench.tells(watch, a_document())
    bench.wait(120)
    assert bench.seen == []
    assert bench.cast_watches() == []
    assert len(bench.parts.standing) == 0
    bench.host.command(bench.machine, Unwatch(), "t")
    assert bench.cast_watches() == []


def test_each_version_is_told_once() -> None:
    bench = WatchBench()
    watch = bench.watch()
    one, two = a_document(), a_document(version=2)
    bench.tells(watch, one)
    bench.tells(watch, one, two, one)
    bench.tells(watch, two)
    assert bench.seen == [("a", "t"), ("a", "t")]


def test_each_query_is_told_by_itself() -> None:
    bench = WatchBench()
    first, second = bench.watch("air", 1), bench.watch("title:air", 2)
    for watch in (first, second, first):
        bench.tells(watch, a_document())
    assert bench.seen == [("a", 1), ("a", 2)]


def test_what_does_not_match_is_refused() -> None:
    bench = WatchBench()
    watch = bench.watch()
    bench.tells(watch, a_document(content={"title": "water"}))
    bench.tells(watch, a_document(deleted=True))
    bench.says(STRANGER, Match(NO_BUBBLE, (encode_item(Sighting(watch.id, b"?")), b"?"), False))
    assert bench.seen == []
    assert bench.rejected == ["bad-sighting"] * 4


def test_what_nobody_signed_or_nobody_waits_for_is_not_told() -> None:
    bench = WatchBench()
    watch = bench.watch()
    bench.tells(watch, a_document(), valid=False)
    bench.tells(Watch(bytes(8), "air", 1), a_document())
    bench.host.advance(2 * S_NS)
    bench.tells(watch, a_document(expires_ns=S_NS))
    assert bench.seen == []


def test_no_more_checks_than_can_be_done() -> None:
    bench = WatchBench(SearchConfig(checks_max=1))
    watch = bench.watch()
    bench.tells(watch, a_document(), a_document(name="b"), a_document(name="c"))
    assert bench.seen == [("a", "t")]
    assert bench.rejected == ["busy"]


def test_what_is_remembered_is_bounded() -> None:
    bench = WatchBench(SearchConfig(sightings_max=2))
    watch = bench.watch()
    for name in ("a", "b", "c"):
        bench.tells(watch, a_document(name=name))
    bench.tells(watch, a_document(name="c"))
    assert len(bench.seen) == 3
    bench.tells(watch, a_document(name="a"))  # forgotten
    assert len(bench.seen) == 4


def test_as_many_as_others_keep() -> None:
    bench = WatchBench()
    for number in range(OWNER_WATCHES_MAX):
        bench.watch(token=number)
    with pytest.raises(UsageError, match="standing queries are the most"):
        bench.watch(token="more")


def test_what_is_wrong_is_said_and_nothing_is_left() -> None:
    bench = WatchBench()
    with pytest.raises(UsageError):
        bench.watch("(air")
    bench.parts.measurement.known = None
    with pytest.raises(UsageError, match="not joined"):
        bench.watch()
    assert len(bench.parts.standing) == 0


def test_who_cannot_be_called_does_not_wait_for_calls() -> None:
    client = SearchNode(ME.key, [Contact(STRANGER.node)], Random(1), client=True)
    host = FakeHost(ME.node, [client])
    host.start()
    client.parts.measurement.known = TOTALS
    with pytest.raises(UsageError, match="let it listen"):
        host.command(client, WatchDocuments("air"), "t")


def test_it_is_left_with_more_when_the_network_has_grown() -> None:
    bench = WatchBench()
    watch = bench.watch()
    parts = bench.machine.parts
    known = parts.measurement.known
    assert known is not None
    parts.measurement.known = Totals(known.nodes * 1.1, known.degrees * 1.1, known.squares * 1.1)
    bench.wait(6)
    assert bench.cast_watches() == [], "by a twentieth more nodes: not worth it"
    parts.measurement.known = Totals(known.nodes * 2, known.degrees * 2, known.squares * 2)
    bench.wait(6)
    (again,) = bench.cast_watches()
    assert again.id == watch.id
    bench.wait(20)
    assert bench.cast_watches() == []


# Nodes that have it are lost


def cast_kinds(bench: WatchBench) -> list[type]:
    """What was cast since this was asked last, each bubble once."""
    found = {}
    for _, part in bench.casts():
        found[part.id] = type(decode_payload(BubbleType(part.kind), part.payload))
    return list(found.values())


def gaps(bench: WatchBench) -> list[bool]:
    return [event.gap_before for event in bench.host.notified if type(event) is Seen]


def test_after_a_neighbour_was_lost_it_is_left_anew_and_caught_up_with() -> None:
    bench = WatchBench()
    watch = bench.watch()
    bench.tells(watch, a_document(name="one", content={"title": "air one"}))
    bench.host.link_closed(bench.neighbours[0].node, "lost")
    bench.tells(
        watch,
        a_document(name="two", content={"title": "air two"}),
        a_document(name="three", content={"title": "air three"}),
    )
    assert gaps(bench) == [False, True, False]
    bench.sent()
    bench.wait(5)
    assert cast_kinds(bench) == [], "others may be lost with it"
    bench.wait(11)
    assert cast_kinds(bench) == [Watch, Search], "first it is left, then what is there is asked for"
    bench.tells(watch, a_document(name="four", content={"title": "air four"}))
    bench.tells(watch, a_document(name="five", content={"title": "air five"}))
    assert gaps(bench)[3:] == [True, False], "some passed by before it was left anew"
    bench.wait(30)
    assert cast_kinds(bench) == []
    assert not [e for e in bench.host.notified if type(e) in (Found, SearchOver, SearchWidened)]


def test_what_is_found_again_is_told_once_if_it_is_new() -> None:
    bench = WatchBench()
    bench.wait(20)
    watch = bench.watch()
    began_ms = bench.host.time_ns // MS_NS
    known = a_document(name="known", content={"title": "air known"}, version=began_ms + 10)
    bench.tells(watch, known)
    bench.host.link_closed(bench.neighbours[0].node, "lost")
    bench.wait(16)
    (question,) = [part for _, part in bench.casts() if part.kind == BubbleType.QUERY][:1]
    missed = a_document(name="missed", content={"title": "air missed"}, version=began_ms + 20)
    old = a_document(name="old", content={"title": "air old"}, version=began_ms - 20)
    other = a_document(name="other", content={"title": "water"}, version=began_ms + 30)
    hits = tuple(encode_item(Hit(one.signed, 1.0)) for one in (known, missed, old, other))
    bench.says(bench.neighbours[1], Match(question.id, hits, True))
    bench.tells(watch, missed)
    assert [name for name, _ in bench.seen] == ["known", "missed"]


def test_a_network_that_became_smaller_has_lost_queries_as_well() -> None:
    bench = WatchBench()
    watch = bench.watch()
    known = bench.machine.parts.measurement.known
    assert known is not None
    small = Totals(known.nodes * 0.8, known.degrees * 0.8, known.squares * 0.8)
    bench.machine.parts.measurement.known = small
    bench.wait(6)
    bench.tells(watch, a_document(name="one", content={"title": "air one"}))
    assert gaps(bench) == [True]
    bench.wait(16)
    assert Watch in cast_kinds(bench)


@pytest.mark.parametrize("step_s", [90, -90])
def test_after_a_wrong_clock_it_is_left_anew_and_the_next_one_says_that_some_are_missing(
    step_s: int,
) -> None:
    """While it was wrong, renewals were refused by all, and documents taken for expired."""
    bench = WatchBench(SearchConfig(watch_ns=240 * S_NS))
    watch = bench.watch()
    bench.wait(110)
    bench.host.wall_stepped(step_s * S_NS, bench.host.time_ns)
    bench.wait(12)
    bench.host.wall_stepped(0, bench.host.time_ns)
    wrong = bench.cast_watches()
    assert wrong, "at half of its time"
    bench.wait(90)
    kinds = [(part.kind, part.payload) for _, part in bench.casts()]
    said = [decode_payload(BubbleType(kind), payload) for kind, payload in kinds]
    renewed = [one for one in said if isinstance(one, Watch)]
    now_ms = bench.host.time_ns // MS_NS
    assert [one for one in renewed if 0 < one.expires_ms - now_ms <= 240_000], "well in time"
    bench.tells(watch, a_document(name="one", content={"title": "air one"}))
    assert gaps(bench) == [True]
