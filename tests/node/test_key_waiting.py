"""A subscriber whose keys come late, or never."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.group_key import GroupKey, Sealer, read_group_keys
from shoal.node.keys.group_keys import KeyStore, NodeKeys
from shoal.node.streams.message import BROKEN, NO_KEY
from shoal.node.streams.subscription import Subscription
from shoal.protocols.streams.commands import MessageArrived
from shoal.protocols.streams.config import WaitingConfig
from shoal.protocols.streams.keys import sealed_queue
from shoal.protocols.streams.keys.key_ring import KeyRing
from shoal.protocols.streams.signed_message import VerifiedMessage
from tests.node.network import contents, nothing_more, run, take

STREAM = StreamId("0x" + "11" * 20 + "/private")
OWNER = PrivateKey.generate(SeededEntropy("owner"))


class FewKeys(NodeKeys):
    """Keys that a test brings; nothing is looked for."""

    def __init__(self) -> None:
        self.ring = KeyRing()
        self.listeners = {}
        self.wanted: list[VerifiedMessage] = []
        self.hopeless: set[bytes] = set()

    def want(self, message: VerifiedMessage) -> None:
        self.wanted.append(message)

    def awaits(self, key_id: bytes) -> bool:
        return self.ring.get(key_id) is None and key_id not in self.hopeless

    def bring(self, sealer: Sealer) -> None:
        self.ring.add(sealer.key)
        for listener in list(self.listeners):
            listener()


def sealer(name: str) -> Sealer:
    return Sealer(GroupKey.generate(STREAM, NodeId(name.encode() * 20), SeededEntropy(name)))


def message(seal: Sealer, number: int) -> MessageArrived:
    id = MessageId(STREAM, 0, number, 0, seal.key.publisher, "c")
    kind, content = seal.seal(id, 0, b"%d" % number)
    return MessageArrived(VerifiedMessage(id, None, kind, content, b""), 1, 0)


def test_what_waits_is_read_when_its_key_comes_and_holds_nobody_up() -> None:
    async def main() -> None:
        keys, alice, bob = FewKeys(), sealer("a"), sealer("b")
        keys.bring(bob)
        subscription = Subscription(keys=keys)
        for number in range(3):
            subscription.push(message(alice, number))
            subscription.push(message(bob, 10 + number))
        assert contents(await take(subscription, 3)) == [10, 11, 12]
        await nothing_more(subscription, 0.05)
        assert [wanted.id.timestamp_ms for wanted in keys.wanted] == [0, 1, 2]
        keys.bring(alice)
        assert contents(await take(subscription, 3)) == [0, 1, 2]
        assert keys.listeners == {}
        subscription.close()

    run(main())


def test_a_key_that_never_comes_shows_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    short = WaitingConfig(patience_ns=50_000_000)
    monkeypatch.setattr(sealed_queue, "WaitingConfig", lambda: short)

    async def main() -> None:
        keys, alice = FewKeys(), sealer("a")
        subscription = Subscription(keys=keys)
        plain = message(alice, 1)
        subscription.push(plain)
        subscription.push(MessageArrived(_in_the_clear(alice, 2), 1, 0))
        first, second = await take(subscription, 2)
        assert (first.content, first.undecryptable) == (None, NO_KEY)
        assert (second.content, second.undecryptable) == (2, None)
        keys.hopeless.add(alice.key.id)  # it was looked for in vain: nobody waits again
        subscription.push(message(alice, 3))
        assert (await take(subscription, 1))[0].undecryptable == NO_KEY
        keys.hopeless.clear()
        subscription.push(message(alice, 4))
        subscription.close()  # nor for a subscription that ends
        assert [found.undecryptable async for found in subscription] == [NO_KEY]

    run(main())


def test_without_a_registry_what_is_sealed_is_shown_as_such() -> None:
    async def main() -> None:
        subscription = Subscription()
        subscription.push(message(sealer("a"), 1))
        (found,) = await take(subscription, 1)
        assert (found.content, found.undecryptable) == (None, NO_KEY)

    run(main())


def test_a_slow_consumer_is_told_of_what_it_missed_readable_or_not() -> None:
    async def main() -> None:
        keys, alice = FewKeys(), sealer("a")
        keys.bring(alice)
        subscription = Subscription(1, keys=keys)
        short = MessageId(STREAM, 0, 1, 0, alice.key.publisher, "c")
        broken = MessageArrived(VerifiedMessage(short, None, 255, b"short", b""), 1, 0)
        subscription.push(broken)
        subscription.push(broken)
        (found,) = await take(subscription, 1)
        assert found.undecryptable == BROKEN
        assert found.gap_before is not None
        assert found.gap_before.count == 1

    run(main())


def _in_the_clear(seal: Sealer, number: int) -> VerifiedMessage:
    id = MessageId(STREAM, 0, number, 0, seal.key.publisher, "c")
    return VerifiedMessage(id, None, 0, b"%d" % number, b"")


def test_keys_are_written_a_little_later_and_what_another_wrote_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        path = tmp_path / "keys"
        stores = []
        for name in "ab":
            ring = KeyRing()
            store = KeyStore(ring, OWNER, SeededEntropy(name))
            store.open(path)
            ring.add(sealer(name).key)
            store.changed()
            stores.append(store)
        for store in stores:
            await store.close()
        held = {key.id for key in read_group_keys(path, OWNER)}
        assert held == {sealer(name).key.id for name in "ab"}
        late = KeyStore(KeyRing(), OWNER, SeededEntropy("late"))
        late.open(path)
        path.write_bytes(b"something else")
        late.changed()
        with caplog.at_level(logging.ERROR):
            await late.close()
        assert "have to be asked for again" in caplog.text
        assert path.read_bytes() == b"something else"  # not ours to destroy
        await asyncio.get_running_loop().shutdown_default_executor()

    run(main())
