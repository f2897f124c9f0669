"""What a storage node lacks of the chains that it stores."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from shoal.base.units import S_NS
from shoal.identity.message_body import Position
from shoal.protocols.streams.config import StorageConfig
from shoal.protocols.streams.history.storage_node import KeepMessage
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.storage.config import Retention, StoreConfig
from tests.support.storage_host import StorageHost, message
from tests.support.streams import ME

CONFIG = StorageConfig(gaps_at_once=3)


def chained(number: int) -> VerifiedMessage:
    """A message that names the one before it."""
    before = message(number - 1).id
    return replace(message(number), previous=Position(before.timestamp_ms, before.sequence))


def store(host: StorageHost, *numbers: int) -> None:
    for number in numbers:
        host.command(host.storage, KeepMessage(chained(number)))
    host.finish_all()


def settle(host: StorageHost) -> None:
    for _ in range(5):
        host.advance(CONFIG.gaps_ns // 2 + S_NS)
        host.finish_all()


def test_all_gaps_are_counted_however_many_there_are(tmp_path: Path) -> None:
    host = StorageHost(ME, tmp_path / "store", config=CONFIG)
    store(host, *range(2, 42, 2))
    assert host.storage.gaps.count == 0  # they may still come
    settle(host)
    assert host.storage.gaps.count == 20
    store(host, *range(3, 41, 2))
    settle(host)
    assert host.storage.gaps.count == 1  # before the first of all
    host.close()


def test_copies_and_messages_out_of_order_are_no_gaps(tmp_path: Path) -> None:
    config = replace(CONFIG, gaps_max=2)
    host = StorageHost(ME, tmp_path / "store", config=config)
    for number in range(1, 200, 2):
        store(host, number + 1, number, number + 1, number)
    settle(host)
    assert (host.storage.gaps.count, host.storage.gaps.unchecked) == (1, 0)
    host.close()


def test_what_there_was_no_room_to_look_for_is_said(tmp_path: Path) -> None:
    config = replace(CONFIG, gaps_max=5)
    host = StorageHost(ME, tmp_path / "store", config=config)
    store(host, *range(2, 22, 2))
    settle(host)
    assert (host.storage.gaps.count, host.storage.gaps.unchecked) == (5, 5)
    host.close()


def test_what_was_on_disk_before_is_no_gap(tmp_path: Path) -> None:
    first = StorageHost(ME, tmp_path / "store", config=CONFIG)
    store(first, *range(1, 10))
    first.close()
    host = StorageHost(ME, tmp_path / "store", config=CONFIG)
    store(host, 10, 11)
    settle(host)
    assert host.storage.gaps.count == 0
    host.close()


def test_what_retention_has_removed_is_no_gap(tmp_path: Path) -> None:
    few = StoreConfig(retention=Retention(age_ns=S_NS))
    host = StorageHost(ME, tmp_path / "store", config=CONFIG, store_config=few)
    store(host, *range(1, 10))
    now_ns = host.time_ns + 10 * S_NS
    while host.store_below.retain(now_ns).more:
        pass
    assert host.store_below.info().messages == 0
    host.storage.gaps._runs.clear()  # as after a restart
    host.storage.gaps._recent.clear()
    store(host, 10)
    settle(host)
    assert host.storage.gaps.count == 0
    host.close()
