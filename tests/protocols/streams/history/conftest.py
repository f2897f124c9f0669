"""Storage nodes on fake hosts: one that Alice and Bob are linked to, two that hear each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.storage_host import StorageHost
from tests.support.streams import ALICE, BOB, ME
from tests.support.sync_pair import Pair


@pytest.fixture
def host(tmp_path: Path) -> Iterator[StorageHost]:
    host = StorageHost(ME, tmp_path / "store")
    for peer in (ALICE, BOB):
        host.link_opened(peer)
    yield host
    host.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        pair = Pair(tmp_path)
        for host in pair.hosts.values():
            stack.callback(host.close)
        yield pair
        pair.check()
