"""What a node keeps: the newest version, until it expires, and for each owner a fair share."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shoal.base.units import S_NS
from shoal.identity import PrivateKey
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.search.documents.document import LIFE_NS_MAX, Document, document_id
from shoal.protocols.search.documents.document_store import (
    EVICTIONS_MAX,
    MANAGED_LEASE_NS,
    MANAGED_REFRESH_NS,
    Holdings,
    Verdict,
    footprint,
)
from shoal.protocols.search.queries.parser import parse
from tests.support.documents import ALICE, BOB, EVE, LIFE_NS, SPACES, a_document

SIZE = footprint(a_document(name="000"))
ROOM = 10
AIR = parse("air")


def holdings(room: int = ROOM) -> Holdings:
    return Holdings(SPACES, others_bytes_max=room * SIZE, own_bytes_max=2 * SIZE)


def put(held: Holdings, owner: PrivateKey, number: int, expires_ns: int = LIFE_NS) -> Verdict:
    return held.put(a_document(owner, f"{number:03}", expires_ns=expires_ns), 0)


def kept(held: Holdings, owner: PrivateKey, now_ns: int = 0) -> int:
    found = held.search(AIR, 1000, now_ns)
    return sum(document.owner == owner.address for document, _ in found)


def test_a_document_is_kept_and_found_until_it_expires() -> None:
    held = holdings()
    document = a_document()
    assert held.put(document, 0) is Verdict.NEW
    assert held.put(document, 1) is Verdict.AGAIN
    assert held.get(document.id, LIFE_NS - 1) == document
    ((found, score),) = held.search(AIR, 9, LIFE_NS - 1)
    assert found == document
    assert score > 0
    assert held.search(parse("water"), 9, 0) == []
    assert held.get(document.id, LIFE_NS) is None
    assert held.search(AIR, 9, LIFE_NS) == []
    assert len(held) == held.used == 0
    assert held.put(document, LIFE_NS) is Verdict.EXPIRED
    held.check_invariants()


@pytest.mark.parametrize("step_s", [600, -600, 3600, 30 * 86_400, -30 * 86_400])
def test_a_wrong_reading_of_the_clock_ends_nothing_and_refuses_while_it_lasts(step_s: int) -> None:
    wall = WallClock()
    held = Holdings(SPACES, wall=wall)
    document = a_document()
    assert held.put(document, 0) is Verdict.NEW
    wall.set(step_s * S_NS, 1)
    held.expire(10 * S_NS)
    assert held.get(document.id, 10 * S_NS) == document
    if step_s * S_NS > LIFE_NS:
        assert held.put(a_document(name="b"), 10 * S_NS) is Verdict.EXPIRED
    wall.set(0, 10 * S_NS)
    assert held.put(a_document(name="b"), 11 * S_NS) in (Verdict.NEW, Verdict.AGAIN)
    assert held.search(AIR, 9, LIFE_NS - 1)
    assert held.get(document.id, LIFE_NS) is None
    held.check_invariants()


def test_the_newest_version_is_kept() -> None:
    held = holdings()
    first, second = a_document(version=1), a_document(version=2, content={"title": "water"})
    assert held.put(first, 0) is Verdict.NEW
    assert held.put(second, 0) is Verdict.NEWER
    assert held.put(first, 0) is Verdict.OLDER
    assert held.get(first.id, 0) == second
    assert held.search(AIR, 9, 0) == []
    assert held.equivocations == 0
    held.check_invariants()


def test_a_deletion_is_kept_but_not_found() -> None:
    held = holdings()
    held.put(a_document(), 0)
    deletion = a_document(version=2, deleted=True)
    assert held.put(deletion, 0) is Verdict.NEWER
    assert held.search(parse("*"), 9, 0) == []
    assert held.put(a_document(), 0) is Verdict.OLDER
    assert held.get(deletion.id, 0) == deletion
    held.check_invariants()


def test_two_documents_as_one_version_are_counted_and_all_nodes_keep_the_same() -> None:
    twins = [a_document(content={"title": f"air {number}"}) for number in range(2)]
    larger = max(twins, key=lambda document: document.digest)
    for order in (twins, twins[::-1]):
        held = holdings()
        for document in order:
            held.put(document, 0)
        assert held.get(larger.id, 0) == larger
        assert held.equivocations == 1


def test_events_pass_by() -> None:
    held = holdings()
    event = a_document(life="instant", expires_ns=60 * S_NS, kind="event")
    assert held.put(event, 0) is Verdict.PASSING
    assert len(held) == 0


def test_no_document_lives_longer_than_its_life_may_be() -> None:
    held = holdings()
    for number, (life, life_ns) in enumerate(LIFE_NS_MAX.items()):
        most = a_document(name=f"{number}", life=life, expires_ns=life_ns)
        more = a_document(name=f"{number}", life=life, expires_ns=life_ns + S_NS)
        assert held.put(more, 0) is Verdict.LASTING
        assert held.put(most, 0) in (Verdict.NEW, Verdict.PASSING)


def test_a_managed_document_is_kept_while_its_owner_casts_it_again() -> None:
    held = holdings()
    document = a_document(life="managed", expires_ns=24 * LIFE_NS)
    held.put(document, 0)
    for now_ns in range(0, 10 * MANAGED_REFRESH_NS, MANAGED_REFRESH_NS):
        assert held.put(document, now_ns) is (Verdict.AGAIN)
        held.check_invariants()
    end_ns = 9 * MANAGED_REFRESH_NS + MANAGED_LEASE_NS
    assert held.get(document.id, end_ns - 1) is not None
    assert held.get(document.id, end_ns) is None
    # Its deletion needs nobody to look after it.
    held.put(a_document(version=2, life="managed", expires_ns=24 * LIFE_NS, deleted=True), end_ns)
    assert held.put(document, 23 * LIFE_NS) is Verdict.OLDER


def test_spam_evicts_its_own_kind_only() -> None:
    held = holdings()
    assert [put(held, ALICE, number) for number in range(3)] == [Verdict.NEW] * 3
    verdicts = [put(held, EVE, number) for number in range(50)]
    assert verdicts == [Verdict.NEW] * 7 + [Verdict.FULL] * 43
    assert kept(held, ALICE) == 3
    # Whoever comes now gets its place from the one with most.
    assert [put(held, BOB, number) for number in range(3)] == [Verdict.NEW] * 3
    assert (kept(held, ALICE), kept(held, BOB), kept(held, EVE)) == (3, 3, 4)
    held.check_invariants()


def test_who_has_most_loses_what_expires_soonest() -> None:
    held = holdings()
    for number in range(ROOM):
        put(held, EVE, number, expires_ns=LIFE_NS + (number * 7 % ROOM) * S_NS)
    put(held, ALICE, 0)
    put(held, BOB, 0)
    gone = [n for n in range(ROOM) if held.get(document_id(EVE.address, f"{n:03}"), 0) is None]
    assert gone == [number for number in range(ROOM) if number * 7 % ROOM < 2]


def test_a_document_that_finds_no_room_costs_nobody_anything() -> None:
    held = holdings()
    for number in range(ROOM):
        put(held, (ALICE, BOB)[number % 2], number)
    large = a_document(EVE, "large", {"title": "air " + "x" * 6 * SIZE})
    too_large = a_document(EVE, "large", {"title": "air " + "x" * 12 * SIZE})
    assert held.put(large, 0) is Verdict.FULL
    assert held.put(too_large, 0) is Verdict.FULL
    assert (kept(held, ALICE), kept(held, BOB)) == (5, 5)
    held.check_invariants()


def test_a_version_that_finds_no_room_leaves_the_older_one() -> None:
    held = holdings()
    for number in range(ROOM):
        put(held, ALICE, number)
    larger = a_document(ALICE, "000", {"title": "air " + "x" * 2 * SIZE}, version=2)
    assert held.put(larger, 0) is Verdict.FULL
    assert kept(held, ALICE) == ROOM
    held.check_invariants()


def test_one_document_evicts_so_many_at_most() -> None:
    room = 4 * EVICTIONS_MAX
    held = holdings(room)
    for number in range(room):
        assert put(held, EVE, number) is Verdict.NEW
    too_large, large = (
        a_document(ALICE, "large", {"title": " ".join(f"w{number}" for number in range(words))})
        for words in (8 * EVICTIONS_MAX, 5 * EVICTIONS_MAX)
    )
    assert footprint(large) < EVICTIONS_MAX * SIZE < footprint(too_large) < room * SIZE // 2
    assert held.put(too_large, 0) is Verdict.FULL
    assert kept(held, EVE) == room
    assert held.put(large, 0) is Verdict.NEW
    assert room - EVICTIONS_MAX <= kept(held, EVE) < room
    held.check_invariants()


def test_documents_of_our_own_have_a_shelf_that_nobody_fills() -> None:
    held = holdings()
    own = a_document(BOB, "00", kind="stream")
    for number in range(50):
        put(held, EVE, number)
    assert held.put_own(own, 0) is Verdict.NEW
    assert held.put_own(a_document(BOB, "01"), 0) is Verdict.NEW
    assert held.put_own(a_document(BOB, "02"), 0) is Verdict.FULL
    assert [document for document, _ in held.search(parse("kind:stream"), 9, 0)] == [own]
    held.check_invariants()
    assert held.search(parse("kind:stream"), 9, LIFE_NS) == []


def test_what_is_on_both_shelves_is_found_once_in_its_newest_version() -> None:
    held = holdings()
    old, new = a_document(version=1), a_document(version=2)
    held.put_own(old, 0)
    held.put(old, 0)
    assert [document for document, _ in held.search(AIR, 9, 0)] == [old]
    held.put(new, 0)
    assert [document for document, _ in held.search(AIR, 9, 0)] == [new]
    assert held.get(old.id, 0) == new


def test_the_best_of_both_shelves_come_first() -> None:
    held = holdings()
    held.put_own(a_document(ALICE, "own", {"title": "air " + "and more " * 9}), 0)
    held.put_own(a_document(ALICE, "2", {"title": "water"}), 0)
    held.put(a_document(BOB, "short", {"title": "air"}), 0)
    held.put(a_document(BOB, "3", {"title": "water"}), 0)
    scores = [score for _, score in held.search(AIR, 9, 0)]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    assert len(held.search(AIR, 1, 0)) == 1


class HoldingsModel(RuleBasedStateMachine):
    """With room for all, holdings are a dictionary of newest versions."""

    def __init__(self) -> None:
        super().__init__()
        self.held = holdings(1000)
        self.model: dict[bytes, Document] = {}
        self.now_ns = 0

    @rule(
        owner=st.sampled_from([ALICE, BOB]),
        name=st.sampled_from("abc"),
        version=st.integers(1, 4),
        word=st.sampled_from(["air", "water", None]),
        seconds=st.integers(0, 20),
    )
    def put(
        self, owner: PrivateKey, name: str, version: int, word: str | None, seconds: int
    ) -> None:
        document = a_document(
            owner,
            name,
            None if word is None else {"title": word},
            version=version,
            expires_ns=self.now_ns + seconds * S_NS,
            deleted=word is None,
        )
        verdict = self.held.put(document, self.now_ns)
        known = self.model.get(document.id)
        if seconds == 0:
            assert verdict is Verdict.EXPIRED
        elif known is None:
            assert verdict is Verdict.NEW
        elif known.rank == document.rank:
            assert verdict is Verdict.AGAIN
        else:
            newer = known.rank < document.rank
            assert verdict is (Verdict.NEWER if newer else Verdict.OLDER)
        if verdict in (Verdict.NEW, Verdict.NEWER):
            self.model[document.id] = document

    @rule(seconds=st.integers(1, 8))
    def wait(self, seconds: int) -> None:
        self.now_ns += seconds * S_NS
        self.model = {
            id: document for id, document in self.model.items() if document.expires_ns > self.now_ns
        }

    @invariant()
    def agree(self) -> None:
        for owner in (ALICE, BOB):
            for name in "abc":
                id = document_id(owner.address, name)
                assert self.held.get(id, self.now_ns) == self.model.get(id)
        for word in ("air", "water"):
            found = self.held.search(parse(word), 100, self.now_ns)
            assert {document.id for document, _ in found} == {
                id for id, document in self.model.items() if document.value.get("title") == word
            }
        self.held.check_invariants()


class FullHoldings(RuleBasedStateMachine):
    """Whatever comes, there is never too much, and nobody is evicted for who has more."""

    def __init__(self) -> None:
        super().__init__()
        self.held = holdings()
        self.now_ns = 0

    def shares(self) -> dict[bytes, int]:
        found = self.held.search(parse("*"), 1000, self.now_ns)
        shares: dict[bytes, int] = {}
        for document, _ in found:
            shares[document.owner] = shares.get(document.owner, 0) + footprint(document)
        return shares

    @rule(
        owner=st.sampled_from([ALICE, BOB, EVE]),
        number=st.integers(0, 99),
        version=st.integers(1, 9),
        words=st.integers(1, 12),
        seconds=st.integers(1, 100),
    )
    def put(self, owner: PrivateKey, number: int, version: int, words: int, seconds: int) -> None:
        before = self.shares()
        document = a_document(
            owner,
            f"{number:03}",
            {"title": " ".join(f"w{word}" for word in range(words))},
            version=version,
            expires_ns=self.now_ns + seconds * S_NS,
        )
        verdict = self.held.put(document, self.now_ns)
        after = self.shares()
        for other, share in before.items():
            if other == owner.address:
                continue
            if verdict in (Verdict.NEW, Verdict.NEWER):
                assert after.get(other, 0) == share or share > after[owner.address]
            else:
                assert after[other] == share

    @rule(seconds=st.integers(1, 10))
    def wait(self, seconds: int) -> None:
        self.now_ns += seconds * S_NS

    @invariant()
    def agree(self) -> None:
        self.held.check_invariants()


FEW = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestHoldingsModel = HoldingsModel.TestCase
TestHoldingsModel.settings = FEW
TestFullHoldings = FullHoldings.TestCase
TestFullHoldings.settings = FEW
