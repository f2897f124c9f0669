"""What people type, and what it becomes: a query, or an error that helps."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import UsageError
from shoal.protocols.search.config import QUERY_CHARS_MAX, QUERY_DEPTH_MAX, QUERY_TERMS_MAX
from shoal.protocols.search.queries.parser import parse
from shoal.protocols.search.queries.query import (
    EVERYTHING,
    AllOf,
    AnyOf,
    Between,
    Compare,
    Not,
    Query,
    Words,
    all_of,
    any_of,
    canonical,
)
from shoal.protocols.search.queries.words import fold, words_of
from tests.support.search_queries import FIELDS, VOCABULARY, queries, queries_of

AIR, PORT = Words(None, ("air",)), Words(None, ("port",))


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("air", AIR),
        ("  AIR  ", AIR),
        ('"air"', AIR),
        ("air*", Words(None, ("air",), True)),
        ("air-port", Words(None, ("air", "port"))),
        ('"Air, port"', Words(None, ("air", "port"))),
        ('"air port"*', Words(None, ("air", "port"), True)),
        ("東京", Words(None, ("東", "京"))),
        ("7.1", Words(None, ("7", "1"))),
        ("*", EVERYTHING),
        ("* air", AIR),
        ("title:air", Words("title", ("air",))),
        ("Vehicle.Type:Tram", Words("vehicle.type", ("tram",))),
        ('"Air quality":good', Words("air quality", ("good",))),
        (r'"a\"b\\c\d":x', Words('a"b\\c\\d', ("x",))),
        ("time:12:30", Words("time", ("12", "30"))),
        ("OR:x", Words("or", ("x",))),
        ("or and not", AllOf((Words(None, ("and",)), Words(None, ("not",)), Words(None, ("or",))))),
        ("pm25:<10", Compare("pm25", "<", 10.0)),
        ("pm25:<=-.5", Compare("pm25", "<=", -0.5)),
        ("pm25:>1e3", Compare("pm25", ">", 1000.0)),
        ("pm25:>=+5.", Compare("pm25", ">=", 5.0)),
        ("pm25:=7.1", Between("pm25", 7.1, 7.1)),
        ("pm25:5..10", Between("pm25", 5.0, 10.0)),
        ("t:-5..-1.5", Between("t", -5.0, -1.5)),
        ("t:-5", Between("t", -5.0, -5.0)),
        ("t:-0", Between("t", 0.0, 0.0)),
        ("t:7", AnyOf((Words("t", ("7",)), Between("t", 7.0, 7.0)))),
        ('t:"7"', Words("t", ("7",))),
        ("t:7*", Words("t", ("7",), True)),
        ("t:1.2.3", Words("t", ("1", "2", "3"))),
        ("-air", Not(AIR)),
        ("-title:air", Not(Words("title", ("air",)))),
        ('-"air port"', Not(Words(None, ("air", "port")))),
        ("-(-air)", AIR),
        ("port air", AllOf((AIR, PORT))),
        ("air air", AIR),
        ("port OR air", AnyOf((AIR, PORT))),
        ("air port OR x", AnyOf((AllOf((AIR, PORT)), Words(None, ("x",))))),
        ("(x OR air) port", AllOf((AnyOf((AIR, Words(None, ("x",)))), PORT))),
        ("((port) (air))", AllOf((AIR, PORT))),
        ("-(air OR port)", Not(AnyOf((AIR, PORT)))),
        ("(air)(port)", AllOf((AIR, PORT))),
    ],
)
def test_what_text_means(text: str, query: Query) -> None:
    assert parse(text) == query
    assert parse(canonical(query)) == query


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("air tram", "TRAM Air"),
        ("a OR (b c)", "(c b) OR a"),
        ("(a b) c", "a b c b"),
        ("a:7", 'a:=7 OR a:"7"'),
        ("a:1..1", "a:=1.0"),
        ("-(-(a -b))", "-b a"),
    ],
)
def test_what_says_the_same_is_the_same(one: str, other: str) -> None:
    assert canonical(parse(one)) == canonical(parse(other))


@pytest.mark.parametrize(
    ("text", "at", "remedy"),
    [
        ("", 1, "write a word, or \\* for everything"),
        ("air OR", 7, "write a word"),
        ("OR air", 1, "write a word"),
        ("air ()", 6, "write a word"),
        ("(air", 1, "write a \\)"),
        ("air)", 4, "leave this \\) out"),
        ('title:"air', 7, "write another after"),
        ("a AND b", 3, "must all match"),
        ("NOT b", 1, "use -"),
        ("a - b", 3, "directly before"),
        ("--a", 1, "directly before"),
        ("a -", 3, "directly before"),
        ("title: air", 8, "without a space"),
        ("title:", 7, "without a space"),
        ("title:(a b)", 7, "field:a OR field:b"),
        (":air", 1, "a field is missing"),
        ("a:b*:c", 3, "at the end of a word"),
        ("a*:c", 1, "quote it"),
        ('"":c', 1, "1 to 256 characters"),
        ("\u200b:c", 1, "1 to 256 characters"),
        ("*air", 1, "begin\\*"),
        ("a:*", 3, "holds no letters"),
        ("...", 1, "holds no letters"),
        ('""', 1, "holds no letters"),
        ('air"port"', 4, "put a space"),
        ('"air"port', 6, "put a space"),
        ('a:"b":c', 6, "put a space"),
        ("a:-b", 3, "-field:word"),
        ("http://example.org", 6, 'quote it: "https'),
        (">5", 1, "speed:>25"),
        ("5..10", 1, "speed:5..10"),
        ("a:>b", 3, "no number"),
        ("a:=", 3, "no number"),
        ("a:>nan", 3, "no number"),
        ("a:>=1e999", 3, "largest"),
        ("a:1e999", 3, "largest"),
        ("a:5..", 3, ">=5"),
        ("a:..5", 3, "<=10"),
        ("a:10..5", 3, "5..10"),
        ("air \ud800", 5, "half a character"),
        ("a" * (QUERY_CHARS_MAX + 1), QUERY_CHARS_MAX + 1, "leave words out"),
        ("(" * (QUERY_DEPTH_MAX + 1) + "a" + ")" * 9, QUERY_DEPTH_MAX + 1, "8 parentheses"),
    ],
)
def test_an_error_says_where_and_what_instead(text: str, at: int, remedy: str) -> None:
    with pytest.raises(UsageError, match=remedy) as error:
        parse(text)
    assert str(error.value).startswith(f"query, character {at} (in ")
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (" ".join(f"a{number}" for number in range(QUERY_TERMS_MAX + 1)), "65 words, 64 are"),
        ('"' + "a " * 65 + '"', "65 words, 64 are"),
        ("東" * 65, "65 words, 64 are"),
        ("a* b* -c* (d* OR e*)", "more than 4 words with .: write some"),
        # Short enough as typed, but a:7 is a:"7" OR a:=7 in full.
        (" ".join(f"a:{number}" for number in range(60)), "in full, 1024 are"),
        ('"' + "\ufdfa" * 100 + '"', "in full, 1024 are"),
        ("(-" * QUERY_DEPTH_MAX + "(a OR b:7)" + ")" * QUERY_DEPTH_MAX, "8 parentheses"),
        ("z -" + "(a -" * QUERY_DEPTH_MAX + "b:7" + ")" * QUERY_DEPTH_MAX, "8 parentheses"),
    ],
)
def test_a_query_is_bounded_in_full(text: str, remedy: str) -> None:
    with pytest.raises(UsageError, match=remedy):
        parse(text)


def test_queries_at_their_bounds_are_fine() -> None:
    for text in (
        " ".join(f"a{number}" for number in range(QUERY_TERMS_MAX)),
        "a:7 " * 200 + "b",
        "(" * QUERY_DEPTH_MAX + "a" + ")" * QUERY_DEPTH_MAX,
        '"' + "ä" * (QUERY_CHARS_MAX - 2) + '"',
    ):
        assert parse(canonical(parse(text))) == parse(text)


@given(queries)
def test_the_text_of_a_query_is_that_query(query: Query) -> None:
    assert parse(canonical(query)) == query


any_words = st.text(min_size=1, max_size=10).map(words_of).filter(bool)
any_paths = st.text(min_size=1, max_size=10).map(fold).filter(bool)


@given(queries_of(any_paths, any_words))
def test_the_text_of_a_query_in_any_script_is_that_query(query: Query) -> None:
    assert parse(canonical(query)) == query


PIECES = [*VOCABULARY, *FIELDS, *'()":*-<>=. \\', "..", "OR", "AND", "5", "-1e9", "//", "\ud800"]


@given(st.text(max_size=40) | st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_any_text_is_a_query_or_an_error_that_says_where(text: str) -> None:
    try:
        query = parse(text)
    except UsageError as error:
        problem = str(error)
    else:
        assert parse(canonical(query)) == query
        return
    assert problem.startswith("query, character ")


@given(st.lists(queries, min_size=1, max_size=4), st.randoms())
def test_order_does_not_matter(parts: list[Query], chance: Random) -> None:
    shuffled = list(parts)
    chance.shuffle(shuffled)
    assert all_of(parts) == all_of(shuffled)
    assert any_of(parts) == any_of(shuffled)
