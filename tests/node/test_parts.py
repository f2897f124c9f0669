"""What a node is made of; one that cannot be made leaves nothing open."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from shoal.base.errors import ConfigError
from shoal.config.sections import (
    DhtSection,
    GatewaySection,
    OutboxSection,
    SearchSection,
    StorageSection,
    TopicsSection,
)
from shoal.identity import PrivateKey, SeededEntropy
from shoal.node import NetworkFile
from shoal.node.assembly import Parts
from shoal.protocols.search.messages import Match

KEY = PrivateKey.generate(SeededEntropy("parts"))


def parts_of(network: NetworkFile) -> Parts:
    return Parts(network, KEY, SeededEntropy("x"), Random(1), ())


def test_answers_that_never_leave_go_back_to_search() -> None:
    parts = parts_of(NetworkFile(search=SearchSection()))
    assert parts.search is not None
    assert parts.wanted_back == {Match: parts.search.machine}


def test_what_was_opened_before_something_failed_is_closed(tmp_path: Path) -> None:
    good = NetworkFile(
        storage=StorageSection(),
        dht=DhtSection(),
        topics=TopicsSection(),
        gateway=GatewaySection(),
        folder=str(tmp_path),
    )
    bad = msgspec.structs.replace(good, outbox=OutboxSection(token="file:token"))
    with pytest.raises(ConfigError, match="knows no tracker"):
        parts_of(bad)
    disk = parts_of(good).disk
    assert disk is not None
    disk.close()
