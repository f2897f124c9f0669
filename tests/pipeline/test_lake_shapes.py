"""JSON into typed columns: what a table takes on, what fits it, and why the rest does not."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from shoal.base.errors import ConfigError
from shoal_spark.lake import shapes
from shoal_spark.lake.fitting import Fitter, Misfit
from shoal_spark.lake.shapes import Seen, grow, merge

EMPTY = pa.struct([])
LONG, DOUBLE, TEXT = pa.int64(), pa.float64(), pa.string()
TABLE = pa.struct(
    [
        ("speed", DOUBLE),
        ("stops", LONG),
        ("line", TEXT),
        ("door", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("trip", pa.struct([("no", LONG)])),
        ("legs", pa.list_(pa.struct([("km", DOUBLE)]))),
    ]
)


def learn(shape: pa.DataType, *records: Any) -> pa.DataType:
    fitter = Fitter(shape, final=False)
    for record in records:
        fitter.fit(msgspec.json.encode(record))
    return grow(shape, fitter.seen)


def fit(record: Any, shape: pa.StructType = TABLE, *, final: bool = True) -> Any:
    content = record if isinstance(record, bytes) else msgspec.json.encode(record)
    return Fitter(shape, final=final).fit(content)


def reason(record: Any, shape: pa.StructType = TABLE, *, final: bool = False) -> str:
    with pytest.raises(Misfit) as caught:
        fit(record, shape, final=final)
    return str(caught.value)


# What a table takes on


def test_every_type_of_json() -> None:
    record = {"a": 1, "b": 1.5, "c": "x", "d": True, "e": [1], "f": {"g": [{"h": "y"}]}}
    assert learn(EMPTY, record) == pa.struct(
        [
            ("a", LONG), ("b", DOUBLE), ("c", TEXT), ("d", pa.bool_()), ("e", pa.list_(LONG)),
            ("f", pa.struct([("g", pa.list_(pa.struct([("h", TEXT)])))])),
        ]
    )  # fmt: skip


def test_what_has_no_type_makes_no_column() -> None:
    nothing: dict[str, Any] = {"a": None, "b": {}, "c": [], "d": [None, {}], "e": {"f": None}}
    assert learn(EMPTY, nothing) == EMPTY
    assert fit(nothing, EMPTY) == {}
    assert learn(EMPTY, nothing, {"a": 1, "e": {"f": "x"}}) == pa.struct(
        [("a", LONG), ("e", pa.struct([("f", TEXT)]))]
    )


def test_integers_and_floats_of_one_batch_are_floats() -> None:
    assert learn(EMPTY, {"x": 0}, {"x": 0}, {"x": 8.3}) == pa.struct([("x", DOUBLE)])
    assert learn(EMPTY, {"x": [1]}, {"x": [1.5]}) == pa.struct([("x", pa.list_(DOUBLE))])


def test_most_records_decide_and_the_order_does_not() -> None:
    records = [{"x": "a"}, {"x": 1}, {"x": 2.5}, {"y": "b"}, {"y": {"z": 1}}, {"X": 3}, {"x": []}]
    expected = pa.struct([("X", DOUBLE), ("y", TEXT)])  # a tie: by name
    for seed in range(10):
        Random(seed).shuffle(records)
        tasks = [Fitter(EMPTY, final=False) for _ in range(3)]
        for number, record in enumerate(records):
            tasks[number % 3].fit(msgspec.json.encode(record))
        seen = Seen()
        for task in tasks:
            sent = msgspec.json.encode(task.seen)
            seen.add(msgspec.json.decode(sent, type=Seen))
        assert grow(EMPTY, seen) == expected


def test_a_table_grows_inside_objects_and_lists() -> None:
    grown = learn(TABLE, {"trip": {"no": 1, "to": "A"}}, {"legs": [{"km": 1}, {"m": 5}]})
    assert grown.field("trip").type == pa.struct([("no", LONG), ("to", TEXT)])
    assert grown.field("legs").type.value_type == pa.struct([("km", DOUBLE), ("m", LONG)])
    assert [field.name for field in grown] == [field.name for field in TABLE]
    assert fit({"trip": {"to": "A"}}, grown) == {"trip": {"to": "A"}}


def test_a_table_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "FIELDS_MAX", 3)
    often = [{"b": 1}] * 2
    grown = learn(pa.struct([("a", LONG)]), {"wide": {"k": 1, "l": 1, "m": 1}}, {"z": 1}, *often)
    assert [field.name for field in grown] == ["a", "b", "z"], (
        "the most frequent, as far as they go"
    )
    assert learn(grown, {"late": 1}) == grown
    assert "takes no more" in reason({"late": 1}, grown, final=True)


def test_a_given_schema_holds_against_the_table() -> None:
    table = pa.struct([("a", LONG), ("b", pa.struct([("c", TEXT)]))])
    given = pa.struct([("B", pa.struct([("d", DOUBLE)])), ("e", pa.bool_())])
    assert merge(table, given, "t") == pa.struct(
        [("a", LONG), ("b", pa.struct([("c", TEXT), ("d", DOUBLE)])), ("e", pa.bool_())]
    )
    assert merge(table, table, "t") == table
    with pytest.raises(ConfigError, match=r"t: a is int64.*says double"):
        merge(table, pa.struct([("a", DOUBLE)]), "t")


# What fits


def test_what_loses_nothing_fits() -> None:
    assert fit({"speed": 3, "stops": 4.0, "LINE": "7"}) == {"speed": 3.0, "stops": 4, "line": "7"}
    assert fit({"at": "2026-11-16T10:00:00Z"})["at"].isoformat() == "2026-11-16T10:00:00+00:00"
    assert fit({"at": "2026-11-16T10:00:00"})["at"].tzinfo is not None
    assert fit({"speed": None, "trip": {}, "legs": []}) == {"speed": None, "trip": {}, "legs": []}
    assert fit({"legs": [None, {"km": 2}]}) == {"legs": [None, {"km": 2.0}]}
    assert pa.array([fit({"stops": 4.0, "legs": [{"km": 1}]})], TABLE).to_pylist()[0]["stops"] == 4


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (b"{", "no JSON"),
        (b'{"speed": NaN}', "no JSON"),
        (b'{"line": "\xff"}', "no JSON"),
        (b'{"a":1} {"a":2}', "no JSON"),
        (b"[" * 5000, "no JSON"),
        (b"", "no JSON"),
        ([1], "[1] is no object"),
        ({"speed": "fast"}, 'speed: "fast" is of type string, the column of type double'),
        ({"stops": 4.5}, "stops: 4.5 is no exact bigint"),
        ({"speed": 2**53 + 1}, "speed: 9007199254740993 is no exact double"),
        ({"stops": True}, "stops: true is of type boolean, the column of type bigint"),
        ({"line": 7}, "line: 7 is of type bigint, the column of type string"),
        ({"door": 1}, "door: 1 is of type bigint, the column of type boolean"),
        ({"at": "yesterday"}, 'at: "yesterday" is of type string, the column of type timestamp'),
        ({"trip": 5}, "trip: 5 is of type bigint, the column of type struct"),
        ({"trip": {"no": "x"}}, 'trip.no: "x" is of type string'),
        ({"legs": [{"km": 1}, {"km": "x"}]}, 'legs[].km: "x" is of type string'),
        ({"trip": []}, "trip: [] is of type array, the column of type struct"),
        ({"line": "x", "Line": "y"}, "Line: two names that differ in case only"),
        ({"new": 1, "NEW": 2}, "NEW: two names that differ in case only"),
        ({"new": {"a": 1, "A": 2}}, "new.A: two names"),
        ({"new": 2**63}, "new: 9223372036854775808 has more than 64 bits"),
        ({"stops": 2**63}, "stops: 9223372036854775808 is no exact bigint"),
        ({"a b": 1}, "a b: no name for a column"),
        ({"": 1}, "no name for a column"),
        ({"new": [{"x;": 1}]}, "new.x;: no name for a column"),
    ],
)
def test_the_rest_is_told_apart(record: Any, text: str) -> None:
    assert text in reason(record)


def test_no_content() -> None:
    with pytest.raises(Misfit, match="no content"):
        Fitter(TABLE, final=False).fit(None)


def test_objects_too_deep_are_no_columns() -> None:
    deep: Any = 1
    for _ in range(20):
        deep = {"a": deep}
    assert "deeper than 16" in reason(deep, EMPTY)


def test_a_bad_record_adds_no_columns() -> None:
    fitter = Fitter(TABLE, final=False)
    with pytest.raises(Misfit):
        fitter.fit(b'{"new": 1, "speed": "fast"}')
    assert not fitter.seen
