"""A search and a watch alone: order, room, versions, the end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import show_node_id
from shoal.node import Gap, Hit, Sighting
from shoal.node.search.results import Search, Watch
from shoal.protocols.search.commands import (
    FindDocuments,
    Found,
    SearchOver,
    SearchWidened,
    Seen,
    StopSearch,
    Unwatch,
    WatchDocuments,
)
from shoal.protocols.search.spaces import DocumentSpace
from tests.node.search import ALICE, Door, document

SPACE = DocumentSpace()


def search(door: Door, **settings: Any) -> Search[Hit]:
    given: dict[str, Any] = {"confidence": 0.99, "limit": None, "within": 10.0, "queue_max": 100}
    return Search(door, SPACE, "title:air", Hit, **{**given, **settings})


def found(search: Search[Hit], name: str, score: float, version: int = 1) -> None:
    search.heard(Found(document(name, version=version), score, search))


def over(search: Search[Hit]) -> None:
    search.heard(SearchOver(0.995, 14, 31.0, search))


# Searches


def test_hits_come_best_first_and_the_search_says_how_sure_it_is() -> None:
    async def main() -> None:
        door = Door()
        async with search(door, limit=5, within=2.5) as hits:
            assert door.said == [(FindDocuments("title:air", 0.99, 5, 2_500_000_000), hits)]
            assert (hits.confidence, hits.asked, hits.over) == (0.0, 0, False)
            hits.heard(SearchWidened(0.4, 4, 31.0, hits))
            assert (hits.confidence, hits.asked, hits.nodes) == (0.4, 4, 31.0)
            for name, score in (("b", 1.0), ("a", 3.0), ("c", 2.0)):
                found(hits, name, score)
            over(hits)
            assert [hit.name async for hit in hits] == ["a", "c", "b"]
            assert (hits.confidence, hits.asked, hits.nodes) == (0.995, 14, 31.0)
            assert hits.cost == 14 + 3
        assert door.taken_back == [], "it was over: there is nothing to stop"
        assert not door.remembered

    asyncio.run(main())


def test_a_hit_says_what_was_found_and_whose_it_is() -> None:
    async def main() -> None:
        hits = search(Door())
        task = asyncio.create_task(anext(hits))
        await asyncio.sleep(0.01)
        found(hits, "kallio", 1.5, version=7)
        hit = await task
        assert (hit.content, hit.name, hit.kind, hit.life) == (
            {"title": "kallio"},
            "kallio",
            "document",
            "durable",
        )
        assert (hit.version, hit.score) == (7, 1.5)
        assert hit.owner == show_node_id(ALICE.address)
        assert hit.address == f"{hit.owner}/kallio"
        assert hit.expires.isoformat() == "2023-11-15T22:13:20+00:00"
        line = json.loads(hit.as_json())
        assert line["content"] == {"title": "kallio"}
        assert (line["score"], line["expires"]) == (1.5, "2023-11-15T22:13:20Z")

    asyncio.run(main())


def test_a_newer_version_takes_the_place_of_one_that_waits() -> None:
    async def main() -> None:
        async with search(Door()) as hits:
            found(hits, "a", 1.0, version=1)
            found(hits, "a", 0.5, version=2)
            found(hits, "b", 0.7)
            assert [(await anext(hits)).name for _ in range(2)] == ["b", "a"]
            found(hits, "a", 0.5, version=3)
            assert (await anext(hits)).version == 3, "told again, since it is news"

    asyncio.run(main())


def test_a_slow_reader_loses_the_worst_and_can_see_how_many() -> None:
    async def main() -> None:
        async with search(Door(), queue_max=3) as hits:
            for number in range(10):
                found(hits, f"d{number}", float(number))
            over(hits)
            assert [hit.name async for hit in hits] == ["d9", "d8", "d7"]
            assert hits.dropped == 7

    asyncio.run(main())


def test_leaving_the_context_stops_the_search() -> None:
    async def main() -> None:
        door = Door()
        async with search(door) as hits:
            found(hits, "a", 1.0)
            await anext(hits)
        assert door.taken_back == [(StopSearch(), hits)]
        found(hits, "b", 1.0)
        assert [hit async for hit in hits] == [], "nothing comes after the end"

    asyncio.run(main())


def test_the_end_of_the_node_ends_the_iteration() -> None:
    async def main() -> None:
        door = Door()
        hits = search(door)
        task = asyncio.create_task(anext(hits))
        await asyncio.sleep(0.01)
        assert list(door.remembered) == [hits]
        hits.ended()
        with pytest.raises(StopAsyncIteration):
            await task

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"confidence": 1.0}, "confidence=1.0: give a part of one"),
        ({"confidence": 0.0}, "confidence=0.0: give a part of one"),
        ({"limit": 0}, "limit=0: give 1 or more"),
        ({"within": 0.0}, "within=0.0: give seconds"),
        ({"queue_max": 0}, "a queue of 0 hits"),
    ],
)
def test_what_cannot_be_searched_for_is_refused_at_once(
    settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        search(Door(), **settings)


def test_a_mistake_in_the_query_is_told_at_once() -> None:
    settings: dict[str, Any] = {"confidence": 0.9, "limit": None, "within": 1.0, "queue_max": 1}
    with pytest.raises(UsageError, match=r"character 6 .* of which field"):
        Search(Door(), SPACE, "pm25 >3", Hit, **settings)
    with pytest.raises(UsageError, match="something to look for is missing"):
        Watch(Door(), SPACE, "", Sighting, queue_max=1)


# Watches


def test_a_watch_tells_what_comes_until_its_end() -> None:
    async def main() -> None:
        door = Door()
        async with Watch(door, SPACE, "speed:>25", Sighting, queue_max=10) as events:
            assert door.said == [(WatchDocuments("speed:>25"), events)]
            events.heard(Seen(document("a"), events))
            seen = await anext(events)
            assert (seen.name, seen.content, seen.gap_before) == ("a", {"title": "a"}, None)
            task = asyncio.create_task(anext(events))
            await asyncio.sleep(0.01)
            events.heard(Seen(document("b"), events))
            assert (await task).name == "b"
            events.heard(Seen(document("c"), events))
        assert door.taken_back == [(Unwatch(), events)]
        assert [event.name async for event in events] == ["c"], "what was there is told"

    asyncio.run(main())


def test_a_slow_watcher_loses_the_oldest_and_is_told_so() -> None:
    async def main() -> None:
        async with Watch(Door(), SPACE, "*", Sighting, queue_max=2) as events:
            for number in range(5):
                events.heard(Seen(document(f"d{number}"), events))
            first, second = await anext(events), await anext(events)
            assert (first.name, first.gap_before) == ("d3", Gap(3, "slow-consumer"))
            assert (second.name, second.gap_before) == ("d4", None)

    asyncio.run(main())


def test_a_watcher_is_told_that_something_may_be_missing() -> None:
    async def main() -> None:
        async with Watch(Door(), SPACE, "*", Sighting, queue_max=2) as events:
            events.heard(Seen(document("a"), events, gap_before=True))
            events.heard(Seen(document("b"), events))
            assert (await anext(events)).gap_before == Gap(None, "lost")
            assert (await anext(events)).gap_before is None
            # What is dropped takes its mark along; how many were dropped says more.
            for number in range(3):
                events.heard(Seen(document(f"d{number}"), events, gap_before=number == 0))
            assert (await anext(events)).gap_before == Gap(1, "slow-consumer")
            assert (await anext(events)).gap_before is None

    asyncio.run(main())


def test_a_watch_is_entered_once_and_before_it_is_read() -> None:
    async def main() -> None:
        watch = Watch(Door(), SPACE, "*", Sighting, queue_max=2)
        with pytest.raises(UsageError, match="enter it first: async with"):
            aiter(watch)
        async with watch:
            pass
        with pytest.raises(UsageError, match="was used before: make another"):
            await watch.__aenter__()

    asyncio.run(main())
