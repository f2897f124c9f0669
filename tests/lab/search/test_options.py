"""What scenarios of simulated search networks may say."""

from __future__ import annotations

import pytest

from shoal.base.errors import ConfigError
from shoal_lab.experiments.search.options import MatchOptions
from shoal_lab.scenarios.scenario import parse_scenario


def parse(**options: object) -> MatchOptions:
    table = {"name": "x", "protocol": "search", "experiment": "match", "options": options}
    found = parse_scenario(table, "here").options
    assert isinstance(found, MatchOptions)
    return found


def test_locations_and_events_are_in_the_words_of_the_model() -> None:
    assert parse(locations=5).location_range() == (5, 5)
    assert parse(locations="2-10").location_range() == (2, 10)
    assert parse().happening().kind == "none"
    assert parse(event="leave 90 %").happening() == ("leave", 0.9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"locations": "2-40"}, "2-40': a node has 32 at most; more are for the model"),
        ({"locations": "many"}, "'many': write a number from 2"),
        ({"event": "fire"}, "'fire': write 'none'"),
        ({"bubbles": 0}, "options.bubbles"),
        ({"queries": 3}, "queries"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(**options)
