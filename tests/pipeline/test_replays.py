"""What a sink and a lake know of a batch that comes again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shoal.base.gateway_messages import SOURCE_CHARS_MAX
from shoal_spark.batch_fingerprint import PlannedBatch, RowsDigest, planned_batch, shown_digest

SOURCE = '{"v":1,"stream":"0xab/city","p":{"0":{"log":"6f0c","seq":3}}}'


def note(checkpoint: Path, batch: int, *lines: str) -> None:
    """As Spark writes it before a batch runs."""
    (checkpoint / "offsets").mkdir(exist_ok=True)
    (checkpoint / "metadata").write_text('{"id":"q"}')
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(("v1", *lines)))


def test_rows_have_one_digest_however_tasks_divide_them() -> None:
    rows = [b"row %d" % number for number in range(50)] + [b"twice", b"twice"]
    random.Random(1).shuffle(rows)
    parts = [RowsDigest(), RowsDigest(), RowsDigest()]
    for number, row in enumerate(rows):
        parts[number % 3].add([row])
    whole = RowsDigest()
    for row in sorted(rows):
        whole.add([row])
    assert sum(part.rows for part in parts) == whole.rows == 52
    assert shown_digest(sum(part.total for part in parts)) == shown_digest(whole.total)
    once = RowsDigest()
    for row in set(rows):
        once.add([row])
    assert shown_digest(once.total) != shown_digest(whole.total)


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_plan_is_read_where_spark_writes_it(tmp_path: Path, scheme: str) -> None:
    note(tmp_path, 3, '{"batchTimestampMs":1}', SOURCE, "-")
    planned = planned_batch(f"{scheme}{tmp_path}/", "q", 3)
    assert planned.source == f"{SOURCE}\n-"
    assert len(planned.plan) == 64
    note(tmp_path, 3, '{"batchTimestampMs":2}', SOURCE, "-")
    again = planned_batch(f"{scheme}{tmp_path}", "q", 3)
    assert (again.source == planned.source, again.plan == planned.plan) == (True, False)


def test_long_offsets_are_compared_by_their_digest(tmp_path: Path) -> None:
    note(tmp_path, 0, "{}", "x" * (SOURCE_CHARS_MAX + 1))
    assert planned_batch(str(tmp_path), "q", 0).source.startswith("sha256:")


@pytest.mark.parametrize("checkpoint", [None, "", "/nowhere", "nothing://there", "s3://"])
def test_what_cannot_be_read_is_not_known(checkpoint: str | None) -> None:
    assert planned_batch(checkpoint, "q", 0) == PlannedBatch("", "")


def test_the_checkpoint_of_another_query_is_not_read(tmp_path: Path) -> None:
    """A bare path is one of another file system for Spark, perhaps."""
    note(tmp_path, 3, "{}", SOURCE)
    assert planned_batch(str(tmp_path), "q", 3).source == SOURCE
    assert planned_batch(str(tmp_path), "other", 3) == PlannedBatch()
    (tmp_path / "metadata").unlink()
    assert planned_batch(str(tmp_path), "q", 3) == PlannedBatch()


def test_half_a_plan_is_none(tmp_path: Path) -> None:
    note(tmp_path, 0)
    assert planned_batch(str(tmp_path), "q", 0) == PlannedBatch()
