"""Which documents a query matches."""

from __future__ import annotations

import pytest
from hypothesis import given

from shoal.protocols.search.queries.document_view import document_of
from shoal.protocols.search.queries.matching import matches
from shoal.protocols.search.queries.parser import parse
from shoal.protocols.search.queries.query import EVERYTHING, Query, all_of, any_of, negation
from tests.support.search_queries import contents, queries

TRAM = document_of(
    "event",
    {
        "title": "Straßenbahn 7, Kallio",
        "notes": ["late again", "air conditioned"],
        "vehicle": {"speed": [12.5, 30], "type": "tram", "low_floor": True},
        "line": "7",
        "stop": 7,
        "place": "東京都",
        "temperature": -5,
        "kind": "Raitiovaunu",
    },
)


@pytest.mark.parametrize(
    "text",
    [
        "*",
        "kallio",
        "STRASSENBAHN",
        "strassen*",
        "title:kallio",
        "notes:late",
        '"late again"',
        '"late ag"*',
        "notes:late-again",
        "vehicle.type:tram",
        "vehicle.low_floor:true",
        "kind:event",
        "kind:ev*",
        "kind:raitiovaunu",
        "vehicle.speed:>25",
        "vehicle.speed:<13",
        "vehicle.speed:12.5..13",
        "vehicle.speed:>=30",
        "vehicle.speed:<=12.5",
        "vehicle.speed:=30",
        "vehicle.speed:30",
        "line:7",
        "stop:7",
        "stop:7.0",
        'line:"7"',
        "temperature:-5",
        "東京",
        "京都",
        "京",
        "-bus",
        "bus OR tram",
        "tram -bus",
        "(bus OR tram) kallio",
        "-(bus tram)",
        # Not one number between: each comparison finds its own.
        "vehicle.speed:>25 vehicle.speed:<13",
    ],
)
def test_this_matches(text: str) -> None:
    assert matches(parse(text), TRAM)
    assert not matches(parse(f"-({text})"), TRAM)


@pytest.mark.parametrize(
    "text",
    [
        "-*",
        "bus",
        "kall",
        "assenbahn*",
        "notes:kallio",
        "vehicle:tram",
        "type:tram",
        # From one text into the next.
        '"again air"',
        '"late conditioned"',
        '"again late"',
        '"late ga"*',
        # Labels are for their fields only, numbers for theirs.
        "event",
        "true",
        "30",
        "vehicle.speed:>30",
        "vehicle.speed:<12.5",
        "vehicle.speed:13..29",
        "line:=7",
        'stop:"7"',
        "temperature:5",
        "都京",
        "-tram",
        "tram bus",
        "-(bus OR tram)",
    ],
)
def test_this_does_not_match(text: str) -> None:
    assert not matches(parse(text), TRAM)


@given(queries, queries, contents)
def test_all_any_and_not_are_logic(one: Query, other: Query, content: object) -> None:
    document = document_of("event", content)
    first, second = matches(one, document), matches(other, document)
    assert matches(all_of([one, other]), document) == (first and second)
    assert matches(any_of([one, other]), document) == (first or second)
    assert matches(negation(one), document) == (not first)
    assert matches(EVERYTHING, document)
