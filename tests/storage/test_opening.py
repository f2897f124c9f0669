"""Opening: one owner, known formats, whole files; and the errors of all others name the file."""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import pytest

from shoal.base.errors import NotFound, UsageError
from shoal.base.units import MIB
from shoal.storage.config import Retention, StoreConfig
from shoal.storage.errors import (
    StoreDamaged,
    StoreError,
    StoreFormatUnknown,
    StoreFull,
    StoreInUse,
)
from shoal.storage.lmdb_file import verify_pages
from shoal.storage.message_store.store_types import Duplicate, LogHead, Stored
from tests.storage import golden
from tests.storage.stage import (
    START_NS,
    STREAM,
    ids_of,
    message,
    messages,
    open_store,
)

UNVERIFIED = StoreConfig(verify_bytes_max=0)


# One owner


def test_a_store_is_open_once_in_a_process(tmp_path: Path) -> None:
    with open_store(tmp_path / "a") as store:
        (tmp_path / "link").symlink_to(tmp_path / "a")
        for folder in ("a", "link"):
            with pytest.raises(StoreInUse, match=rf"{folder} is open in this process"):
                open_store(tmp_path / folder)
        assert store.append([message(1)], START_NS) == [Stored(1)], "it did no harm"
    with open_store(tmp_path / "a") as store:
        assert store.append([message(1)], START_NS) == [Duplicate(1)]


def test_a_store_is_open_in_one_process(tmp_path: Path) -> None:
    code = """
import sys, pathlib
from tests.storage.stage import *
store = open_store(pathlib.Path(sys.argv[1]))
store.append(messages(3), 0)
print("open", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "a")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StoreInUse, match=f"a is open in process {other.pid}: close it there"):
            open_store(tmp_path / "a")
        other.kill()  # its lock goes with it
    with open_store(tmp_path / "a") as store:
        assert store.heads(STREAM, 0) == {store.log: LogHead(1, 3)}


def test_what_is_read_beside_its_owner_may_grow_meanwhile(tmp_path: Path) -> None:
    code = """
import sys, pathlib
from shoal.identity import SystemEntropy
from shoal.storage.config import StoreConfig
from shoal.storage.message_store.store import Store
from tests.storage.stage import STREAM
small = StoreConfig(map_bytes=1 << 20)
with Store(pathlib.Path(sys.argv[1]), SystemEntropy(), small, readonly=True) as store:
    print("open", flush=True)
    sys.stdin.readline()
    print(sum(map(len, store.range(STREAM, 0))))
"""
    with (
        open_store(tmp_path / "a", StoreConfig(map_bytes=MIB)) as store,
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "a")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        ) as other,
    ):
        store.append(messages(10), START_NS)
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        for begin in range(10, 10_010, 1_000):
            store.append(messages(1_000, begin), START_NS)
        assert store.info().file_bytes > 2 * MIB
        said, _ = other.communicate("go on\n", timeout=60)
    assert (other.returncode, said) == (0, "10010\n")


def test_a_reader_that_was_killed_holds_no_page_back(tmp_path: Path) -> None:
    """A backup that ran out of memory, say: what is freed after it began must be used again."""
    code = """
import sys, lmdb
with lmdb.open(sys.argv[1], readonly=True, max_dbs=32, lib_version=0).begin():
    print("reading", flush=True)
    sys.stdin.read()
"""
    with open_store(tmp_path / "a") as store:
        store.append(messages(10), START_NS)
        with subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "a")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "reading\n"
            other.kill()
        for number in range(300):
            store.put_note("compared", b"%d" % number * 1_000)
        sizes = [store.info().file_bytes]
        for number in range(300):
            store.put_note("compared", b"%d" % number * 1_000)
        sizes.append(store.info().file_bytes)
        assert sizes[0] == sizes[1]


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    pages = store.range(STREAM, 0)
    store.close()
    store.close()
    with pytest.raises(UsageError, match="is closed"):
        store.append([message(1)], START_NS)
    with pytest.raises(UsageError, match="is closed"):
        next(pages)


def test_a_place_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="mkdir -p"):
        open_store(tmp_path / "missing" / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file"):
        open_store(tmp_path / "file")


def test_what_is_kept_is_private(tmp_path: Path) -> None:
    open_store(tmp_path / "a").close()
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "data.mdb").stat().st_mode & 0o777 == 0o600


def test_commits_are_synced(tmp_path: Path) -> None:
    with open_store(tmp_path / "a") as store:
        flags = store._database._environment.flags()
    assert [flags["sync"], flags["metasync"]] == [True, True]
    assert [flags["map_async"], flags["writemap"]] == [False, False]


# Formats


def test_the_golden_store_opens(tmp_path: Path) -> None:
    shutil.copytree(golden.GOLDEN, tmp_path / "a")
    said = json.loads((golden.GOLDEN / "contents.json").read_text())
    with open_store(tmp_path / "a", golden.CONFIG) as store:
        assert golden.contents(store) == said
        store.check_invariants()
        last = said["heads"][said["log"]][1]
        assert store.append([message(99)], START_NS + 200) == [Stored(last + 1)]
        store.check_invariants()


def test_the_format_has_not_changed(tmp_path: Path) -> None:
    """What is written now is what the golden store holds, table by table and byte by byte."""
    a, b = tmp_path / "a", tmp_path / "b"
    with open_store(a, golden.CONFIG, "golden") as store, open_store(b, seed="owner") as owner:
        golden.fill(store, owner)
    assert dump(tmp_path / "a") == dump(golden.GOLDEN, tmp_path / "copy")


def dump(folder: Path, copy: Path | None = None) -> dict[bytes, Any]:
    if copy is not None:
        folder = Path(shutil.copytree(folder, copy))
    with lmdb.open(str(folder), max_dbs=16) as environment:
        names = environment.dbs()
        tables = {name: environment.open_db(name, create=False) for name in names}
        with environment.begin() as txn:
            return {
                name: (table.flags(), list(txn.cursor(table))) for name, table in tables.items()
            }


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    open_store(tmp_path / "a").close()
    with lmdb.open(str(tmp_path / "a"), max_dbs=16) as environment:
        meta = environment.open_db(b"meta", create=False)
        with environment.begin(db=meta, write=True) as txn:
            txn.put(b"format", (3).to_bytes(4))
    with pytest.raises(StoreFormatUnknown, match=r"data.mdb has format 3, .* up to 2: upgrade"):
        open_store(tmp_path / "a")


def test_the_format_before_is_refused(tmp_path: Path) -> None:
    open_store(tmp_path / "a").close()
    with lmdb.open(str(tmp_path / "a"), max_dbs=16) as environment:
        meta = environment.open_db(b"meta", create=False)
        with environment.begin(db=meta, write=True) as txn:
            txn.put(b"format", (1).to_bytes(4))
    with pytest.raises(StoreFormatUnknown, match=r"has format 1, .* reads 2 alone: move it away"):
        open_store(tmp_path / "a")


def test_another_lmdb_file_is_no_store(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "a")) as environment, environment.begin(write=True) as txn:
        txn.put(b"meta", b"something else")
    with pytest.raises(StoreFormatUnknown, match=r"data.mdb is an lmdb file, but no store"):
        open_store(tmp_path / "a")
    with lmdb.open(str(tmp_path / "a")) as environment, environment.begin() as txn:
        assert list(txn.cursor()) == [(b"meta", b"something else")], "and is left alone"


def test_a_file_of_the_next_lmdb_is_refused(tmp_path: Path) -> None:
    lmdb.open(str(tmp_path / "a"), lib_version=1).close()
    for config in (StoreConfig(), UNVERIFIED):
        with pytest.raises(StoreError, match=r"data.mdb"):
            open_store(tmp_path / "a", config)


def test_a_file_that_was_begun_and_not_finished_is_made_anew(tmp_path: Path) -> None:
    lmdb.open(str(tmp_path / "a"), lib_version=0).close()
    with open_store(tmp_path / "a") as store:
        assert store.append([message(1)], START_NS) == [Stored(1)]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "data.mdb").touch()
    open_store(tmp_path / "b").close()


# Damage


def filled(folder: Path) -> Path:
    with open_store(folder) as store:
        store.append([message(n, content=b"x" * 300) for n in range(500)], START_NS)
    return folder / "data.mdb"


@pytest.mark.parametrize("config", [StoreConfig(), UNVERIFIED], ids=["verified", "unverified"])
def test_a_truncated_file_is_refused(tmp_path: Path, config: StoreConfig) -> None:
    file = filled(tmp_path / "a")
    whole = file.read_bytes()
    for size in (len(whole) - 4096, len(whole) // 2, 8192, 5000, 10):
        file.write_bytes(whole[:size])
        with pytest.raises(StoreDamaged, match=r"a/data.mdb is damaged"):
            open_store(tmp_path / "a", config)
    file.write_bytes(whole)
    open_store(tmp_path / "a", config).close()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = filled(tmp_path / "a")
    file.write_bytes(b"This is a letter to my aunt.\n" * 1000)
    for config in (StoreConfig(), UNVERIFIED):
        with pytest.raises(StoreDamaged, match=r"a/data.mdb is damaged, or no store"):
            open_store(tmp_path / "a", config)


def test_damaged_pages_are_found_before_they_are_trusted(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    file = filled(tmp_path / "a")
    whole = file.read_bytes()
    pages = len(whole) // 4096
    found = 0
    for _ in range(40):
        page = rng.randrange(2, pages)
        hurt = bytearray(whole)
        hurt[page * 4096 : page * 4096 + 64] = rng.randbytes(64)  # its header and its pointers
        file.write_bytes(hurt)
        try:
            verify_pages(tmp_path / "a")
        except StoreDamaged:
            found += 1
            with pytest.raises(StoreDamaged, match=f"{file} is damaged"):
                open_store(tmp_path / "a")
    assert found >= 30, "some pages are free, or the inner part of a large value"


# Room


def test_the_map_grows(tmp_path: Path) -> None:
    config = StoreConfig(map_bytes=64 * 1024)
    with open_store(tmp_path / "a", config) as store:
        pages = store.range(STREAM, 0)
        for number in range(20):
            batch = [message(number, n, content=b"x" * 900) for n in range(50)]
            assert store.append(batch, START_NS) == [Stored(50 * number + n + 1) for n in range(50)]
        assert store.info().file_bytes > MIB
        assert len(ids_of(pages)) == 1000
        store.check_invariants()
    with open_store(tmp_path / "a", config) as store:
        assert store.append([message(99)], START_NS) == [Stored(1001)]


def test_a_full_map_takes_nothing_half(tmp_path: Path) -> None:
    retention = Retention(age_ns=10, size_bytes_max=None)
    config = StoreConfig(retention, map_bytes=256 * 1024, map_bytes_max=256 * 1024)
    with open_store(tmp_path / "a", config) as store:
        store.append(messages(10), START_NS)
        with pytest.raises(StoreFull, match=r"data.mdb has filled its map of 262144 bytes"):
            store.append([message(n, content=bytes(500)) for n in range(10, 1000)], START_NS)
        assert store.heads(STREAM, 0) == {store.log: LogHead(1, 10)}
        assert store.append([message(10)], START_NS) == [Stored(11)]
        assert store.retain(START_NS + 10).removed == 11
        store.check_invariants()


def fill_until_refused(folder: str, results: Any) -> None:
    """In a process whose files may have 1 MiB: to lmdb that is a disk that fills up."""
    import resource

    with open_store(Path(folder)) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))
        stored, error = 0, ""
        for number in range(100):
            batch = [message(number, n, content=bytes(300)) for n in range(100)]
            try:
                stored += len(store.append(batch, START_NS))
            except StoreError as refused:
                error = f"{type(refused).__name__}: {refused}"
                break
        store.check_invariants()
        again = ""
        try:
            store.append([message(10_000, n, content=bytes(300)) for n in range(500)], START_NS)
        except StoreError as refused:
            again = type(refused).__name__
        results.put((stored, error, again, store.heads(STREAM, 0)[store.log].last))


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    results: Any = spawn.Queue()
    process = spawn.Process(target=fill_until_refused, args=(str(tmp_path / "a"), results))
    process.start()
    stored, error, again, last = results.get(timeout=60)
    process.join()
    assert (stored > 0, last) == (True, stored)
    assert error.startswith(f"StoreError: {tmp_path / 'a/data.mdb'} cannot be used")
    assert "bytes free on its disk" in error
    assert again == "StoreError"
    with open_store(tmp_path / "a") as store:  # without the limit it goes on
        assert store.append([message(-1)], START_NS) == [Stored(stored + 1)]
        store.check_invariants()


def test_a_full_disk_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(code: int) -> Any:
        def work(txn: Any) -> None:
            error: Any = lmdb.Error("mdb_txn_commit")
            error.code = code
            raise error

        return work

    with open_store(tmp_path / "a") as store:
        with pytest.raises(StoreFull, match=r"data.mdb has no room left on its disk"):
            store._database.write(failing(28))
        with pytest.raises(StoreError, match="cannot be used") as caught:
            store._database.write(failing(5))
        assert not isinstance(caught.value, StoreFull)
        # A disk that fills in the middle of a write is an input/output error.
        usage = shutil.disk_usage(tmp_path)._replace(free=4096)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
        with pytest.raises(StoreFull, match=r"4096 bytes free"):
            store._database.write(failing(5))
