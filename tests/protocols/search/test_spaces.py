"""Spaces: which node reads which bubbles, and matchers that applications wrote."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import UsageError
from shoal.protocols.search.config import INT32_MAX
from shoal.protocols.search.payloads import QUESTION_BYTES_MAX, BubbleType
from shoal.protocols.search.spaces import (
    SPACES_MAX,
    DocumentSpace,
    MatchedSpace,
    Spaces,
    first_type,
    kind_of,
)
from tests.support.documents import a_document
from tests.support.spaces import REACH, Near, line

NAMES = st.from_regex(r"[a-z][a-z0-9._-]{0,31}", fullmatch=True)


class Says:
    """A matcher that says the same to everything, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def match(self, data: bytes, query: bytes) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


# Which bubbles


@given(NAMES.filter(lambda name: name not in ("document", "stream", "topic", "event")))
def test_the_types_of_a_space_follow_from_its_name_and_fit_the_field(name: str) -> None:
    first = first_type(name)
    assert 2**30 <= first <= INT32_MAX - 3
    assert first % 4 == 0, "so that two spaces share all types or none"
    spaces = Spaces(DocumentSpace())
    spaces.add(MatchedSpace(name, Near()))
    for type in BubbleType:
        assert spaces.of_kind(kind_of(spaces[name], type)) == (spaces[name], type)
    assert spaces.of_kind(first - 1) is None
    assert spaces.of_kind(first + 4) is None


def test_types_are_for_ever() -> None:
    """Others have them in their programs."""
    assert first_type("geo") == 0x6B549E74
    assert [kind_of(DocumentSpace(), type) for type in BubbleType] == [3, 4, 5, 6]


def test_bubbles_of_others_belong_to_no_space() -> None:
    spaces = Spaces(DocumentSpace())
    for kind in (-1, 0, 2, 7, 77, first_type("geo")):
        assert spaces.of_kind(kind) is None


@pytest.mark.parametrize("name", ["", "Geo", "1st", "a b", "ö", "x" * 33, "document", "event"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="write 1 to 32 small letters"):
        MatchedSpace(name, Near())


def test_a_space_is_opened_once_and_there_are_so_many() -> None:
    spaces = Spaces(DocumentSpace())
    spaces.add(line())
    with pytest.raises(UsageError, match="'line' is open on this node"):
        spaces.add(line())
    with pytest.raises(UsageError, match=r"no space 'geo' on this node: open it first"):
        spaces["geo"]
    for number in range(1, SPACES_MAX):
        spaces.add(MatchedSpace(f"s{number}", Near()))
    with pytest.raises(UsageError, match=f"one more than {SPACES_MAX}"):
        spaces.add(MatchedSpace("more", Near()))


def test_two_names_with_the_same_types_are_noticed() -> None:
    spaces = Spaces(DocumentSpace())
    spaces.add(line())
    twin = MatchedSpace("twin", Near())
    twin.first = line().first
    with pytest.raises(UsageError, match="'line' and 'twin' have the same bubble types"):
        spaces.add(twin)


# Matchers


@pytest.mark.parametrize(
    ("answer", "score"), [(None, None), (False, None), (True, 1.0), (0, 0.0), (2, 2.0), (0.5, 0.5)]
)
def test_what_a_matcher_says(answer: Any, score: float | None) -> None:
    space = MatchedSpace("says", Says(answer))
    assert space.judge(b"q", b"d", 7.0) == score, "not what we were told"
    assert space.failures == 0


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (ValueError("no number"), "ValueError: no number"),
        (RecursionError(), "RecursionError: "),
        ("text", "ValueError: could not convert"),
        (b"bytes", "ValueError: could not convert"),
        ([1], "TypeError: float"),
        (10**400, "OverflowError"),
        (-1.0, "a score of -1.0: 0 or more"),
        (float("nan"), "a score of nan"),
        (float("inf"), "a score of inf"),
    ],
)
def test_a_matcher_that_fails_is_counted_and_matches_nothing(answer: Any, problem: str) -> None:
    space = MatchedSpace("says", Says(answer))
    for _ in range(2):
        assert space.judge(b"q", b"d", 7.0) is None
    assert space.failures == 2
    assert space.problem.startswith(problem)


def test_what_is_no_matcher_is_refused() -> None:
    matcher: Any = object()
    with pytest.raises(UsageError, match=r"a matcher of type object: give an object with match"):
        MatchedSpace("geo", matcher)


def test_what_is_no_question_is_refused() -> None:
    assert line().read(b"7") == b"7"
    with pytest.raises(UsageError, match="16384 bytes at most, not 1 of type str"):
        line().read("7")
    with pytest.raises(UsageError, match="bytes at most"):
        line().read(bytes(QUESTION_BYTES_MAX + 1))
    with pytest.raises(UsageError, match="a query of type bytes: give text"):
        DocumentSpace().read(b"air")


_STEPS = st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(-20, 20)), max_size=30)


@given(_STEPS, st.integers(-20, 20), st.integers(1, 12))
def test_what_is_put_is_found_the_nearest_first(
    steps: list[tuple[int, int | None]], asked: int, limit: int
) -> None:
    held = line().collection()
    expected: dict[bytes, int] = {}
    for number, point in steps:
        key = b"%d" % number
        if point is None:
            assert held.remove(key) == (expected.pop(key, None) is not None)
        else:
            held.put(key, b"%d" % point)
            expected.pop(key, None)
            expected[key] = point
    assert len(held) == len(expected)
    assert held.bytes == sum(len(b"%d" % point) for point in expected.values())
    order = [key for key in reversed(expected) if abs(expected[key] - asked) < REACH]
    order.sort(key=lambda key: abs(expected[key] - asked))  # stable: the one put last first
    assert [hit.key for hit in held.search(b"%d" % asked, limit)] == order[:limit]


def test_one_that_fails_does_not_hide_the_others() -> None:
    space = line()
    held = space.collection()
    for key, data in ((b"1", b"5"), (b"2", b"five"), (b"3", b"6")):
        held.put(key, data)
    assert [hit.key for hit in held.search(b"6", 9)] == [b"3", b"1"]
    assert space.failures == 1


def test_any_standing_query_could_match() -> None:
    waiting = line().filter()
    waiting.add(1, b"5")
    waiting.add(2, b"6")
    waiting.remove(1)
    assert waiting.candidates(b"7") == [2]
    assert len(waiting) == 1


def test_a_space_looks_at_the_bytes_of_its_data() -> None:
    assert line().view(a_document(content=b"5", kind="line")) == b"5"
