"""The file under the keystore: private, whole or absent, never overwritten."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.base.errors import KeystoreError
from shoal.identity import ScryptCost, SystemEntropy, create_keystore, keystore, open_keystore
from shoal.identity.keystore import create_private, read_private

from .strategies import private_key

pytestmark = pytest.mark.skipif(os.name != "posix", reason="mode bits and directory syncs")

DATA = b"sealed" * 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "key.json"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_was_created_can_be_read(path: Path) -> None:
    create_private(path, DATA, "1")
    assert read_private(path, len(DATA)) == DATA
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_file_is_private_from_the_start(
    path: Path, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    fsync = os.fsync

    def spy(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    before = os.umask(umask)
    try:
        create_private(path, DATA, "1")
    finally:
        os.umask(before)
    assert seen == [0o600], "the temporary file"
    assert mode(path) == 0o600


@pytest.mark.parametrize("open_to", [0o640, 0o604, 0o644, 0o660, 0o601, 0o620, 0o666])
def test_a_file_open_to_others_is_refused_with_the_remedy(path: Path, open_to: int) -> None:
    create_private(path, DATA, "1")
    path.chmod(open_to)
    with pytest.raises(KeystoreError) as caught:
        read_private(path, len(DATA))
    assert f"keystore {path} is open to others (mode {open_to:04o})" in str(caught.value)
    assert f"chmod 600 {path}" in str(caught.value)
    path.chmod(0o600)
    assert read_private(path, len(DATA)) == DATA


def test_a_read_only_file_is_private_enough(path: Path) -> None:
    create_private(path, DATA, "1")
    path.chmod(0o400)
    assert read_private(path, len(DATA)) == DATA


def test_the_remedy_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    path = tmp_path / "my key; rm"
    create_private(path, DATA, "1")
    path.chmod(0o644)
    with pytest.raises(KeystoreError, match=f"chmod 600 '{path}'"):
        read_private(path, len(DATA))


def test_a_link_to_a_private_file_is_followed(path: Path) -> None:
    create_private(path, DATA, "1")
    link = path.with_name("link")
    link.symlink_to(path)
    assert read_private(link, len(DATA)) == DATA


def test_neither_pipe_nor_directory_is_a_keystore(path: Path) -> None:
    os.mkfifo(path, 0o600)
    for strange in (path, path.parent):
        with pytest.raises(KeystoreError, match="not a regular file"):
            read_private(strange, 100)


def test_a_large_file_is_not_read(path: Path) -> None:
    create_private(path, DATA, "1")
    with pytest.raises(KeystoreError, match="more than 599 bytes"):
        read_private(path, len(DATA) - 1)


def test_an_existing_file_is_never_overwritten(path: Path) -> None:
    path.write_bytes(b"another key")
    with pytest.raises(KeystoreError, match="exists and is not overwritten"):
        create_private(path, DATA, "1")
    assert path.read_bytes() == b"another key"
    assert list(path.parent.iterdir()) == [path]


def test_an_existing_keystore_is_refused_before_any_costly_work(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheap = ScryptCost(n=2, r=1, p=1)
    create_keystore(path, private_key(1), "a", SystemEntropy(), cost=cheap)
    with monkeypatch.context() as patched:
        patched.delattr(keystore, "_cipher")
        with pytest.raises(KeystoreError, match="exists"):
            create_keystore(path, private_key(2), "a", SystemEntropy(), cost=cheap)
    assert open_keystore(path, "a").public == private_key(1).public


def test_a_dangling_link_counts_as_existing(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))
    with pytest.raises(KeystoreError, match="exists"):
        create_private(path, DATA, "1")


def test_of_several_at_once_exactly_one_wins(path: Path) -> None:
    barrier = threading.Barrier(8)
    won: list[int] = []

    def create(number: int) -> None:
        barrier.wait()
        try:
            create_private(path, b"%d" % number, str(number))
            won.append(number)
        except KeystoreError:
            pass

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes()] == [b"%d" % number for number in won]
    assert list(path.parent.iterdir()) == [path]


def test_a_name_taken_at_the_last_moment_is_not_overwritten(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def slower(source: Path, target: Path) -> None:
        path.write_bytes(b"another key")
        link(source, target)

    monkeypatch.setattr(os, "link", slower)
    with pytest.raises(KeystoreError, match="exists and is not overwritten"):
        create_private(path, DATA, "1")
    assert path.read_bytes() == b"another key"
    assert list(path.parent.iterdir()) == [path]


def test_the_steps_are_write_sync_name_sync(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def traced(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if name == "link":
                assert Path(arguments[0]).read_bytes() == DATA, "whole before it has its name"
            steps.append(f"{name} {'named' if path.exists() else 'unnamed'}")
            return real(*arguments)

        return call

    monkeypatch.setattr(os, "fsync", traced("fsync", os.fsync))
    monkeypatch.setattr(os, "link", traced("link", os.link))
    create_private(path, DATA, "1")
    assert steps == ["fsync unnamed", "link unnamed", "fsync named"]


def failing(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(KeystoreError, match="cannot be written: No space left"):
        create_private(path, DATA, "1")
    assert list(path.parent.iterdir()) == []


def test_without_hard_links_the_file_is_renamed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", failing)
    create_private(path, DATA, "1")
    assert read_private(path, len(DATA)) == DATA
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_rename_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", failing)
    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(KeystoreError, match="cannot be written"):
        create_private(path, DATA, "1")
    assert list(path.parent.iterdir()) == []


def test_a_directory_that_cannot_be_synced_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def fails_on_directories(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            failing()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fails_on_directories)
    with pytest.raises(KeystoreError, match="is written, but its directory could not be synced"):
        create_private(path, DATA, "1")
    assert read_private(path, len(DATA)) == DATA


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeystoreError, match=f"mkdir -p {tmp_path / 'missing'}"):
        create_private(tmp_path / "missing" / "key.json", DATA, "1")
