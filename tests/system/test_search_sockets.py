"""Search by processes that are killed. The long form is campaigns/search_sockets.py."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from campaigns import search_sockets
from campaigns.kills import Failure
from campaigns.search_needles import LIVES, Hunt, Tally, make_needles
from campaigns.search_sockets import Run, Settings, failure
from campaigns.search_words import Answered, Kept, NodeFigures, Refused, SearchFigures
from campaigns.worker_words import Figures

SMALL = Settings(processes=8, documents=60, per_second=60, pause_s=4, beat_ms=250)
NEEDLES = make_needles(Random(1), documents=60, nodes=8)
EVERYBODY = range(8)


def test_needles_are_found_by_whoever_is_left(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_sockets, "WATCH_S", 0.1)
    outcome = search_sockets.run(replace(SMALL, seed=seed), tmp_path)
    assert not outcome.failure
    whole, after = outcome.whole, outcome.after
    assert (whole.processes, len(outcome.killed), after.processes) == (8, 3, 5)
    assert whole.due == 60
    assert whole.found >= 59
    assert after.due + after.lapsing == 60
    assert after.found_percent >= 98
    assert whole.confidence.mean > 0.85, "what is believed changes while searches are under way"
    assert 1 < after.holders < whole.holders <= 8
    for hunt in (whole, after):
        assert hunt.messages["BUBBLE_CAST"] > 1
        assert hunt.messages["MATCH"] > 0.5
        assert hunt.kib > 0.5
        assert 0 < hunt.first_hit_ms.mean < 3000
        assert 0 < hunt.cpu_s.mean < 30
        assert 0 < hunt.memory_mib.mean < 100
    assert any("60 of 60" in line or "59 of 60" in line for line in search_sockets.table(outcome))


def answered(document: int, *found: int, confidence: float = 0.99) -> Answered:
    names = tuple(f"document {number}" for number in found)
    return Answered(document, names, confidence, 5, 8.0, 12.0 if found else None)


def tally_of(found: range, living: Collection[int] = EVERYBODY) -> Tally:
    """Every needle was searched for, and these were found."""
    tally = Tally(NEEDLES, living)
    for needle in NEEDLES:
        tally.told(answered(needle.number, *([needle.number] if needle.number in found else [])))
    return tally


def looks(living: Collection[int], casts: int, cpu_s: float) -> list[SearchFigures]:
    return [
        Figures((NodeFigures(n, {"BUBBLE_CAST": casts}, 0, {}, 30, 8.0, 6),), cpu_s, 1 << 20, 0)
        for n in living
    ]


def hunt_of(tally: Tally) -> Hunt:
    before, after = (looks(tally.living, casts, casts / 10) for casts in (10, 70))
    return tally.hunt(before, after, 9.0)


def test_every_life_and_every_owner_is_tried() -> None:
    assert {needle.life for needle in NEEDLES} == set(LIVES) == {"fading", "managed", "durable"}
    assert {needle.owner for needle in NEEDLES} == set(EVERYBODY)
    assert len({needle.word for needle in NEEDLES}) == 60
    text = [str(needle.content) for needle in NEEDLES]
    assert all(sum(needle.word in one for one in text) == 1 for needle in NEEDLES)


def test_what_was_counted_is_of_the_hunt_alone() -> None:
    hunt = hunt_of(tally_of(range(60)))
    assert (hunt.due, hunt.found, hunt.found_percent, hunt.wrong) == (60, 60, 100.0, [])
    assert hunt.messages == {"BUBBLE_CAST": 8.0}, "8 nodes got 60 each, in 60 searches"
    assert hunt.cpu_s.mean == pytest.approx(6.0)
    assert (hunt.memory_mib.max, hunt.holders) == (1.0, 4.0)


def test_managed_documents_of_the_dead_are_asked_of_nobody() -> None:
    living = [n for n in EVERYBODY if n not in (1, 4)]
    dead = [n for n in NEEDLES if n.life == "managed" and n.owner in (1, 4)]
    assert dead
    tally = Tally(NEEDLES, living)
    for needle in NEEDLES:
        tally.told(answered(needle.number, *([] if needle in dead[1:] else [needle.number])))
    hunt = hunt_of(tally)
    assert (hunt.due, hunt.found) == (60 - len(dead), 60 - len(dead))
    assert (hunt.lapsing, hunt.lapsing_found) == (len(dead), 1)
    assert not failure(hunt, hunt)


def test_the_campaign_notices_what_is_missed_or_made_up(tmp_path: Path) -> None:
    good = hunt_of(tally_of(range(60)))
    assert not failure(good, good)
    assert "2 times a machine failed" in failure(good, good, failed_machines=2)
    assert not failure(good, hunt_of(tally_of(range(59))))
    missed = hunt_of(tally_of(range(58)))
    assert missed.missed == {"managed": 1, "durable": 1}
    assert failure(missed, good).startswith("before the kills, 58 of 60 needles were found")
    assert failure(good, missed).startswith("after the kills, 58 of 60 needles were found")

    for other in (answered(3, 3, 3), answered(3, 3, 4), Refused(3, "no room")):
        tally = tally_of(range(60))
        tally.answers.pop(3)
        tally.told(other)
        assert "1 wrong: document 3: " in failure(hunt_of(tally), good)

    run = Run(SMALL, tmp_path)
    run.told(Kept(0, 5))
    with pytest.raises(Failure, match="document 1 was not put: "):
        run.told(Refused(1, "no room"))
    with pytest.raises(Failure, match="take 6 processes or more"):
        Settings(processes=5)
    with pytest.raises(Failure, match="take a part of one"):
        Settings(killed=1)
