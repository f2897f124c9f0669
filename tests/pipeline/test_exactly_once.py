"""Exactly once, from a stream through windows into another stream, whoever dies and whenever. With
more messages, and kills at random, it is campaigns/spark_exactly_once.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaigns.spark_driver import AFTER_PUBLISH, IN_SEAL, ZOMBIE
from campaigns.spark_exactly_once import run
from campaigns.spark_lives import Life, Sizes

pytestmark = pytest.mark.spark

SIZES = Sizes(messages=20_000, batches=6)
LIVES = (
    # Windows begin to close in the third batch, so that there is something to lose. It stands still
    # where others die after they have staged.
    Life(point=ZOMBIE, batches=2),
    Life(point=IN_SEAL, subscriber=True),
    Life(point=AFTER_PUBLISH, storage=0.0),
    Life(publisher=0.0),
)


def test_every_row_arrives_once_whoever_dies_and_whenever(tmp_path: Path) -> None:
    result = run(tmp_path, SIZES, LIVES)
    kinds = {IN_SEAL, AFTER_PUBLISH, ZOMBIE, "storage", "publisher", "subscriber"}
    assert result["kills"] == dict.fromkeys(sorted(kinds), 1)
    assert (result["rows"], result["lost"], result["double"]) == (2_000, 0, 0)
    assert result["drivers"] == len(LIVES)
