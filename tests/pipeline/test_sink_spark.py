"""`format("shoal")` as users write with it: a DataFrame to a node, and to a far subscriber."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.outbox_thread import far_subscriber

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS = 1_200


def test_a_batch_write_is_published_once_and_what_does_not_fit_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    from pyspark_shoal import DefaultSource

    spark.dataSource.register(DefaultSource)

    def write(token: str, *columns: str) -> None:
        frame = spark.range(ROWS, numPartitions=2).selectExpr(*columns)
        given = {**options, "token": token}
        frame.write.format("shoal").mode("append").options(**given).save()

    with far_subscriber(tmp_path, [str(number) for number in range(ROWS)]) as options:
        token = options["token"]
        (tmp_path / "wrong").write_text("another token altogether")
        for source, column, complaint in (
            (token, "id as value", "has to be a string or binary"),
            ("a raw token", "string(id) as value", "never the token itself"),
            (f"file:{tmp_path / 'wrong'}", "string(id) as value", "not the outbox's token"),
            (token, "if(id = 7, null, string(id)) as value", "a row has no value"),
        ):
            with pytest.raises(PySparkException, match=complaint):
                write(source, column)
        write(token, "string(id) as value", "string(id % 7) as key")
