"""The format "shoal"; `pyspark_shoal` has it under the name that Spark looks for.

Writing is in `shoal_spark.sink`.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from shoal.base.errors import UsageError
from shoal_spark.source.options import parse_options
from shoal_spark.source.rows import ARROW_SCHEMA
from shoal_spark.source.search import SEARCH_SCHEMA, SearchReader, is_search, parse_search


class DefaultSource(DataSource):
    """`format("shoal")`, batch and streaming."""

    @classmethod
    def name(cls) -> str:
        return "shoal"

    def schema(self) -> StructType:
        return from_arrow_schema(SEARCH_SCHEMA if is_search(self.options) else ARROW_SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        from shoal_spark.source.readers import BatchReader

        self._check_schema(schema)
        if is_search(self.options):
            return SearchReader(parse_search(self.options))
        return BatchReader(parse_options(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from shoal_spark.source.readers import StreamReader

        if is_search(self.options):
            raise UsageError("a search is asked once: read it with spark.read")
        self._check_schema(schema)
        return StreamReader(parse_options(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from shoal_spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from shoal_spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)

    def _check_schema(self, schema: StructType) -> None:
        own = self.schema()
        if schema != own:
            columns = ", ".join(own.names)
            raise UsageError(f"the columns of shoal are always {columns}: leave `schema` out")
