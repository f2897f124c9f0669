"""What an executor does: read its range of a log, page by page, from whoever has it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from shoal.base.errors import OffsetExpired
from shoal.pipeline.sources.client import LogServers, RowsDamaged
from shoal.pipeline.sources.options import SourceOptions
from shoal.pipeline.sources.ranges import LogRange, RowFilter, skipped
from shoal.pipeline.sources.rows import arrow_batch, message_fields
from shoal.pipeline.sources.stream_keys import Opener, StreamKey
from shoal.pipeline.sources.topic_rows import event_fields

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("shoal.pipeline")


def read_range(
    options: SourceOptions, part: LogRange, wanted: RowFilter, keys: Sequence[StreamKey] = ()
) -> Iterator[pa.RecordBatch]:
    """Batches of the rows of a range, the same whichever server gives them."""
    opener = Opener(options.stream, keys)
    fields_of = event_fields if options.is_topic else partial(message_fields, opener=opener)
    servers = LogServers(options)
    try:
        after = part.after
        while after < part.upto:
            try:
                page = servers.rows(part, after, wanted)
            except OffsetExpired as error:
                after = skipped(error, part, after, fail=options.fail_on_data_loss)
                continue
            except RowsDamaged as error:
                if options.fail_on_data_loss:
                    raise
                log.warning("%s; they are skipped", error)
                page = error.page
            if page.rows:
                yield arrow_batch(
                    options.stream,
                    part,
                    page.rows,
                    fail_fast=options.fail_fast,
                    fields_of=fields_of,
                )
            after = page.through
    finally:
        servers.close()
