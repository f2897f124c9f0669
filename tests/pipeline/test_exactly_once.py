"""Exactly once, from a stream through windows into another stream, whoever dies and whenever. With
more messages, and kills at random, it is campaigns/spark_exactly_once.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaigns.spark_driver import (
    AFTER_PUBLISH,
    AGAIN,
    IN_SEAL,
    TWICE,
    WRITE_ROWS,
    ZOMBIE,
)
from campaigns.spark_exactly_once import RESTORED, run
from campaigns.spark_lives import Life, Sizes

pytestmark = pytest.mark.spark

SIZES = Sizes(messages=20_000, batches=6)
LIVES = (
    # Windows begin to close in the third batch, so that there is something to lose. It stands still
    # where others die after they have staged.
    Life(point=ZOMBIE, batches=2, attempts=TWICE),
    Life(point=IN_SEAL, subscriber=True, attempts=AGAIN),
    Life(restored=True),
    Life(point=AFTER_PUBLISH, storage=0.0),
    # Two other jobs do not fit into the outbox at once, and a third one fails.
    Life(publisher=0.0, writes=True),
)


def test_every_row_arrives_once_whoever_dies_and_whenever(tmp_path: Path) -> None:
    result = run(tmp_path, SIZES, LIVES)
    points = {IN_SEAL, AFTER_PUBLISH, ZOMBIE, RESTORED}
    kinds = {*points, "storage", "publisher", "subscriber"}
    assert result["kills"] == {**dict.fromkeys(kinds, 1), "writes beside": 3}
    assert (result["rows"], result["lost"], result["double"]) == (2_000 + 2 * WRITE_ROWS, 0, 0)
    assert result["drivers"] == len(LIVES)
