"""Filters of a batch read that servers apply: message time, ingest time, publisher.

Spark applies all of them again to what comes, so a server may let more through: times go to it in
whole milliseconds, and a record that it knows under one publisher may turn out to be forged.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)

from shoal.base.errors import UsageError
from shoal.base.ids import parse_node_id, show_node_id
from shoal.pipeline.sources.ranges import RowFilter

_EPOCH = datetime.fromtimestamp(0, UTC)
_FROM = (EqualTo, GreaterThan, GreaterThanOrEqual)
_TO = (EqualTo, LessThan, LessThanOrEqual)


class Pushed(msgspec.Struct, frozen=True, kw_only=True):
    """What servers leave out."""

    wanted: RowFilter = RowFilter()
    ingest_from_ms: int | None = None
    ingest_to_ms: int | None = None


def pushed(filters: Iterable[Filter], *, topic: bool = False) -> Pushed:
    """What can be pushed of some filters, all of which hold. Servers know the events of a topic by
    their authors, not by who published them."""
    bounds: dict[tuple[str, bool], int] = {}
    publisher = None
    for one in filters:
        column = ".".join(getattr(one, "attribute", ()))
        value = getattr(one, "value", None)
        if column == "publisher" and isinstance(one, EqualTo) and not topic:
            publisher = _publisher(value) or publisher
        elif column in ("timestamp", "ingest_timestamp"):
            when_ms = _ms(value)
            if when_ms is None:
                continue
            if isinstance(one, _FROM):
                key = column, True
                bounds[key] = max(when_ms, bounds.get(key, when_ms))
            if isinstance(one, _TO):
                key = column, False
                bounds[key] = min(when_ms, bounds.get(key, when_ms))
    return Pushed(
        wanted=RowFilter(
            from_ms=bounds.get(("timestamp", True)),
            to_ms=bounds.get(("timestamp", False)),
            publisher=publisher,
        ),
        ingest_from_ms=bounds.get(("ingest_timestamp", True)),
        ingest_to_ms=bounds.get(("ingest_timestamp", False)),
    )


def _publisher(value: Any) -> str | None:
    """As the column has it; another spelling matches no row, which Spark finds out itself."""
    try:
        node = show_node_id(parse_node_id(value)) if isinstance(value, str) else None
    except UsageError:
        return None
    return node if node == value else None


def _ms(value: Any) -> int | None:
    """Rounded down; both ends are included."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return max(0, (value - _EPOCH) // timedelta(milliseconds=1))
