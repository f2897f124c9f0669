"""Storage nodes that fail under readers. The long form is campaigns/storage_truth.py."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from campaigns import storage_truth
from campaigns.kills import Failure
from campaigns.storage_truth import Ledger, Settings
from shoal.base.ids import MessageId, NodeId, StreamId

STREAM = StreamId("0x" + "5e" * 20 + "/truth")


def test_no_complete_answer_lacks_a_message(tmp_path: Path, seed: int) -> None:
    settings = Settings(
        streams=8,
        messages=160,
        publishers=4,
        faults=3,
        heal_s=15,
        seed=Random(seed).getrandbits(30),
    )
    result = storage_truth.run(tmp_path, settings)
    assert result["acknowledged"] > 100
    assert result["read_complete"] > 100


def test_the_campaign_notices_an_answer_that_lacks_one() -> None:
    said = {MessageId(STREAM, 0, number, 0, NodeId(bytes(20)), "chain") for number in range(3)}
    Ledger().check(STREAM, said, said)
    with pytest.raises(Failure, match="1 of 3 acknowledged messages are missing"):
        Ledger().check(STREAM, said, set(list(said)[1:]))
