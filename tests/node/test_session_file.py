"""The number of a session is kept beside the keystore: each start has a higher one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.session_record import SessionRecord, begin_session
from shoal.node.keys.key_lock import HeldSession, SessionState, read_session, session_path

KEY = PrivateKey.generate(SeededEntropy("session file"))
NOW_MS = 1_767_225_600_000
HOUR_MS = 3_600_000


def start(keystore: Path | None, now_ms: int, seed: str = "s") -> SessionRecord:
    return HeldSession(KEY, SeededEntropy(seed), now_ms, keystore).record


def test_each_start_is_above_the_last_one_also_after_the_clock_was_set_back(tmp_path: Path) -> None:
    keystore = tmp_path / "node.key"
    clocks = (NOW_MS, NOW_MS + HOUR_MS, NOW_MS - HOUR_MS, 0, NOW_MS)
    numbers = [start(keystore, now_ms).number for now_ms in clocks]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == len(numbers)
    state = read_session(keystore)
    assert state is not None
    assert (state.number, state.replaced_by) == (numbers[-1], 0)
    assert session_path(keystore).stat().st_mode & 0o777 == 0o600


def test_of_two_copies_the_one_that_starts_later_is_newer_and_both_may_start_anew(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    start(one / "node.key", NOW_MS)
    shutil.copytree(one, two)
    first = start(one / "node.key", NOW_MS + 1000, "a")
    second = start(two / "node.key", NOW_MS + 2000, "b")
    assert second.number > first.number
    # The first one is told, remembers it, and is the newer one after its next start, whatever its
    # clock says.
    held = HeldSession(KEY, SeededEntropy("c"), NOW_MS + 1500, one / "node.key")
    held.replaced(second)
    state = read_session(one / "node.key")
    assert state is not None
    assert state.replaced_by == second.number
    assert start(one / "node.key", 0, "d").number > second.number
    assert read_session(one / "node.key") != state


def test_without_a_keystore_nothing_is_kept(tmp_path: Path) -> None:
    record = start(None, NOW_MS)
    assert record.is_signed_by(KEY.address)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_makes_no_sense_or_cannot_be_written_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keystore = tmp_path / "node.key"
    for text in (b"", b"{}", b'{"format":99,"number":1}', b'{"format":1,"number":-1}'):
        session_path(keystore).write_bytes(text)
        session_path(keystore).chmod(0o600)
        assert read_session(keystore) is None
        assert start(keystore, NOW_MS).number >> 20 == NOW_MS
    assert isinstance(read_session(keystore), SessionState)
    assert start(tmp_path / "gone" / "node.key", NOW_MS).number >> 20 == NOW_MS
    assert "only the clock tells" in caplog.text


def test_a_session_that_is_out_of_reach_is_not_begun_below_it() -> None:
    ahead = begin_session(KEY, SeededEntropy("ahead"), NOW_MS + 30 * 24 * HOUR_MS)
    assert begin_session(KEY, SeededEntropy("x"), NOW_MS, ahead.number).number > ahead.number
