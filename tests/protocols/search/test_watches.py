"""Standing queries: who is told of what, once, and that strangers cannot fill a node with them."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shoal.base.errors import UsageError
from shoal.base.units import MS_NS, S_NS
from shoal.identity import PrivateKey
from shoal.protocols.search.payloads import Watch
from shoal.protocols.search.queries.document_view import document_of
from shoal.protocols.search.queries.matching import matches
from shoal.protocols.search.queries.parser import parse
from shoal.protocols.search.signed_records import AddressRecord, sign_address
from shoal.protocols.search.watches.stored_watches import (
    CANCELLED_NS,
    CHANGED,
    EXPIRED,
    FULL,
    OWNER_WATCHES_MAX,
    REPORTED_MAX,
    UNREADABLE,
    WATCH_NS_MAX,
    Watches,
)
from shoal.protocols.search.watches.watch_filter import WatchFilter
from tests.support.documents import ALICE, BOB, EVE, SPACES, a_document

HALF_HOUR_NS = 1800 * S_NS


def record(key: PrivateKey, made_ns: int = 0) -> AddressRecord:
    return sign_address(key, (f"ws://10.0.0.1:{made_ns // S_NS + 1}",), made_ns)


ALICES, BOBS, EVES = record(ALICE), record(BOB), record(EVE)


def watch(number: int = 1, text: str = "air", expires_ns: int = HALF_HOUR_NS) -> Watch:
    return Watch(number.to_bytes(8), text, expires_ns // MS_NS)


def cancelled(number: int = 1, text: str = "air") -> Watch:
    return watch(number, text, 0)


def ids(found: list[tuple[AddressRecord, bytes]]) -> list[int]:
    return [int.from_bytes(id) for _, id in found]


def test_owners_hear_of_documents_that_match() -> None:
    watches = Watches(SPACES)
    assert watches.put(ALICES, watch(1, "air"), 0) == ""
    assert watches.put(BOBS, watch(1, "vehicle.speed:>25"), 0) == ""
    assert watches.put(BOBS, watch(2, "air -indoor"), 0) == ""
    event = a_document(content={"vehicle": {"speed": 30}}, kind="event", life="instant")
    assert watches.sightings(event, 0) == [(BOBS, (1).to_bytes(8))]
    assert watches.sightings(a_document(name="b"), 0) == [
        (ALICES, (1).to_bytes(8)),
        (BOBS, (2).to_bytes(8)),
    ]
    watches.check_invariants()


def test_a_version_is_reported_once() -> None:
    watches = Watches(SPACES)
    watches.put(ALICES, watch(), 0)
    assert ids(watches.sightings(a_document(version=1), 0)) == [1]
    assert ids(watches.sightings(a_document(version=1), 1)) == []
    assert ids(watches.sightings(a_document(version=2), 2)) == [1]
    # A query that came later has not heard of it.
    watches.put(BOBS, watch(2), 3)
    assert ids(watches.sightings(a_document(version=2), 4)) == [2]


def test_memory_of_reports_is_bounded() -> None:
    watches = Watches(SPACES)
    watches.put(ALICES, watch(), 0)
    documents = [a_document(version=version) for version in range(REPORTED_MAX + 1)]
    for document in documents:
        assert ids(watches.sightings(document, 0)) == [1]
    assert ids(watches.sightings(documents[1], 0)) == []
    assert ids(watches.sightings(documents[-1], 0)) == []
    assert ids(watches.sightings(documents[0], 0)) == [1]


def test_deletions_and_what_has_expired_are_no_news() -> None:
    watches = Watches(SPACES)
    watches.put(ALICES, watch(text="*"), 0)
    assert watches.sightings(a_document(deleted=True), 0) == []
    assert watches.sightings(a_document(expires_ns=5 * S_NS), 5 * S_NS) == []
    assert ids(watches.sightings(a_document(expires_ns=5 * S_NS), 4 * S_NS)) == [1]


def test_a_query_expires_unless_it_is_cast_again() -> None:
    watches = Watches(SPACES)
    watches.put(ALICES, watch(expires_ns=10 * S_NS), 0)
    watches.put(ALICES, watch(expires_ns=20 * S_NS), 5 * S_NS)
    watches.put(ALICES, watch(expires_ns=10 * S_NS), 6 * S_NS)  # an old copy was late
    assert ids(watches.sightings(a_document(version=1), 19 * S_NS)) == [1]
    assert ids(watches.sightings(a_document(version=2), 20 * S_NS)) == []
    assert len(watches) == 0
    assert watches.put(ALICES, watch(expires_ns=10 * S_NS), 20 * S_NS) == EXPIRED
    watches.put(ALICES, watch(expires_ns=10 * WATCH_NS_MAX), 0)
    assert ids(watches.sightings(a_document(expires_ns=2 * WATCH_NS_MAX), WATCH_NS_MAX)) == []
    watches.check_invariants()


def test_answers_go_where_the_owner_was_last() -> None:
    watches = Watches(SPACES)
    later = record(ALICE, 5 * S_NS)
    watches.put(ALICES, watch(), 0)
    watches.put(later, watch(), 5 * S_NS)
    watches.put(ALICES, watch(), 6 * S_NS)
    assert [owner for owner, _ in watches.sightings(a_document(), 7 * S_NS)] == [later]


def test_a_cancelled_query_does_not_come_back() -> None:
    watches = Watches(SPACES)
    watches.put(ALICES, watch(), 0)
    assert watches.put(ALICES, cancelled(), 1) == ""
    assert watches.put(ALICES, cancelled(), 2) == ""
    assert watches.put(ALICES, watch(), 3) == EXPIRED
    assert watches.sightings(a_document(), 4) == []
    watches.check_invariants()
    # The end may arrive before the beginning.
    assert watches.put(BOBS, cancelled(), 0) == ""
    assert watches.put(BOBS, watch(), 1) == EXPIRED
    assert watches.sightings(a_document(), CANCELLED_NS - 1) == []
    assert len(watches) == 2
    watches.expire(max(CANCELLED_NS, HALF_HOUR_NS))
    assert len(watches) == 0
    watches.check_invariants()


def test_nobody_cancels_for_another() -> None:
    watches = Watches(SPACES)
    watches.put(ALICES, watch(), 0)
    watches.put(EVES, cancelled(), 0)
    assert ids(watches.sightings(a_document(), 0)) == [1]


def test_an_id_is_for_one_query() -> None:
    watches = Watches(SPACES)
    watches.put(ALICES, watch(1, "air"), 0)
    assert watches.put(ALICES, watch(1, "water"), 0) == CHANGED
    assert watches.put(ALICES, watch(2, "air ("), 0) == UNREADABLE
    assert len(watches) == 1


def test_one_owner_has_so_many_at_most() -> None:
    watches = Watches(SPACES)
    refused = [watches.put(EVES, watch(number), 0) for number in range(OWNER_WATCHES_MAX + 5)]
    assert refused == [""] * OWNER_WATCHES_MAX + [FULL] * 5
    assert watches.put(ALICES, watch(), 0) == ""
    watches.check_invariants()


def test_who_has_most_makes_room() -> None:
    watches = Watches(SPACES, watches_max=10)
    for number in range(3):
        watches.put(ALICES, watch(number), 0)
    for number in range(20):
        watches.put(EVES, watch(100 + number, expires_ns=HALF_HOUR_NS - number * S_NS), 0)
    for number in range(3):
        assert watches.put(BOBS, watch(200 + number), 0) == ""
    # Eve's last three expired soonest.
    assert ids(watches.sightings(a_document(), 0)) == [0, 1, 2, 100, 101, 102, 103, 200, 201, 202]
    assert watches.put(BOBS, watch(203), 0) == FULL
    watches.check_invariants()


class WatchesModel(RuleBasedStateMachine):
    """Against a list that is asked one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.watches = Watches(SPACES)
        self.model: dict[tuple[bytes, int], tuple[str, int]] = {}
        self.gone: dict[tuple[bytes, int], None] = {}
        self.reported: dict[tuple[bytes, int, bytes], None] = {}
        self.now_ns = 0

    @rule(
        owner=st.sampled_from([ALICES, BOBS]),
        number=st.integers(0, 9),
        seconds=st.integers(1, 60),
    )
    def put(self, owner: AddressRecord, number: int, seconds: int) -> None:
        text = ("air", "water", "*", "title:wa*", "n:>3", "n:2..5", "-air", "air OR n:9")[
            number % 8
        ]
        expires_ns = self.now_ns + seconds * S_NS
        name = (owner.node, number)
        refused = self.watches.put(owner, watch(number, text, expires_ns), self.now_ns)
        assert refused == (EXPIRED if name in self.gone else "")
        if not refused:
            known = self.model.get(name, (text, 0))
            self.model[name] = (text, max(expires_ns, known[1]))

    @rule(owner=st.sampled_from([ALICES, BOBS]), number=st.integers(0, 9))
    def cancel(self, owner: AddressRecord, number: int) -> None:
        assert self.watches.put(owner, cancelled(number), self.now_ns) == ""
        self.model.pop((owner.node, number), None)
        self.gone[owner.node, number] = None

    @rule(seconds=st.integers(1, 20))
    def wait(self, seconds: int) -> None:
        self.now_ns += seconds * S_NS
        past = [name for name, (_, expires_ns) in self.model.items() if expires_ns <= self.now_ns]
        for name in past:
            del self.model[name]
            self.reported = {key: None for key in self.reported if key[:2] != name}

    @rule(
        version=st.integers(1, 3),
        title=st.sampled_from(["air", "water", "air and water", ""]),
        number=st.integers(0, 9),
    )
    def see(self, version: int, title: str, number: int) -> None:
        document = a_document(content={"title": title, "n": number}, version=version)
        view = document_of(document.kind, document.value)
        expected = [
            (node, id)
            for (node, id), (text, _) in self.model.items()
            if matches(parse(text), view) and (node, id, document.digest) not in self.reported
        ]
        for node, id in expected:
            self.reported[node, id, document.digest] = None
        found = self.watches.sightings(document, self.now_ns)
        assert sorted((owner.node, int.from_bytes(id)) for owner, id in found) == sorted(expected)

    @invariant()
    def agree(self) -> None:
        self.watches.check_invariants()


TestWatchesModel = WatchesModel.TestCase
TestWatchesModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


WORDS = ["air", "aird", "airy", "water", "wa", "w", "3"]
terms = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from(WORDS).map(lambda word: f"{word}*"),
    st.sampled_from(WORDS).map(lambda word: f"t:{word}"),
    st.sampled_from(WORDS).map(lambda word: f"t:{word}*"),
    st.tuples(st.sampled_from(WORDS), st.sampled_from(WORDS)).map(
        lambda two: '"{} {}"'.format(*two)
    ),
    st.tuples(
        st.sampled_from("nm"), st.sampled_from(["<", "<=", ">", ">=", "="]), st.integers(-3, 9)
    ).map(lambda term: "{}:{}{}".format(*term)),
    st.tuples(st.sampled_from("nm"), st.floats(-9, 9), st.floats(0, 9) | st.just(1e308)).map(
        lambda term: f"{term[0]}:{term[1]}..{term[1] + term[2]}"
    ),
    st.just("n:-1.5e308..1.5e308"),
    st.sampled_from(["kind:event", "*", "flag:true"]),
)


def is_within_bounds(text: str) -> bool:
    """Deep nesting, for one, is refused."""
    try:
        parse(text)
    except UsageError:
        return False
    return True


queries = st.recursive(
    terms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({' '.join(parts)})"),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({' OR '.join(parts)})"),
        inner.map(lambda part: part if part.startswith("-") else f"-{part}"),
    ),
    max_leaves=5,
).filter(is_within_bounds)
contents: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "t": st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join),
        "u": st.lists(st.sampled_from(WORDS), max_size=4),
        "n": st.integers(-3, 9) | st.floats(-9, 9) | st.lists(st.integers(-3, 9), max_size=3),
        "m": st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.booleans(),
    },
)


@settings(deadline=None)
@given(st.lists(queries, max_size=20), st.lists(contents, max_size=5), st.randoms())
def test_the_filter_leaves_out_no_query_that_matches(
    texts: list[str], said: list[dict[str, Any]], rng: Random
) -> None:
    parsed = dict(enumerate(map(parse, texts), 1))
    filter = WatchFilter()
    for number, query in parsed.items():
        filter.add(number, query)
    views = [document_of(rng.choice(["event", "document"]), content) for content in said]
    order = list(parsed)
    rng.shuffle(order)
    for gone in [None, *order]:
        if gone is not None:
            filter.remove(gone)
            del parsed[gone]
        for view in views:
            candidates = filter.candidates(view)
            assert candidates == sorted(set(candidates) & parsed.keys())
            matching = [number for number, query in parsed.items() if matches(query, view)]
            assert set(matching) <= set(candidates)
    left = {name: value for name, value in vars(filter).items() if name != "_sample"}
    assert not any(left.values()), left


def test_ranges_hold_their_ends() -> None:
    filter = WatchFilter()
    for number, text in enumerate(["n:<=5", "n:>=5", "n:=5", "n:5..6", "n:4..5", "n:4.9..5.1"]):
        filter.add(number, parse(text))
    assert filter.candidates(document_of("event", {"n": 5})) == [0, 1, 2, 3, 4, 5]


def test_ten_thousand_queries_are_not_asked_one_by_one() -> None:
    rng = Random(1)
    filter = WatchFilter()
    for number in range(1, 10_001):
        low = rng.uniform(0, 1000)
        filter.add(
            number,
            parse(
                rng.choice(
                    [
                        f"kind:event place{rng.randrange(1000)}",
                        f"kind:event vehicle.line:{rng.randrange(1000)} vehicle.speed:>25",
                        f"pm25:>{990 + rng.random() * 10} kind:event",
                        f"pm25:{low}..{low + rng.random()}",
                        f'"place{rng.randrange(1000)} air" -indoor',
                        f"title:place{rng.randrange(1000)}* OR id:{rng.randrange(10**6)}",
                    ]
                )
            ),
        )
    counts = []
    for number in range(50):
        content = {
            "title": f"air in place{rng.randrange(1000)}",
            "pm25": rng.uniform(0, 1000),
            "vehicle": {"line": rng.randrange(1000), "speed": 30},
            "id": number,
        }
        counts.append(len(filter.candidates(document_of("event", content))))
    assert sum(counts) / len(counts) < 100


def test_queries_wait_for_what_is_rare_among_the_documents_that_came() -> None:
    filter = WatchFilter()
    query = parse("city:helsinki line:hsl road")
    view = document_of("event", {"city": "helsinki", "line": "hsl"})
    rare = document_of("event", {"city": "helsinki", "line": "hsl", "title": "road works"})
    filter.add(1, query)
    for _ in range(16):
        filter.candidates(view)
    filter.remove(1)
    filter.add(1, query)
    assert filter.candidates(view) == []
    assert filter.candidates(rare) == [1]
