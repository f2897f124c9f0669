"""Hypothesis strategies for queries and documents: few words and fields, so that they meet."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from shoal.protocols.search.config import (
    QUERY_CHARS_MAX,
    QUERY_DEPTH_MAX,
    QUERY_PREFIXES_MAX,
    QUERY_TERMS_MAX,
)
from shoal.protocols.search.queries.query import (
    Between,
    Compare,
    Query,
    Words,
    all_of,
    any_of,
    canonical,
    depth,
    negation,
    prefixes,
    terms,
)
from shoal.protocols.search.queries.words import fold, words_of

VOCABULARY = [
    "air",
    "airport",
    "quality",
    "Kallio",
    "straße",
    "äiti",
    "東",
    "京",
    "7",
    "1e5",
    "true",
]
FIELDS = ["title", "pm25", "vehicle.speed", "kind", "Ünit", "a b", "or", '"\\', "-x", "*", "."]
NUMBERS = [-2.0, 0.0, 0.5, 7.0, 7.1, 1e16, 1e-7, 1.7e308]
KINDS = ["stream", "topic", "event", "document"]

words = st.sampled_from(VOCABULARY).map(words_of)
paths = st.sampled_from(FIELDS).map(fold)
numbers = st.sampled_from(NUMBERS) | st.floats(allow_nan=False, allow_infinity=False).map(
    lambda number: number + 0.0
)


def queries_of(
    path: st.SearchStrategy[str], one_word: st.SearchStrategy[tuple[str, ...]]
) -> st.SearchStrategy[Query]:
    """Queries as the parser makes them."""
    in_a_row = st.lists(one_word, min_size=1, max_size=3).map(lambda few: sum(few, ()))
    sign = st.sampled_from(["<", "<=", ">", ">="])
    ends = st.tuples(numbers, numbers).map(sorted)
    leaf: st.SearchStrategy[Query] = st.one_of(
        st.builds(Words, st.none() | path, in_a_row, st.booleans()),
        st.builds(Compare, path, sign, numbers),
        st.builds(lambda at, both: Between(at, *both), path, ends),
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(all_of),
            st.lists(inner, min_size=1, max_size=3).map(any_of),
            inner.map(negation),
        ),
        max_leaves=8,
    ).filter(_is_within_bounds)


def _is_within_bounds(query: Query) -> bool:
    return (
        len(canonical(query)) <= QUERY_CHARS_MAX
        and depth(query) <= QUERY_DEPTH_MAX
        and terms(query) <= QUERY_TERMS_MAX
        and prefixes(query) <= QUERY_PREFIXES_MAX
    )


queries = queries_of(paths, words)

texts = st.lists(st.sampled_from([*VOCABULARY, "-", "Air", "東京"]), max_size=5).map(" ".join)
scalars = st.one_of(
    texts,
    st.sampled_from([*NUMBERS, 7, 10**400, -(10**400), float("nan"), float("inf")]),
    st.booleans(),
    st.none(),
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([*FIELDS, "vehicle", "speed", ""]), inner, max_size=4),
    ),
    max_leaves=6,
)
contents = st.dictionaries(st.sampled_from([*FIELDS, "vehicle"]), values, max_size=5)
kinds = st.sampled_from(KINDS)
