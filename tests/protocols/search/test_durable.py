"""Durable documents outlive those who hold them: turns, counting, and a day of churn."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from math import ceil, exp, expm1, sqrt
from random import Random

import pytest

from shoal.base.units import MS_NS, S_NS
from shoal.protocols.search.documents.document import DOCUMENTS, LIFE_NS_MAX, Document
from shoal.protocols.search.documents.document_store import Holdings, Verdict
from shoal.protocols.search.documents.durable_documents import (
    ANSWERS_NS,
    CHURN_NS,
    OUTDATED_CASTS,
    PERIOD_NS,
    TURNS_MAX,
    Ask,
    Cast,
    Durable,
    Sizes,
)
from tests.support.documents import ALICE, SPACES, a_document
from tests.support.machines import peer_id

MINUTE_NS = 60 * S_NS
HOUR_NS = 60 * MINUTE_NS
SIZES = Sizes(nodes=1000.0, documents=78, queries=78)  # six answers, if there are enough
LATER_NS = 24 * HOUR_NS  # everybody's turn has come by then


def durable_document(version: int = 1, name: str = "a", *, deleted: bool = False) -> Document:
    return a_document(
        ALICE,
        name,
        version=version,
        life="durable",
        expires_ns=LIFE_NS_MAX["durable"] // MS_NS * MS_NS,
        deleted=deleted,
    )


class Holder:
    """What a node does with documents that it gets."""

    def __init__(self, sizes: Sizes = SIZES, seed: int = 1) -> None:
        self.holdings = Holdings(SPACES)
        self.durable = Durable(self.holdings, {DOCUMENTS: sizes}, Random(seed))

    def get(self, document: Document, now_ns: int) -> Verdict:
        verdict = self.holdings.put(document, now_ns)
        if verdict in (Verdict.NEW, Verdict.NEWER, Verdict.AGAIN):
            self.durable.heard(document, now_ns)
        elif verdict is Verdict.OLDER:
            self.durable.outdated(document.id, now_ns)
        return verdict


def asked(holder: Holder, document: Document) -> None:
    """Its turn has come."""
    holder.get(document, 0)
    assert holder.durable.due(LATER_NS) == [Ask(document)]
    assert holder.durable.due(LATER_NS + ANSWERS_NS - 1) == []


@pytest.mark.parametrize(("answers", "missing"), [*enumerate([77, 65, 52, 39, 26, 13, 1, 0, 0])])
def test_as_many_are_made_as_are_missing(answers: int, missing: int) -> None:
    holder, document = Holder(), durable_document()
    asked(holder, document)
    for number in range(answers):
        holder.durable.answered(document.id, document.digest, peer_id(number))
        holder.durable.answered(document.id, document.digest, peer_id(number))
    expected = [Cast(document, missing)] if missing else []
    assert holder.durable.due(LATER_NS + ANSWERS_NS) == expected
    assert holder.durable.due(LATER_NS + ANSWERS_NS) == []
    holder.durable.check_invariants()


def test_answers_for_other_versions_and_answers_too_late_do_not_count() -> None:
    holder, document = Holder(), durable_document()
    asked(holder, document)
    for number in range(9):
        holder.durable.answered(document.id, durable_document(2).digest, peer_id(number))
        holder.durable.answered(bytes(16), document.digest, peer_id(number))
    assert holder.durable.due(LATER_NS + ANSWERS_NS) == [Cast(document, 77)]
    for number in range(9):
        holder.durable.answered(document.id, document.digest, peer_id(number))
    end_ns = 2 * LATER_NS
    assert holder.durable.due(end_ns) == [Ask(document)]
    assert holder.durable.due(end_ns + ANSWERS_NS) == [Cast(document, 77)]


def test_memory_of_answers_is_bounded() -> None:
    holder, document = Holder(), durable_document()
    asked(holder, document)
    for number in range(10_000):
        holder.durable.answered(document.id, document.digest, peer_id(number))
    (entry,) = holder.durable._entries.values()
    assert entry.answers is not None
    assert len(entry.answers) <= 2 * SIZES.meetings + 1


def test_turns_come_at_the_stated_rate() -> None:
    """One holder's turn, not having heard for a: 1 - exp(-(B / P s) (e^(a/B) - 1))."""
    document, count = durable_document(), 2000
    turns = []
    for seed in range(count):
        durable = Durable(Holdings(SPACES), {DOCUMENTS: SIZES}, Random(seed))
        durable.heard(document, 0)
        (entry,) = durable._entries.values()
        turns.append(entry.due_ns)
    for after_ns in (10 * MINUTE_NS, HOUR_NS, 2 * HOUR_NS, 3 * HOUR_NS):
        hazard = CHURN_NS / (PERIOD_NS * SIZES.documents) * expm1(after_ns / CHURN_NS)
        expected = count * (1 - exp(-hazard))
        found = sum(turn <= after_ns for turn in turns)
        assert abs(found - expected) < 4 * sqrt(expected) + 1


def test_who_hears_of_a_document_waits_anew() -> None:
    holder, document = Holder(), durable_document()
    holder.get(document, 0)
    for now_ns in range(0, LATER_NS, MINUTE_NS):
        assert holder.get(document, now_ns) in (Verdict.NEW, Verdict.AGAIN)
        assert holder.durable.due(now_ns + S_NS) == []
    # But who has begun to count goes on.
    assert holder.durable.due(2 * LATER_NS) == [Ask(document)]
    holder.get(document, 2 * LATER_NS)
    assert holder.durable.due(2 * LATER_NS + ANSWERS_NS) == [Cast(document, 77)]


def test_documents_that_are_not_durable_are_left_alone() -> None:
    holder = Holder()
    holder.get(a_document(life="managed"), 0)
    assert len(holder.durable) == 0


def test_a_newer_version_takes_the_place_of_the_older_one() -> None:
    holder, first, second = Holder(), durable_document(1), durable_document(2)
    asked(holder, first)
    assert holder.get(second, LATER_NS) is Verdict.NEWER
    assert holder.durable.due(LATER_NS + ANSWERS_NS) == []
    assert holder.durable.due(2 * LATER_NS) == [Ask(second)]
    assert len(holder.durable) == 1


def test_a_deletion_is_kept_like_a_document() -> None:
    holder, deletion = Holder(), durable_document(2, deleted=True)
    holder.get(durable_document(1), 0)
    holder.get(deletion, 0)
    assert holder.durable.due(LATER_NS) == [Ask(deletion)]
    assert holder.durable.due(LATER_NS + ANSWERS_NS) == [Cast(deletion, 77)]


def test_what_has_expired_is_forgotten() -> None:
    holder, document = Holder(), durable_document()
    holder.get(document, 0)
    assert holder.durable.due(document.expires_ns) == []
    assert len(holder.durable) == 0
    holder.durable.check_invariants()


def test_documents_that_are_gone_take_no_memory_for_long() -> None:
    durable = Durable(Holdings(SPACES), {DOCUMENTS: SIZES}, Random(1))
    for number in range(500):
        durable.heard(durable_document(name=f"{number}"), 0)  # and evicted at once
        assert len(durable) <= 65
    durable.check_invariants()


def test_many_turns_at_once_are_taken_in_parts() -> None:
    holder = Holder()
    for number in range(2 * TURNS_MAX):
        holder.get(durable_document(name=f"{number}"), 0)
    assert len(holder.durable.due(LATER_NS)) == TURNS_MAX
    assert len(holder.durable.due(LATER_NS)) == TURNS_MAX
    holder.durable.check_invariants()


def test_an_older_version_is_answered_with_the_newer_one_by_some() -> None:
    old, new = durable_document(1), durable_document(2)
    holders = [Holder(seed=seed) for seed in range(600)]
    casts = 0
    for holder in holders:
        holder.get(new, 0)
        assert holder.get(old, S_NS) is Verdict.OLDER
        assert holder.holdings.get(old.id, S_NS) == new
        casts += holder.durable.due(S_NS) == [Cast(new, 78)]
    expected = len(holders) * OUTDATED_CASTS / SIZES.meetings
    assert abs(casts - expected) < 4 * sqrt(expected)


def test_nobody_is_made_to_cast_more_than_once_in_a_period() -> None:
    few = Sizes(nodes=1000.0, documents=10, queries=10)  # whoever meets it, casts
    holder, old, new = Holder(few), durable_document(1), durable_document(2)
    holder.get(new, 0)
    casts = []
    for second in range(PERIOD_NS // S_NS):
        holder.get(old, second * S_NS)
        casts += holder.durable.due(second * S_NS)
    assert casts == [Cast(new, 10)]
    holder.get(old, PERIOD_NS)
    assert holder.durable.due(PERIOD_NS) == [Cast(new, 10)]
    holder.durable.check_invariants()


class Network:
    """Nodes that stay for an hour on average, and bubbles that reach random ones of them."""

    def __init__(self, nodes: int, seed: int) -> None:
        self.rng = Random(seed)
        size = ceil(2 * sqrt(1.5 * nodes))  # c = 2, three locations each
        self.sizes = Sizes(float(nodes), size, size)
        self.nodes: dict[int, Holder] = {}  # those that have something
        self.count = nodes
        self.asks = self.copies = 0
        self._leaving = [(self._session_ns(), number) for number in range(nodes)]
        heapq.heapify(self._leaving)

    def _session_ns(self) -> int:
        return round(self.rng.expovariate(1 / HOUR_NS))

    def reached(self, size: int) -> Iterator[int]:
        return iter(self.rng.sample(range(self.count), size))

    def cast(self, document: Document, size: int, now_ns: int) -> None:
        self.copies += size
        for number in self.reached(size):
            if number not in self.nodes:
                self.nodes[number] = Holder(self.sizes, self.rng.getrandbits(64))
            self.nodes[number].get(document, now_ns)

    def ask(self, asking: Holder, document: Document, now_ns: int) -> None:
        """Those who have it say so; who has a newer one sends it."""
        self.asks += 1
        for number in self.reached(self.sizes.queries):
            other = self.nodes.get(number)
            if other is None or other is asking:
                continue
            held = other.holdings.get(document.id, now_ns)
            if held is None:
                continue
            if held.rank == document.rank:
                other.durable.heard(document, now_ns)
                asking.durable.answered(document.id, document.digest, peer_id(number))
            elif held.rank > document.rank:
                asking.get(held, now_ns)

    def step(self, now_ns: int) -> None:
        while self._leaving[0][0] <= now_ns:
            left_ns, number = self._leaving[0]
            self.nodes.pop(number, None)
            heapq.heapreplace(self._leaving, (left_ns + self._session_ns(), number))
        for holder in list(self.nodes.values()):
            for what in holder.durable.due(now_ns):
                if isinstance(what, Ask):
                    self.ask(holder, what.document, now_ns)
                else:
                    self.cast(what.document, what.size, now_ns)

    def holding(self, document: Document, now_ns: int) -> int:
        found = [holder.holdings.get(document.id, now_ns) for holder in self.nodes.values()]
        return sum(one is not None and one.rank == document.rank for one in found)


def test_a_document_outlives_a_day_of_churn() -> None:
    """Nobody who held it in the morning is there in the evening, and its owner never was."""
    network, document = Network(1000, seed=1), durable_document()
    network.cast(document, network.sizes.documents, 0)
    holding = []
    for now_ns in range(MINUTE_NS, 24 * HOUR_NS, MINUTE_NS):
        network.step(now_ns)
        holding.append(network.holding(document, now_ns))
    found = [1 - exp(-network.sizes.queries * count / network.count) for count in holding]
    size = network.sizes.documents
    assert min(holding) > size // 4
    assert 0.9 * size < sum(holding) / len(holding) < 2 * size
    assert max(holding) < 4 * size  # not all of a thousand
    assert sum(found) / len(found) > 0.98
    assert network.asks < 24 * 40
    assert network.copies < 24 * 3 * size
    for holder in network.nodes.values():
        holder.durable.check_invariants()


def test_a_newer_version_and_then_a_deletion_replace_all_that_was_before() -> None:
    network = Network(300, seed=2)
    versions = [durable_document(1), durable_document(2), durable_document(3, deleted=True)]
    now_ns = 0
    for version in versions:
        network.cast(version, network.sizes.documents, now_ns)
        for _ in range(6 * 60):
            now_ns += MINUTE_NS
            network.step(now_ns)
    first, second, deletion = (network.holding(version, now_ns) for version in versions)
    assert first == 0
    assert second <= deletion // 10
    assert deletion > network.sizes.documents // 3
