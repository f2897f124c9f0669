"""Compaction, forgetting and deleting, beside whoever reads and writes."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.base.errors import NotFound, UsageError
from shoal_spark.commands import lake_upkeep
from shoal_spark.lake import delta_table, landing
from shoal_spark.lake.delta_table import LakeTable, keep_up
from shoal_spark.lake.landing import Lake
from tests.pipeline.lake_frames import ArrowFrame

BATCHES = 4


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A table of small files, the last of which know more fields."""
    lake = Lake(str(tmp_path / "lake"))
    for batch in range(BATCHES):
        contents = [{"n": batch, **({"late": [{"x": 1}]} if batch == 3 else {})}] * 3
        land(lake, contents, batch)
    return lake


def land(lake: Lake, contents: list[Any], batch: int) -> None:
    frame: Any = ArrowFrame(contents, first_seq=1 + 3 * batch, tasks=1)
    landing.land(frame, lake, "q", batch)


def rows(lake: Lake, version: int | None = None) -> list[dict[str, Any]]:
    table = LakeTable.open(lake.table, version).delta.to_pyarrow_table()
    return sorted(table.to_pylist(), key=lambda row: int(row["seq"]))


def on_disk(lake: Lake) -> list[Path]:
    return sorted(Path(lake.table).rglob("part-*"))


def test_small_files_become_one_a_day(lake: Lake) -> None:
    before, version = rows(lake), LakeTable.open(lake.table).delta.version()
    told = keep_up(lake.table)
    assert (told.files_before, told.files_after, told.deleted) == (2 * BATCHES, 2, 0)
    assert rows(lake) == before
    assert rows(lake, version) == before, "whoever reads goes on with the files that it knows"
    assert LakeTable.open(lake.table).last_batch("q") == BATCHES - 1, "and no batch is forgotten"
    land(lake, [{"n": 9}] * 3, BATCHES)
    assert len(rows(lake)) == len(before) + 3
    assert keep_up(lake.table).files_after == 2


def test_files_are_deleted_when_nobody_reads_them(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows(lake)
    orphans = [Path(lake.table) / "date=2026-11-16" / f"part-{age}.parquet" for age in "01"]
    for orphan in orphans:
        orphan.write_bytes(b"of a task that was killed")
    two_hours_ago_s = orphans[0].stat().st_mtime - 7200
    os.utime(orphans[0], (two_hours_ago_s, two_hours_ago_s))
    assert keep_up(lake.table, keep=timedelta(hours=1)).deleted == 1
    assert not orphans[0].exists()
    assert orphans[1].exists(), "maybe of a batch that is not committed yet"
    assert len(on_disk(lake)) == 2 * BATCHES + 2 + 1
    monkeypatch.setattr(delta_table, "KEEP_MIN", timedelta(0))
    assert keep_up(lake.table, keep=timedelta(0)).deleted == 2 * BATCHES + 1
    assert len(on_disk(lake)) == 2
    assert rows(lake) == before


def test_old_days_are_forgotten(lake: Lake) -> None:
    version = LakeTable.open(lake.table).delta.version()
    keep_up(lake.table, forget_before=date(2026, 11, 17))
    assert {row["date"] for row in rows(lake)} == {date(2026, 11, 17)}
    assert len(rows(lake)) == BATCHES
    assert len(rows(lake, version)) == 3 * BATCHES, "for now the old version is there"


def test_a_batch_is_landed_while_files_are_compacted(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = landing._write

    def be_late(frame: Any, plan: Any) -> Any:
        written = write(frame, plan)
        keep_up(lake.table)
        return written

    monkeypatch.setattr(landing, "_write", be_late)
    land(lake, [{"n": 9}] * 3, BATCHES)
    assert [row["seq"] for row in rows(lake)] == list(range(1, 3 * BATCHES + 4))


def test_the_command_keeps_up_both_tables(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    land(lake, [b"bad"], BATCHES)
    lake_upkeep(lake.table, keep_hours=24, forget_days=None, json=True)
    told = [msgspec.json.decode(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["table"] for line in told] == [lake.table, lake.quarantine]
    assert [line["files_after"] for line in told] == [2, 1]
    days = (datetime.now(UTC).date() - date(2026, 11, 17)).days
    lake_upkeep(lake.table, forget_days=days + 1)
    assert f"{lake.table}: 2 files are 2 now" in capsys.readouterr().out
    lake_upkeep(lake.table, forget_days=days)
    assert f"{lake.table}: 2 files are 1 now" in capsys.readouterr().out


def test_a_batch_without_an_end_does_not_lose_its_files(lake: Lake) -> None:
    with pytest.raises(UsageError, match="keep them for 1:00:00 at least"):
        keep_up(lake.table, keep=timedelta(minutes=5))
    with pytest.raises(NotFound, match="no Delta table"):
        keep_up(lake.table + "2")


def test_batches_are_remembered_beyond_a_checkpoint_of_delta(lake: Lake) -> None:
    LakeTable.open(lake.table).delta.create_checkpoint()
    for file in Path(lake.table).glob("_delta_log/*.json"):
        if int(file.stem) < LakeTable.open(lake.table).delta.version():
            file.unlink()  # as Delta does when they are a month old
    assert LakeTable.open(lake.table).last_batch("q") == BATCHES - 1
