"""A store that is killed while it writes. The long form is campaigns/storage_kill.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaigns import storage_kill
from campaigns.kills import Failure


def test_nothing_acknowledged_is_missing_after_twenty_kills(tmp_path: Path, seed: int) -> None:
    result = storage_kill.run(tmp_path / "a", 20, seed)
    assert result["acknowledged"] > 500
    assert result["killed_in_a_call"] > 5


def test_the_campaign_notices_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checks, on a writer that says more than it did."""
    ack = storage_kill.Ack(1, 0, [(1, 1)], 0)
    monkeypatch.setattr(storage_kill, "killed_writer", lambda *_: ([ack], False))
    with pytest.raises(Failure, match="after kill 1 of --kills 1 --seed 9: row 1 of"):
        storage_kill.run(tmp_path / "a", 1, 9)
