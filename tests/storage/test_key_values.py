"""Keys and values on lmdb: spaces, batches, owners, what fails, and kills."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from unittest import mock

import lmdb
import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId
from shoal.identity import SystemEntropy
from shoal.kernel.disk import Disk, DiskResult, MemoryDisk
from shoal.kernel.effects import Load, Store
from shoal.kernel.inputs import Loaded, Stored, StoreFailed
from shoal.runtime.workers import DisksBySlot
from shoal.storage.config import Retention, StoreConfig
from shoal.storage.errors import StoreError, StoreFormatUnknown, StoreFull, StoreInUse
from shoal.storage.key_values import KEY_BYTES_MAX, KeyValueDisk, KeyValueFile, space_key
from shoal.storage.lmdb_file import mark_restored
from shoal.storage.message_store.store import Store as MessageStore

ALICE, BOB = NodeId(b"a" * 20), NodeId(b"b" * 20)
SPACES = {2: "topics", 5: "other"}


@contextmanager
def opened(
    folder: Path, owner: NodeId = ALICE, config: StoreConfig | None = None
) -> Iterator[KeyValueDisk]:
    disk = KeyValueDisk(KeyValueFile(folder, owner, config or StoreConfig()), SPACES)
    try:
        yield disk
    finally:
        disk.close()


def ask(disk: Disk, *effects: Store | Load, slot: int = 2) -> list[DiskResult]:
    return disk.work([(slot, effect) for effect in effects], 0)


def value(disk: Disk, key: bytes, slot: int = 2) -> bytes | None:
    (loaded,) = ask(disk, Load(key, None), slot=slot)
    assert isinstance(loaded, Loaded)
    return loaded.value


def test_what_was_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    large = Random(1).randbytes(520 * 1024)
    with opened(tmp_path / "s") as disk:
        stored = ask(
            disk, Store(b"k", b"1", "a"), Store(b"k" * 100, large, "b"), Store(b"", b"", 3)
        )
        assert stored == [Stored("a"), Stored("b"), Stored(3)]
    with opened(tmp_path / "s") as disk:
        assert [value(disk, key) for key in (b"k", b"k" * 100, b"")] == [b"1", large, b""]
        assert ask(disk, Store(b"k", None, 1), Store(b"never", None, 2)) == [Stored(1), Stored(2)]
    with opened(tmp_path / "s") as disk:
        assert value(disk, b"k") is None


def test_a_batch_is_one_transaction_in_its_order(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as disk:
        with mock.patch.object(disk.file, "write", wraps=disk.file.write) as write:
            results = ask(
                disk,
                Store(b"a", b"1", 1),
                Store(b"b", b"1", 2),
                Store(b"a", None, 3),
                Store(b"b", b"2", 4),
                Load(b"b", 5),
                Load(b"a", 6),
            )
        assert results == [*map(Stored, (1, 2, 3, 4)), Loaded(5, b"2"), Loaded(6, None)]
        assert write.call_count == 1
        ask(disk, Load(b"b", 1))
        assert write.call_count == 1, "reading syncs nothing"


def test_a_space_is_known_by_its_name_whatever_slot_its_machine_has(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as disk:
        ask(disk, Store(b"k", b"topics", 1))
        ask(disk, Store(b"k", b"other", 1), slot=5)
        assert value(disk, b"k") == b"topics"
        assert value(disk, b"k", slot=5) == b"other"
    file = KeyValueFile(tmp_path / "s", ALICE)
    disk = KeyValueDisk(file, {0: "other", 1: "topics"})
    assert (value(disk, b"k", slot=1), value(disk, b"k", slot=0)) == (b"topics", b"other")
    disk.close()


def test_the_map_grows(tmp_path: Path) -> None:
    with opened(tmp_path / "s", config=StoreConfig(map_bytes=64 * 1024)) as disk:
        values = [Random(number).randbytes(100_000) for number in range(20)]
        stores = [Store(b"%d" % number, one, number) for number, one in enumerate(values)]
        assert ask(disk, *stores) == [Stored(number) for number in range(20)]
        assert [value(disk, b"%d" % number) for number in range(20)] == values


# What fails


def test_what_has_no_place_fails_alone(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as disk:
        long = b"k" * (KEY_BYTES_MAX + 1)
        results = ask(disk, Store(b"a", b"1", 1), Store(long, b"1", 2), Load(long, 3))
        assert results == [Stored(1), StoreFailed(2, "malformed"), Loaded(3, None)]
        stranger = ask(disk, Store(b"a", b"2", 1), Load(b"a", 2), slot=9)
        assert stranger == [StoreFailed(1, "malformed"), Loaded(2, None)]
        assert value(disk, b"a") == b"1"


def test_a_batch_that_finds_no_room_is_not_stored_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    none = Retention(size_bytes_max=None)
    config = StoreConfig(none, map_bytes=1 << 20, map_bytes_max=1 << 20)
    with opened(tmp_path / "s", config=config) as disk:
        for _ in range(3):
            results = ask(disk, Store(b"a", b"1", 1), Store(b"b", bytes(2 << 20), 2))
            assert results == [StoreFailed(1, "failed"), StoreFailed(2, "failed")]
        assert value(disk, b"a") is None
        assert disk.problem is not None
        assert "has filled its map" in disk.problem
        assert caplog.text.count("nothing can be stored") == 1
        assert ask(disk, Store(b"a", b"1", 1)) == [Stored(1)]
        assert disk.problem is None


def test_a_value_that_rots_is_told_as_none(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as disk:
        ask(disk, Store(b"a", b"precious content", 1), Store(b"b", b"other", 2))
    path = tmp_path / "s" / "data.mdb"
    raw = path.read_bytes()
    assert b"precious content" in raw
    path.write_bytes(raw.replace(b"precious content", b"precious cantent"))
    with opened(tmp_path / "s") as disk:
        assert value(disk, b"a") is None
        assert disk.problem is not None
        assert "not as it was written" in disk.problem
        assert value(disk, b"b") == b"other"


def test_a_closed_disk_fails_and_does_not_raise(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as disk:
        pass
    assert ask(disk, Store(b"a", b"", 1), Load(b"a", 2)) == [
        StoreFailed(1, "failed"),
        Loaded(2, None),
    ]
    with pytest.raises(UsageError, match="remove its folder"):
        disk.clear()


# Whose it is


def test_a_folder_belongs_to_one_node_and_one_process(tmp_path: Path) -> None:
    with opened(tmp_path / "s"), pytest.raises(StoreInUse, match="open in this process"):
        KeyValueFile(tmp_path / "s", ALICE)
    with pytest.raises(StoreError, match=r"belongs to node 0x6161.* this one is 0x6262.*\[node\]"):
        KeyValueFile(tmp_path / "s", BOB)
    with opened(tmp_path / "s") as disk:
        assert ask(disk, Store(b"a", b"", 1)) == [Stored(1)], "the lock was given up"


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    MessageStore(tmp_path / "store", SystemEntropy()).close()
    with pytest.raises(StoreFormatUnknown, match="not of topics: name another folder"):
        KeyValueFile(tmp_path / "store", ALICE)
    KeyValueFile(tmp_path / "topics", ALICE).close()
    with pytest.raises(StoreFormatUnknown, match="no store: name another folder"):
        MessageStore(tmp_path / "topics", SystemEntropy())
    environment = lmdb.open(str(tmp_path / "topics"), max_dbs=4)
    with environment.begin(write=True) as txn:
        meta = environment.open_db(b"key-value-meta", txn=txn)
        txn.put(b"format", bytes([0, 0, 0, 9]), db=meta)
    environment.close()
    with pytest.raises(StoreFormatUnknown, match=r"has format 9, .*upgrade Shoal"):
        KeyValueFile(tmp_path / "topics", ALICE)


# Several disks


class Named(MemoryDisk):
    """Counts its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.closed = False

    def work(self, requests: Sequence[tuple[int, Store | Load]], now_ns: int) -> list[DiskResult]:
        self.batches.append(len(requests))
        return super().work(requests, now_ns)

    def close(self) -> None:
        self.closed = True
        raise StoreFull("as it happens")


def test_each_machine_has_its_own_disk_and_answers_keep_their_order() -> None:
    one, two = Named(), Named()
    disks = DisksBySlot({0: one, 1: one, 3: two})
    results = disks.work(
        [
            (3, Store(b"k", b"two", 1)),
            (0, Store(b"k", b"one", 2)),
            (3, Load(b"k", 3)),
            (2, Store(b"k", b"none", 4)),
            (1, Load(b"k", 5)),
            (2, Load(b"k", 6)),
        ],
        0,
    )
    assert results == [
        Stored(1),
        Stored(2),
        Loaded(3, b"two"),
        StoreFailed(4, "no-disk"),
        Loaded(5, None),
        Loaded(6, None),
    ]
    assert (one.batches, two.batches) == ([2], [2])
    with pytest.raises(StoreFull):
        disks.close()
    assert one.closed
    assert two.closed


# Kills

VICTIM = """
import sys
from pathlib import Path
from tests.storage.test_key_values import write_until_killed
write_until_killed(Path(sys.argv[1]), int(sys.argv[2]))
"""


def content(number: int) -> bytes:
    return Random(number).randbytes(number * 7919 % 5_000)


def write_until_killed(folder: Path, first: int) -> None:
    """Batches of sixteen values, and the number of the last one under a key of its own."""
    with opened(folder) as disk:
        for number in range(first, first + 1_000_000, 16):
            stores = [Store(b"%d" % n, content(n), n) for n in range(number, number + 16)]
            results = ask(disk, *stores, Store(b"last", b"%d" % (number + 15), None))
            if not all(isinstance(result, Stored) for result in results):
                raise AssertionError(results)
            print(number + 15, flush=True)


def test_nothing_that_was_stored_is_missing_after_kills(tmp_path: Path, seed: int) -> None:
    rng, last = Random(seed), -1
    for _ in range(6):
        command = [sys.executable, "-c", VICTIM, str(tmp_path / "s"), str(last + 1)]
        victim = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
        assert victim.stdout is not None
        for _ in range(rng.randrange(1, 30)):
            last = int(victim.stdout.readline())
        victim.send_signal(signal.SIGKILL)
        rest, _ = victim.communicate()
        last = max([last, *map(int, rest.split())])
        with opened(tmp_path / "s") as disk:
            found = int(value(disk, b"last") or -1)
            assert found in (last, last + 16), "a batch is there as a whole, told or not"
            assert all(value(disk, b"%d" % n) == content(n) for n in range(found + 1))
            assert value(disk, b"%d" % (found + 1)) is None
        last = found
    assert last > 6 * 16


# Copies


def test_a_copy_of_the_file_is_found_out_once(tmp_path: Path) -> None:
    """A folder that was copied back holds what its node had said by then, not what it has since."""
    with opened(tmp_path / "s") as disk:
        assert not disk.file.restored
        ask(disk, Store(b"k", b"1", "a"))
    with opened(tmp_path / "s") as disk:
        assert not disk.file.restored, "a restart is no copy"
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    for _ in range(2):  # until somebody has drawn the conclusion, crash or not
        with opened(tmp_path / "copy") as disk:
            assert disk.file.restored
    with opened(tmp_path / "copy") as disk:
        disk.file.settle_as(space_key(SPACES[2], b"r"))
        assert not disk.file.restored
        assert value(disk, b"r") == b"1"
        assert value(disk, b"k") == b"1"
    with opened(tmp_path / "copy") as disk:
        assert not disk.file.restored
    with opened(tmp_path / "s") as disk:
        assert not disk.file.restored


def test_a_copy_that_is_marked_is_one_whatever_its_inode_says(tmp_path: Path) -> None:
    with opened(tmp_path / "s"):
        pass
    mark_restored(tmp_path / "s")
    with opened(tmp_path / "s") as disk:
        assert disk.file.restored


def test_a_message_store_is_not_marked_by_that(tmp_path: Path) -> None:
    with MessageStore(tmp_path / "s", SystemEntropy()) as store:
        log = store.log
    mark_restored(tmp_path / "s")
    with MessageStore(tmp_path / "s", SystemEntropy()) as store:
        assert store.log == log
