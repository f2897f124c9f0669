"""Sorted arrays give what comparing each number gives, at the ends of a range as well."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.protocols.search.queries.document_view import Number
from shoal.protocols.search.queries.index import Numbers
from shoal.protocols.search.queries.matching import fits
from shoal.protocols.search.queries.query import Between, Compare

few = st.integers(-2, 2).map(float)
ranges = st.one_of(
    st.builds(Compare, st.just("a"), st.sampled_from(["<", "<=", ">", ">="]), few),
    st.tuples(few, few).map(lambda ends: Between("a", min(ends), max(ends))),
)


@given(st.lists(st.lists(few, max_size=3), max_size=6), ranges)
def test_a_range_finds_who_has_a_number_in_it(
    held: list[list[float]], query: Compare | Between
) -> None:
    numbers = Numbers()
    for number, values in enumerate(held):
        numbers.add(number, [Number("a", value) for value in values])
        numbers.add(number, [Number("b", 0.0)])
    fitting = [[value for value in values if fits(query, value)] for values in held]
    assert numbers.find(query) == {number for number, values in enumerate(fitting) if values}
    assert numbers.count(query) == sum(map(len, fitting))
    for number, values in enumerate(held):
        numbers.remove(number, [Number("a", value) for value in values])
        assert number not in numbers.find(query)


def test_the_ends_of_a_range() -> None:
    numbers = Numbers()
    for number in range(5):
        numbers.add(number, [Number("a", float(number))])
    assert numbers.find(Compare("a", "<", 2.0)) == {0, 1}
    assert numbers.find(Compare("a", "<=", 2.0)) == {0, 1, 2}
    assert numbers.find(Compare("a", ">", 2.0)) == {3, 4}
    assert numbers.find(Compare("a", ">=", 2.0)) == {2, 3, 4}
    assert numbers.find(Between("a", 1.0, 2.0)) == {1, 2}
    assert numbers.find(Between("a", 1.2, 1.8)) == set()
    assert numbers.find(Compare("b", "<", 2.0)) == set()
