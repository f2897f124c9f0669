"""The group keys of a node on disk: what comes before its end is kept, what comes later is not."""

from __future__ import annotations

import asyncio
from pathlib import Path

from shoal.base.ids import StreamId
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.group_key import GroupKey, read_group_keys
from shoal.node.keys.group_keys import KeyStore
from shoal.protocols.streams.keys.key_ring import KeyRing

OWNER = PrivateKey.generate(SeededEntropy("owner"))
STREAM = StreamId("0x" + "11" * 20 + "/private")


def test_a_key_that_comes_after_the_end_is_left(tmp_path: Path) -> None:
    """Machines run a little longer than the store: an answer may be under way."""

    async def main() -> None:
        ring, path = KeyRing(), tmp_path / "keys"
        store = KeyStore(ring, OWNER, SeededEntropy(1))
        store.open(path)
        early, late = (
            GroupKey.generate(STREAM, OWNER.address, SeededEntropy(name)) for name in "ab"
        )
        ring.add(early)
        store.changed()
        await store.close()
        ring.add(late)
        store.changed()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert [key.id for key in read_group_keys(path, OWNER)] == [early.id]

    asyncio.run(main())
