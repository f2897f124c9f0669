"""Dumps of comments become a workload, and what is none is counted and kept."""

from __future__ import annotations

import bz2
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import msgspec
import pyarrow.parquet as pq
import pytest

from shoal.base.errors import NotFound, UsageError
from shoal_lab.commands.reddit import reddit
from shoal_lab.experiments.topics.workload import load_workload
from shoal_lab.scenarios.reddit_workload import (
    RedditSettings,
    RedditStatistics,
    ingest_reddit,
    pick_subreddits,
    popularity_of,
)
from shoal_spark import session
from tests.pipeline.reddit_dumps import as_lines, comment, pack_zst

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NODES, EVENTS = 8, 90
SETTINGS = RedditSettings(topics=2, events=EVENTS, nodes=NODES, seed=3)
BAD = [
    b'{"id": "cut',
    b"[1, 2]",
    b"null",
    {"id": "x", "subreddit": "politics", "created_utc": 1, "body": ""},
    comment(1, id="y", created_utc="yesterday"),
]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two months, which have the last day of the first in common."""
    folder = tmp_path_factory.mktemp("dumps")
    first = [comment(number) for number in range(120)]
    second = [comment(number) for number in range(100, 200)]
    nobody = [comment(number, id=f"d{number}", author="[deleted]") for number in range(7)]
    zst, bz = folder / "RC_2007-10.zst", folder / "RC_2007-11.bz2"
    zst.write_bytes(pack_zst(as_lines(*first, *BAD, b"", b"   ")))
    bz.write_bytes(bz2.compress(as_lines(*second, *nobody, BAD[0])))
    return [str(zst), str(bz)]


@pytest.fixture(scope="module")
def ingested(
    spark: SparkSession, dumps: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, RedditStatistics]:
    out = tmp_path_factory.mktemp("ingested") / "reddit"
    return out, ingest_reddit(spark, dumps, str(out), SETTINGS)


@pytest.mark.spark
def test_dumps_become_tables_of_topics(
    ingested: tuple[Path, RedditStatistics], dumps: list[str]
) -> None:
    out, found = ingested
    assert found.lines == 120 + len(BAD) + 100 + 7 + 1
    assert found.bad == {"no JSON object": 4, "no author": 1, "created_utc is no time": 1}
    assert (found.deleted, found.comments, found.subreddits) == (7, 200, 3)
    assert [topic.name for topic in found.per_topic] == ["politics", "programming"]
    politics, programming = (topic.events for topic in found.per_topic)
    assert politics + programming == found.events == EVENTS
    assert politics > 1.3 * programming, "about the same part of each: there are twice as many"
    assert found.size_bytes.max == 10, "é has two bytes"
    assert found.popularity is None
    file = (out / "statistics.json").read_bytes()
    assert msgspec.json.decode(file, type=RedditStatistics) == found
    quarantined = pq.read_table(out / "quarantine.parquet").to_pylist()
    assert Counter(row["reason"] for row in quarantined) == found.bad
    assert {Path(row["file"]).name for row in quarantined} == {Path(dump).name for dump in dumps}
    assert sum(row["line"] == '{"id": "cut' for row in quarantined) == 2


@pytest.mark.spark
def test_the_lab_plays_what_was_said(ingested: tuple[Path, RedditStatistics]) -> None:
    out, found = ingested
    workload = load_workload(
        str(out), Random(1), nodes=NODES, events=EVENTS, interval_ms=200, injectors=1
    )
    assert (workload.subscriptions, workload.deliveries) == (found.subscriptions, found.deliveries)
    readers = [len(topic.readers) for topic in workload.topics]
    assert readers == [topic.subscriptions for topic in found.per_topic]
    ids = pq.read_table(out / "events.parquet")["id"].to_pylist()
    assert ids == sorted(ids)
    assert len(set(ids)) == EVENTS
    of_user: dict[str, set[int]] = {}
    for id, event in zip(ids, workload.events, strict=True):
        said = comment(int(id[1:]))
        assert event.size_bytes == len(said["body"]) * 2
        assert found.per_topic[event.topic].name == said["subreddit"]
        assert event.author in workload.topics[event.topic].readers
        of_user.setdefault(said["author"], set()).add(event.author)
    assert all(len(nodes) == 1 for nodes in of_user.values()), "a user stays where it is"


@pytest.mark.spark
def test_a_sample_does_not_depend_on_how_files_are_cut(
    spark: SparkSession,
    ingested: tuple[Path, RedditStatistics],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The same comments in one plain file, in another order.
    records = [comment(number) for number in range(200)]
    Random(1).shuffle(records)
    plain = tmp_path / "all [1].jsonl"
    plain.write_bytes(as_lines(*records))
    monkeypatch.setattr(session, "spark_session", lambda settings: nullcontext(spark))
    reddit([str(plain)], str(tmp_path / "out"), topics=2, events=EVENTS, nodes=NODES, seed=3)
    said = capsys.readouterr().out
    out, found = ingested
    assert "200 lines, 200 comments in 3 subreddits; 0 of nobody; quarantined: none" in said
    assert f"subscriptions      {found.subscriptions:>12}  (paper: 762)" in said
    assert f"--set nodes={NODES} --set messages={EVENTS}" in said
    events = [pq.read_table(folder / "events.parquet") for folder in (out, tmp_path / "out")]
    assert events[0].equals(events[1])
    with pytest.raises(UsageError, match="is there already"):
        ingest_reddit(spark, [str(plain)], str(out), SETTINGS)
    with pytest.raises(NotFound, match="no file nowhere"):
        ingest_reddit(spark, ["nowhere.zst"], str(tmp_path / "new"), SETTINGS)


def test_subreddits_are_the_largest_or_any() -> None:
    counts = {f"r{number:02}": 100 - number // 2 for number in range(30)}
    assert pick_subreddits(counts, 3, "largest", 1) == ["r00", "r01", "r02"]
    drawn = [pick_subreddits(counts, 5, "random", seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 5
    assert sorted(pick_subreddits(counts, 99, "random", 1)) == sorted(counts)


def test_the_exponent_of_a_power_law() -> None:
    assert popularity_of([round(1e9 / rank**2.8) for rank in range(1, 24)]) == pytest.approx(2.8)
    assert popularity_of([5, 5, 5]) == pytest.approx(0)
    assert popularity_of([5, 2]) is None
