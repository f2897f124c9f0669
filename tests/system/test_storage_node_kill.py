"""A storage node that is killed under load. The long form is campaigns/storage_node_kill.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaigns import storage_node_kill
from campaigns.kills import Failure
from shoal.identity import SystemEntropy
from shoal.storage.message_store.store import Store
from tests.storage.stage import message


def test_whatever_was_said_to_be_kept_is_there_after_five_kills(tmp_path: Path, seed: int) -> None:
    result = storage_node_kill.run(tmp_path, 5, seed)
    assert result["acknowledged"] > 50
    assert result["rows"] >= result["acknowledged"]


def test_the_campaign_notices_what_is_missing_and_what_has_moved(tmp_path: Path) -> None:
    sent = [message(number, stream=storage_node_kill.STREAM) for number in range(3)]
    with Store(tmp_path / "one", SystemEntropy()) as store:
        store.append(sent[:2], 1)
    ledger = storage_node_kill.Ledger()
    ledger.check(tmp_path / "one", {sent[0].id, sent[1].id})
    with pytest.raises(Failure, match="1 acknowledged messages are missing"):
        ledger.check(tmp_path / "one", {sent[0].id, sent[2].id})
    ledger.rows.reverse()
    with pytest.raises(Failure, match="not what they were"):
        ledger.check(tmp_path / "one", set())
