"""Batches get into Delta tables exactly once, whoever dies, comes back or comes twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shoal.base.errors import ConfigError, NotFound, UsageError
from shoal_spark.lake import landing, parquet_writer
from shoal_spark.lake.delta_table import LakeBusy, LakeTable, Refused
from shoal_spark.lake.landing import Lake, Landed, MissingBatches, NotAReplay
from tests.pipeline.lake_frames import FIRST, STREAM, ArrowFrame


class Killed(BaseException):
    """The process ended here."""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "a lake"))


def land(lake: Lake, contents: list[Any], batch: int = 0, query: str = "q", **more: Any) -> Landed:
    frame: Any = ArrowFrame(contents, **more)
    return landing.land(frame, lake, query, batch)


def rows(uri: str) -> list[dict[str, Any]]:
    table = LakeTable.open(uri).delta.to_pyarrow_table()
    return sorted(table.to_pylist(), key=lambda row: int(row["seq"]))


def data(lake: Lake) -> list[Any]:
    return [row["data"] for row in rows(lake.table)]


def quarantined(lake: Lake) -> list[int]:
    return [row["seq"] for row in rows(lake.quarantine)]


def committed(lake: Lake) -> list[int]:
    return [LakeTable.open(uri).delta.version() for uri in (lake.table, lake.quarantine)]


def test_a_record_keeps_where_it_is_from(lake: Lake) -> None:
    told = land(lake, [{"speed": 8.5}, {"speed": 9}, {"speed": 1}], first_seq=7)
    assert (told.rows, told.quarantined, told.replayed) == (3, 0, False)
    first, _, last = rows(lake.table)
    assert first == {
        "stream": STREAM, "partition": 0, "log": "6f1c", "seq": 7, "timestamp": FIRST,
        "ingest_timestamp": FIRST + timedelta(seconds=1), "sequence": 0,
        "publisher": "0xbb", "chain": "c", "key": None, "data": {"speed": 8.5},
        "date": FIRST.date(),
    }  # fmt: skip
    assert last["date"].isoformat() == "2026-11-17", "the third is after midnight"
    assert told.files == 2, "one for each task and day"
    assert data(lake) == [{"speed": 8.5}, {"speed": 9.0}, {"speed": 1.0}]


def test_bad_records_keep_their_bytes_and_a_reason(lake: Lake) -> None:
    told = land(lake, [{"x": 1}, b"{no json", ValueError("wrong key"), {"x": 2}, {"x": "three"}])
    assert (told.rows, told.quarantined) == (2, 3)
    bad = rows(lake.quarantine)
    assert [row["content"] for row in bad] == [b"{no json", b"\x00?", b'{"x":"three"}']
    assert bad[0]["reason"].startswith("no JSON")
    assert bad[1]["reason"] == "wrong key"
    assert bad[2]["reason"] == 'x: "three" is of type string, the column of type bigint'


def test_new_fields_are_added_and_old_rows_have_none(lake: Lake) -> None:
    land(lake, [{"a": 1}])
    told = land(lake, [{"a": 2, "b": {"c": "x"}}, {"B": {"d": [1.5]}}], 1, first_seq=2)
    assert (told.rows, told.quarantined) == (2, 0)
    assert data(lake) == [
        {"a": 1, "B": None},
        {"a": 2, "B": {"c": "x", "d": None}},
        {"a": None, "B": {"c": None, "d": [1.5]}},
    ]


def test_types_never_change(lake: Lake) -> None:
    land(lake, [{"a": 1}])
    told = land(lake, [{"a": 1.5}, {"a": 2.0}, {"a": "2", "new": 1}], 1, first_seq=2)
    assert (told.rows, told.quarantined) == (1, 2)
    assert data(lake) == [{"a": 1}, {"a": 2}], "nor does a bad record add a column"


def test_a_schema_that_is_given_wins_over_the_first_batch(tmp_path: Path) -> None:
    shape = pa.struct([("a", pa.float64())])
    lake = Lake(str(tmp_path / "t"), shape)
    land(lake, [{"a": 1, "b": "x"}])
    land(lake, [{"a": 1.5}], 1, first_seq=2)
    assert data(lake) == [{"a": 1.0, "b": "x"}, {"a": 1.5, "b": None}]
    before = committed(lake)
    with pytest.raises(ConfigError, match="a is double, and a type cannot change"):
        land(Lake(lake.table, pa.struct([("a", pa.int64())])), [{"a": 1}], 2)
    assert committed(lake) == before


def test_records_without_fields(lake: Lake) -> None:
    assert land(lake, [{}, {"a": None}]).rows == 2
    assert len(rows(lake.table)) == 2
    land(lake, [{"a": 1}, {}], 1, first_seq=3)
    assert data(lake) == [None, None, {"a": 1}, {"a": None}]


def test_a_batch_that_comes_again_writes_nothing(lake: Lake) -> None:
    contents = [{"a": 1}, b"bad", {"a": 2}]
    land(lake, contents)
    before = committed(lake)
    assert land(lake, contents).replayed
    assert land(lake, contents, batch=0, query="other").rows == 2, "another query is another matter"
    land(lake, contents, batch=1)
    with pytest.raises(NotAReplay, match="older than the last one"):
        land(lake, contents, batch=0)  # a zombie is some batches behind
    assert committed(lake) == [version + 2 for version in before]


def test_a_restored_checkpoint_loses_no_row_silently(lake: Lake) -> None:
    """Spark replays its last batch only: any other batch under a known number is an error."""
    contents = [{"a": 1}, {"a": 2}, {"a": 3}]
    for batch in range(3):
        land(lake, contents, batch, first_seq=1 + 3 * batch)
    before = rows(lake.table)
    with pytest.raises(NotAReplay, match=r"batch 1 .*older .* is 2.*new checkpoint"):
        land(lake, contents, 1, first_seq=10)
    with pytest.raises(NotAReplay, match=r"batch 2 .*with other rows.*Nothing of it was landed"):
        land(lake, contents, 2, first_seq=10)
    with pytest.raises(NotAReplay, match="with other rows"):
        land(lake, contents[:2], 2, first_seq=7)
    with pytest.raises(NotAReplay, match="with other rows"):
        land(lake, [{"a": 1}, {"a": 2}, {"a": 4}], 2, first_seq=7)
    assert land(lake, contents, 2, first_seq=7, tasks=3).replayed, "split otherwise"
    assert rows(lake.table) == before
    assert land(lake, contents, 3, first_seq=10).rows == 3


def test_a_replay_may_open_what_could_not_be_decrypted(lake: Lake) -> None:
    land(lake, [{"a": 1}, ValueError("no key")])
    assert land(lake, [{"a": 1}, {"a": 2}]).replayed
    with pytest.raises(NotAReplay, match="with other rows"):
        land(lake, [{"a": 1}, {"a": 2}], first_seq=2)
    assert (data(lake), quarantined(lake)) == ([{"a": 1}], [2])


def test_the_plan_of_spark_tells_a_replay(lake: Lake) -> None:
    """Retention may have taken rows meanwhile, and the same plan is the same batch."""
    contents = [{"a": 1}, {"a": 2}, b"bad"]
    for batch in range(2):
        frame: Any = ArrowFrame(contents, 1 + 3 * batch)
        landing._land(frame, lake, "q", batch, plan=7 + batch, follows=True)
    fewer: Any = ArrowFrame(contents[1:], 5)
    assert landing._land(fewer, lake, "q", 1, plan=8, follows=True).replayed
    with pytest.raises(NotAReplay, match="with other rows"):
        landing._land(fewer, lake, "q", 1, plan=9, follows=True)
    with pytest.raises(MissingBatches, match=r"batch 3 .*its batches up to 1"):
        landing._land(fewer, lake, "q", 3, plan=9, follows=True)
    with pytest.raises(MissingBatches, match=r"batch 3 .*no batch of it.*new checkpoint"):
        landing._land(fewer, Lake(lake.table + "2"), "q", 3, plan=9, follows=True)
    assert (len(data(lake)), quarantined(lake)) == (4, [3, 6])


def test_a_driver_that_dies_between_the_two_tables(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # New fields and a tie of types: what was decided must be decided again.
    contents = [{"a": 1}, {"a": "x"}, {"b": 1}, {"b": {"c": 1}}, b"bad"]
    commit = LakeTable.commit

    def die_after_the_first(self: LakeTable, *args: Any) -> None:
        commit(self, *args)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "commit", die_after_the_first)
        with pytest.raises(Killed):
            land(lake, contents)
    assert [row["seq"] for row in rows(lake.table)] == [1, 3]
    assert quarantined(lake) == []
    # Meanwhile the table grows, by another query.
    land(lake, [{"d": 1}], query="other", first_seq=9)
    told = land(lake, contents)
    assert (told.rows, told.quarantined, told.replayed) == (0, 3, True)
    assert [row["seq"] for row in rows(lake.table)] == [1, 3, 9]
    assert quarantined(lake) == [2, 4, 5]
    assert land(lake, contents) == Landed(batch=0, replayed=True)


def test_a_batch_of_bad_records_alone_is_noted(lake: Lake) -> None:
    land(lake, [b"bad"])
    assert LakeTable.open(lake.table).last_batch("q") == 0
    before = committed(lake)
    assert land(lake, [b"bad"]).replayed
    assert committed(lake) == before


def test_a_zombie_commits_while_its_successor_writes(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = [{"a": 1}, {"a": 2}, b"bad"]
    land(lake, contents)
    write = landing._write

    def be_late(frame: Any, plan: Any) -> Any:
        written = write(frame, plan)
        monkeypatch.setattr(landing, "_write", write)
        assert land(lake, contents, batch=1, first_seq=4).rows == 2  # the zombie
        return written

    monkeypatch.setattr(landing, "_write", be_late)
    told = land(lake, contents, batch=1, first_seq=4)
    assert told.replayed
    assert told.rows == told.quarantined == 0
    assert [row["seq"] for row in rows(lake.table)] == [1, 2, 4, 5]
    assert quarantined(lake) == [3, 6]


def test_eight_drivers_begin_at_once(tmp_path: Path) -> None:
    """None makes the table over another one's, and all want to land the same."""
    contents = [{"a": 1}, b"bad", {"b": "x"}]
    for attempt in range(4):
        lake = Lake(str(tmp_path / str(attempt)))
        with ThreadPoolExecutor(8) as drivers:
            told = list(drivers.map(lambda _, lake=lake: land(lake, contents), range(8)))
        assert sum(landed.rows for landed in told) == 2
        assert [row["seq"] for row in rows(lake.table)] == [1, 3]
        assert quarantined(lake) == [2]
        made = [entry["operation"] for entry in LakeTable.open(lake.table).delta.history()]
        assert made.count("CREATE TABLE") == 1


def test_a_table_that_grows_meanwhile(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    land(lake, [{"a": 1}])
    write = landing._write

    def be_late(frame: Any, plan: Any) -> Any:
        written = write(frame, plan)
        monkeypatch.setattr(landing, "_write", write)
        land(lake, [{"a": 1, "b": "text"}], query="other", first_seq=100)
        return written

    monkeypatch.setattr(landing, "_write", be_late)
    told = land(lake, [{"a": 2, "b": 5}, {"a": 3}], batch=1, first_seq=2)
    assert (told.rows, told.quarantined) == (1, 1), "the other one's type counts"
    assert [row["seq"] for row in rows(lake.table)] == [1, 3, 100]


def test_whoever_never_gets_through_says_so(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise Refused("busy")

    monkeypatch.setattr(LakeTable, "commit", refuse)
    with pytest.raises(LakeBusy, match="20 attempts"):
        land(lake, [{"a": 1}])


def test_a_task_that_fails_leaves_nothing_that_counts(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(lake, [{"a": 1}])
    finish = parquet_writer.TableFiles.finish
    monkeypatch.setattr(parquet_writer.TableFiles, "finish", lambda files: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        land(lake, [{"a": 2}] * 9, batch=1)
    monkeypatch.setattr(parquet_writer.TableFiles, "finish", finish)
    assert len(list(Path(lake.table).rglob("part-*"))) == 1
    assert len(rows(lake.table)) == 1
    assert land(lake, [{"a": 2}] * 9, batch=1).rows == 9


def test_a_publisher_of_many_days_has_few_files_open(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_writer, "OPEN_MAX", 1)
    monkeypatch.setattr(parquet_writer, "GROUP_ROWS", 2)
    told = land(lake, [{"a": n} for n in range(12)], tasks=1)
    assert [row["data"]["a"] for row in rows(lake.table)] == list(range(12))
    # Batches of three: the second of them begins before midnight and ends after it.
    assert told.files == 2
    stats = pa.table(LakeTable.open(lake.table).delta.get_add_actions(flatten=True)).to_pylist()
    assert sorted(stat["num_records"] for stat in stats) == [2, 10]
    assert {stat["min.stream"] for stat in stats} == {STREAM}
    assert sorted(stat["max.seq"] for stat in stats) == [2, 12]


def test_other_tables_and_frames_are_refused(tmp_path: Path, lake: Lake) -> None:
    with pytest.raises(NotFound, match="no Delta table at"):
        LakeTable.open(str(tmp_path / "nothing"))
    land(lake, [{"a": 1}])
    with pytest.raises(UsageError, match="version 99 cannot be opened"):
        LakeTable.open(lake.table, version=99)
    with pytest.raises(ConfigError, match="a table of something else"):
        LakeTable.open_or_create(lake.table, pa.schema([("x", pa.string())]))
    frame: Any = ArrowFrame([{"a": 1}]).select("stream", "content")
    with pytest.raises(UsageError, match="no column partition, log, seq"):
        landing.land(frame, lake, "q", 1)
