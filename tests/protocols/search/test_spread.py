"""How densely data lies: what is measured, and what questions have to be made for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.units import S_NS
from shoal.protocols.search.bubbles.data_density import Spread
from shoal.protocols.search.documents.document_store import MANAGED_LEASE_NS
from shoal.protocols.search.spaces import Columns

DOCUMENTS, GEO = Columns(""), Columns("geo")


def test_nothing_measured_is_nothing_known() -> None:
    spread = Spread(GEO, share=None)
    spread.hear({"s:other": 5.0, **dict.fromkeys((DOCUMENTS.data, DOCUMENTS.query), 7.0)}, 10.0)
    assert (spread.own, spread.others, spread.share) == (1.0, 1.0, None)
    assert not spread.in_use


def test_a_space_is_balanced_by_its_own_traffic() -> None:
    geo, documents = Spread(GEO, share=None), Spread(DOCUMENTS)
    measured = {GEO.data: 200.0, GEO.query: 100.0, DOCUMENTS.data: 100.0, DOCUMENTS.query: 300.0}
    for spread in (geo, documents):
        spread.hear(measured, 10.0)
    assert geo.in_use
    assert (geo.own, geo.others) == (0.5, 0.5)
    assert (documents.own, documents.others) == (3.0, 3.0)


@pytest.mark.parametrize(
    ("members", "share"), [(5.0, 0.5), (10.0, 1.0), (25.0, 1.0), (0.0, 0.1), (-1e30, 0.1)]
)
def test_who_has_a_space_is_measured_and_no_liar_makes_it_more_or_less_than_can_be(
    members: float, share: float
) -> None:
    spread = Spread(GEO, share=None)
    spread.hear({GEO.members: members}, 10.0)
    assert spread.share == share


def test_questions_are_made_for_the_smallest_data_of_late() -> None:
    spread = Spread(DOCUMENTS)
    spread.note(10, 100.0, 0)
    spread.note(40, 100.0, 10 * S_NS)
    assert spread.thinnest(40, 100.0) == 0.1
    spread.note(20, 100.0, MANAGED_LEASE_NS)
    assert spread.thinnest(20, 100.0) == 0.2
    spread.note(30, 100.0, MANAGED_LEASE_NS + 20 * S_NS)
    assert spread.thinnest(30, 100.0) == 0.2
    spread.note(30, 100.0, 2 * MANAGED_LEASE_NS)
    assert spread.thinnest(30, 100.0) == 0.3


def test_data_of_a_network_that_has_grown_lies_thinner() -> None:
    spread = Spread(DOCUMENTS)
    spread.note(10, 100.0, 0)
    spread.note(20, 400.0, S_NS)
    assert spread.thinnest(20, 400.0) == 10 / 400
    assert spread.thinnest(40, 1600.0) == 10 / 1600, "also before the next beat"


def test_a_crash_takes_holders_in_proportion() -> None:
    spread = Spread(DOCUMENTS)
    spread.note(20, 400.0, 0)
    spread.note(10, 100.0, S_NS)
    assert spread.thinnest(10, 100.0) == 20 / 400


@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.integers(1, 200), st.integers(0, 600)),
        min_size=1,
        max_size=40,
    )
)
def test_the_thinnest_is_that_of_all_that_was_cast_in_time(
    casts: list[tuple[int, int, int]],
) -> None:
    spread = Spread(DOCUMENTS)
    noted: list[tuple[int, int, int]] = []
    now_ns = 0
    for size, reach, later_s in casts:
        now_ns += later_s * S_NS
        spread.note(size, reach, now_ns)
        noted.append((size, reach, now_ns))
        expected = min(
            at_size / max(since for _, since, _ in noted[number:])
            for number, (at_size, _, at_ns) in enumerate(noted)
            if at_ns + MANAGED_LEASE_NS > now_ns
        )
        assert spread.thinnest(size, reach) == expected


def test_it_remembers_few_values() -> None:
    spread = Spread(DOCUMENTS)
    for beat in range(1000):
        spread.note(100 + beat % 7, 1000.0, beat * 5 * S_NS)
    assert len(spread) <= 7
