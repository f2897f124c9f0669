"""What is read of a document, and what is not, however hostile."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocols.search.config import (
    DOCUMENT_CHARS_MAX,
    DOCUMENT_DEPTH_MAX,
    DOCUMENT_VALUES_MAX,
    DOCUMENT_WORDS_MAX,
    KIND_CHARS_MAX,
    PATH_CHARS_MAX,
)
from shoal.protocols.search.queries.document_view import Document, Number, Text, document_of

EVENT = Text("kind", ("event",))


def test_fields_have_dotted_paths_and_lists_are_transparent() -> None:
    content = {
        "Title": "Air quality",
        "vehicle": {"Speed": 8.5, "live": True, "stops": [{"name": "Kallio"}, {"name": "Oper"}]},
        "a.b": 7,
        "none": None,
        "empty": "...",
        "matrix": [[1, 2], [3]],
    }
    assert document_of("Event", content) == Document(
        texts=(
            Text("title", ("air", "quality")),
            Text("vehicle.stops.name", ("kallio",)),
            Text("vehicle.stops.name", ("oper",)),
        ),
        labels=(EVENT, Text("vehicle.live", ("true",))),
        numbers=(
            Number("vehicle.speed", 8.5),
            Number("a.b", 7.0),
            Number("matrix", 1.0),
            Number("matrix", 2.0),
            Number("matrix", 3.0),
        ),
    )
    assert document_of("event", content).length == 4


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), 10**400, -(10**4000), None, b"air", {1, 2}]
)
def test_what_is_no_value_is_passed_over(value: object) -> None:
    assert document_of("event", {"a": value, "b": [value, 1]}) == Document(
        (), (EVENT,), (Number("b", 1.0),)
    )


@pytest.mark.parametrize(
    "key", [7, None, b"a", "k" * (PATH_CHARS_MAX + 1), "\ufdfa" * PATH_CHARS_MAX]
)
def test_what_is_no_name_of_a_field_is_passed_over(key: object) -> None:
    assert document_of("event", {key: 1, "b": 1}).numbers == (Number("b", 1.0),)


def test_the_content_may_be_any_value() -> None:
    assert document_of("event", "air").texts == (Text("", ("air",)),)
    assert document_of("event", None) == Document((), (EVENT,), ())


def nested(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


def test_depth_is_bounded() -> None:
    assert document_of("event", nested(DOCUMENT_DEPTH_MAX)).length == 1
    assert document_of("event", nested(DOCUMENT_DEPTH_MAX + 1)).length == 0
    assert document_of("event", nested(100_000)).length == 0
    circle: list[Any] = ["air"]
    circle.append(circle)
    assert document_of("event", circle).length == DOCUMENT_DEPTH_MAX


def test_the_number_of_values_is_bounded() -> None:
    assert len(document_of("event", list(range(5000))).numbers) == DOCUMENT_VALUES_MAX - 1
    wide: list[Any] = [[] for _ in range(DOCUMENT_VALUES_MAX)]
    assert document_of("event", [*wide, "air"]).length == 0
    # Every level as wide as it may be: 10 ** 16 values.
    bushy: Any = "air"
    for _ in range(DOCUMENT_DEPTH_MAX):
        bushy = {f"k{number}": bushy for number in range(10)}
    assert 0 < document_of("event", bushy).length <= DOCUMENT_VALUES_MAX


class Counted(dict[Any, Any]):
    """An object that knows how many of its fields were looked at."""

    looked_at = 0

    def items(self) -> Any:
        for item in super().items():
            self.looked_at += 1
            yield item


def test_fields_that_are_passed_over_are_bounded_too() -> None:
    nameless = Counted((number, 1) for number in range(10_000))
    assert document_of("event", nameless).numbers == ()
    assert nameless.looked_at < DOCUMENT_VALUES_MAX


def test_text_is_bounded() -> None:
    many = "a " * DOCUMENT_WORDS_MAX
    assert document_of("event", [many, "b"]).length == DOCUMENT_WORDS_MAX
    one = "a" * DOCUMENT_CHARS_MAX
    assert document_of("event", [one, "b"]).length == 1
    assert document_of("k" * 1000, {}).labels == (Text("kind", ("k" * KIND_CHARS_MAX,)),)


@pytest.mark.parametrize("character", ["\ufdfa", "\u0315\u0316", "ß", "東", "\ud800", "\u0344"])
def test_a_text_of_one_strange_character_takes_no_time(character: str) -> None:
    begin_s = time.process_time()
    document_of("event", {"a": character * 10**6})
    assert time.process_time() - begin_s < 2.0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.text(), json_values)
def test_any_value_is_a_document(kind: str, content: object) -> None:
    document = document_of(kind, content)
    assert all(len(text.path) <= PATH_CHARS_MAX for text in document.texts)
    assert all(abs(number.value) < float("inf") for number in document.numbers)
