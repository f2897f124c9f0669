"""Bubbles of our own: sizes, headers, slices, and what others take of one origin."""

from __future__ import annotations

from math import ceil
from random import Random

import pytest

from shoal.base.containers import RateLimit
from shoal.base.errors import UsageError
from shoal.base.units import MS_NS, S_NS
from shoal.identity import verify_signed
from shoal.kernel.effects import Effect
from shoal.protocols.search.bubbles.bubble_relay import tokens_of
from shoal.protocols.search.bubbles.bubble_size import certainty_of, confidence_of, threshold
from shoal.protocols.search.bubbles.data_density import Spread
from shoal.protocols.search.bubbles.own_bubbles import Bubbles
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.documents.document import DOCUMENTS
from shoal.protocols.search.documents.document_store import MANAGED_LEASE_NS
from shoal.protocols.search.messages import BubbleCast, Totals
from shoal.protocols.search.payloads import BubbleType, Search, decode_payload
from shoal.protocols.search.spaces import Columns, DocumentSpace
from tests.support.bubbles import TOTALS
from tests.support.circle import Peer

ANN = Peer(1)
QUESTION = Search("air", 10)
SPACE = DocumentSpace()
COLUMNS = Columns(DOCUMENTS)


class Bench:
    def __init__(self, totals: Totals | None = TOTALS, config: SearchConfig | None = None) -> None:
        self.totals = totals
        self.cast: list[BubbleCast] = []
        self.bubbles = Bubbles(
            *(ANN.key, ANN.record, lambda: self.totals, self._send, Random(1)),
            config or SearchConfig(),
        )
        self.bubbles.spreads[DOCUMENTS] = Spread(COLUMNS)

    def _send(self, cast: BubbleCast, now_ns: int) -> list[Effect]:
        self.cast.append(cast)
        return []


@pytest.mark.parametrize("balance", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_data_and_questions_meet_with_the_wanted_probability(
    balance: float, confidence: float
) -> None:
    bubbles = Bench().bubbles
    bubbles.spreads[DOCUMENTS] = Spread(COLUMNS, balance, balance)
    asked = bubbles.query_size(confidence)
    assert confidence_of((asked * bubbles.meetings()) ** 0.5) >= confidence
    assert confidence_of(((asked - 1) * bubbles.meetings()) ** 0.5) < confidence
    reach = threshold(TOTALS)
    assert reach is not None
    assert asked * bubbles.data_size() / reach == pytest.approx(
        {0.5: 0.693, 0.9: 2.303, 0.99: 4.605}[confidence], rel=0.15
    )


def test_questions_are_larger_as_long_as_smaller_data_is_around() -> None:
    bubbles = Bench().bubbles
    usual = bubbles.query_size(0.99)
    bubbles.spreads[DOCUMENTS] = Spread(COLUMNS, 4.0, 0.25)
    assert bubbles.data_size() == pytest.approx(2 * usual, abs=2)
    assert bubbles.query_size(0.99) == pytest.approx(2 * usual, abs=2)


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_questions_are_made_for_data_of_a_network_of_another_size(factor: float) -> None:
    bench = Bench()
    bench.bubbles.beat({COLUMNS.data: 5.0, COLUMNS.query: 5.0}, 0)
    before = bench.bubbles.query_size(0.99)
    bench.totals = Totals(factor * 1000.0, factor * 6000.0, factor * 36000.0)
    # A crash leaves the data as dense as it was; growth has it lie thinner.
    assert bench.bubbles.query_size(0.99) == pytest.approx(before * max(factor, 1.0), rel=0.02)
    bench.bubbles.beat({COLUMNS.data: 5.0, COLUMNS.query: 5.0}, MANAGED_LEASE_NS)
    assert bench.bubbles.query_size(0.99) == pytest.approx(before * factor**0.5, rel=0.03)


def test_where_nobody_has_put_data_none_is_thin() -> None:
    bench = Bench(Totals(1.0, 6.0, 36.0))
    bench.bubbles.beat({COLUMNS.data: 0.0, COLUMNS.query: 5.0}, 0)
    bench.bubbles.spreads[DOCUMENTS].others = 1.0
    bench.totals = TOTALS
    assert bench.bubbles.query_size(0.99) == Bench().bubbles.query_size(0.99)


def test_no_question_is_larger_than_what_reaches_everybody() -> None:
    bench = Bench(Totals(1.0, 6.0, 36.0))
    bench.bubbles.beat({COLUMNS.data: 5.0, COLUMNS.query: 5.0}, 0)
    bench.totals = TOTALS
    assert bench.bubbles.query_size(0.99) <= ceil(certainty_of(0.99) * 1500.0)


def test_where_nothing_branches_data_floods() -> None:
    bubbles = Bench(Totals(20.0, 40.0, 80.0)).bubbles
    assert bubbles.data_size() == 20
    assert bubbles.query_size(0.99) == 5
    assert bubbles.nodes() == 20.0


def test_a_node_alone_asks_itself() -> None:
    bubbles = Bench(Totals(1.0, 6.0, 36.0)).bubbles
    assert bubbles.query_size(0.5) == 1


def test_who_does_not_know_the_network_waits() -> None:
    bubbles = Bench(None).bubbles
    for call in (bubbles.data_size, bubbles.nodes, lambda: bubbles.query_size(0.9)):
        with pytest.raises(UsageError, match="not joined"):
            call()


def test_a_bubble_is_signed_and_says_when_it_ends() -> None:
    bench = Bench()
    bubble = bench.bubbles.make(SPACE, QUESTION, 50, 10 * S_NS, 7 * S_NS)
    bench.bubbles.cast(bubble, 50, 7 * S_NS)
    (cast,) = bench.cast
    assert verify_signed(ANN.node, cast.signed)
    assert cast.header.expires_ms == 17 * S_NS // MS_NS
    assert cast.id == bubble.id
    assert decode_payload(BubbleType(cast.kind), cast.payload) == QUESTION


def test_the_same_question_twice_is_two_bubbles() -> None:
    bubbles = Bench().bubbles
    first, second = (bubbles.make(SPACE, QUESTION, 50, S_NS, 0) for _ in range(2))
    assert first.id != second.id


def test_slices_follow_each_other() -> None:
    bench = Bench()
    bubble = bench.bubbles.make(SPACE, QUESTION, 50, S_NS, 0)
    for end in (7, 14, 50):
        bench.bubbles.cast(bubble, end, 0)
    assert [(c.size, c.start, c.end) for c in bench.cast] == [
        (50, 0, 7),
        (50, 7, 14),
        (50, 14, 50),
    ]
    assert bubble.cast_to == 50


def test_who_puts_as_fast_as_it_may_stays_within_the_budget_of_others() -> None:
    config = SearchConfig(origin_burst=40)
    bench = Bench(config=config)
    theirs = RateLimit(config.origin_burst, config.origin_refill_ns, 10)
    cast = 0
    for step in range(2000):
        now_ns = step * 5 * MS_NS
        if bench.bubbles.may_put(now_ns):
            bench.bubbles.cast(bench.bubbles.make(SPACE, QUESTION, 5, S_NS, now_ns), 5, now_ns)
            tokens = tokens_of(len(bench.cast[-1].payload))
            assert theirs.allow(ANN.node, now_ns, tokens)
            cast += 1
    assert cast > 0.7 * 2000 * 5 / 20  # and it uses most of it


def test_slices_of_one_bubble_cost_it_once() -> None:
    bench = Bench(config=SearchConfig(origin_burst=3))
    bubble = bench.bubbles.make(SPACE, QUESTION, 50, S_NS, 0)
    for end in (10, 20, 30, 40):
        bench.bubbles.cast(bubble, end, 0)
    assert bench.bubbles.may_put(0)
