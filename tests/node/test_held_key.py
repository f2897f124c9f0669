"""One key is one node at a time, unless the network file lets others have spare ones."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shoal.base.errors import UsageError
from shoal.config.network_file import NetworkFile
from shoal.config.sections import NodeSection
from shoal.identity import PrivateKey, ScryptCost, SeededEntropy, SystemEntropy, create_keystore
from shoal.node.keys.key_lock import held_key


@pytest.fixture
def key(tmp_path: Path) -> PrivateKey:
    entropy = SeededEntropy("held")
    key = PrivateKey.generate(entropy)
    cost = ScryptCost(n=2, r=1, p=1)
    create_keystore(tmp_path / "node.key", key, "", entropy, cost=cost, allow_empty_passphrase=True)
    return key


def network(folder: Path, *, spare_key: bool) -> NetworkFile:
    return NetworkFile(node=NodeSection(key="node.key", spare_key=spare_key), folder=str(folder))


def test_a_second_node_with_the_same_key_is_refused(tmp_path: Path, key: PrivateKey) -> None:
    one = network(tmp_path, spare_key=False)

    async def main() -> None:
        async with held_key(one, SystemEntropy()) as held:
            assert held.key.address == held.owner.address == key.address
            with pytest.raises(UsageError, match="one key is one node: stop that one"):
                await held_key(one, SystemEntropy()).__aenter__()
        async with held_key(one, SystemEntropy()) as held:  # it is free again
            assert held.key.address == key.address

    asyncio.run(main())


def test_a_second_one_may_have_a_spare_key(
    tmp_path: Path, key: PrivateKey, caplog: pytest.LogCaptureFixture
) -> None:
    one = network(tmp_path, spare_key=True)

    async def main() -> None:
        async with (
            held_key(one, SystemEntropy()) as first,
            held_key(one, SystemEntropy()) as second,
            held_key(one, SystemEntropy()) as third,
        ):
            assert first.key.address == key.address
            assert len({held.key.address for held in (first, second, third)}) == 3
            assert {held.owner.address for held in (first, second, third)} == {key.address}

    asyncio.run(main())
    assert len(caplog.records) == 2
    assert "is in use by another node of this machine" in caplog.text


def test_without_a_key_there_is_nothing_to_hold(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            held_key(NetworkFile(), SystemEntropy()) as one,
            held_key(NetworkFile(), SystemEntropy()) as two,
        ):
            assert one.key.address != two.key.address
            assert one.owner is one.key

    asyncio.run(main())
