"""Nodes of a network with a registry: what they may do, what streams are, and what changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import shoal
from shoal.base.errors import RegistryDamaged
from shoal.base.ids import Contact, NodeId, StreamId, show_node_id
from shoal.config.network_file import NetworkFile
from shoal.config.sections import (
    NodeSection,
    PeerEntry,
    StorageSection,
    StreamSettings,
    TrackerSection,
)
from shoal.config.stream_settings import Terms
from shoal.identity import PrivateKey, ScryptCost, SeededEntropy, create_keystore
from shoal.kernel.access import Permission, Verdict
from shoal.kernel.inputs import AccessChanged
from shoal.node.roles.registry import READS_AT_ONCE, RegistryRole
from shoal.registry.config import RegistrySection
from shoal.registry.contract_registry import ContractRegistry
from shoal.registry.opening import deploy_registry, open_registry
from shoal.registry.port import Change, Directory, StreamTerms

pytest.importorskip("pyrevm", reason="no EVM is made for this Python")

ALICE, BOB, CAROL = (PrivateKey.generate(SeededEntropy(name)) for name in ("alice", "bob", "carol"))
SECTION = RegistrySection(folder="registry", poll_s=0.02)
PATH = "/city/vehicles"


class Town:
    """An embedded registry in a folder, whose admin is Alice, and a tracker that it lists."""

    def __init__(self, folder: Path, registry: ContractRegistry) -> None:
        self.folder = folder
        self.registry = registry

    @asynccontextmanager
    async def node(
        self, key: PrivateKey | None, storage: StorageSection | None = None
    ) -> AsyncIterator[shoal.Node]:
        section = NodeSection()
        if key is not None:
            name, cheap = f"{key.address.hex()}.key", ScryptCost(n=2, r=8, p=1)
            path = self.folder / name
            if not path.exists():
                create_keystore(path, key, "x", SeededEntropy("salt"), cost=cheap)
            section = NodeSection(key=name, passphrase="env:SHOAL_TEST_PASSPHRASE")
        network = NetworkFile(
            node=section, registry=SECTION, storage=storage, folder=str(self.folder)
        )
        async with shoal.Node.open(network) as node:
            yield node


@asynccontextmanager
async def a_town(folder: Path) -> AsyncIterator[Town]:
    await deploy_registry(SECTION, folder, ALICE, SeededEntropy("chain"))
    registry = await open_registry(SECTION, folder, ALICE)
    network = NetworkFile(tracker=TrackerSection(), registry=SECTION, folder=str(folder))
    try:
        async with shoal.Node.open(network) as tracker:
            contact = Contact(tracker.id, tracker.addresses)
            await registry.put_node(Directory.TRACKERS, contact)
            yield Town(folder, registry)
    finally:
        await registry.close()


@pytest.fixture(autouse=True)
def passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_TEST_PASSPHRASE", "x")


def test_a_stream_is_made_once_and_opened_by_whom_it_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_town(tmp_path) as town, town.node(ALICE) as alice, town.node(None) as guest:
            with pytest.raises(shoal.NotFound, match=f"`shoal stream create {PATH}`"):
                await alice.open_stream(PATH)
            stream = await alice.create_stream(PATH, public=True, terms=StreamTerms(partitions=3))
            assert stream.partitions == 3
            with pytest.raises(shoal.RegistryRefused, match="there is such a stream already"):
                await alice.create_stream(PATH)
            with pytest.raises(shoal.ConfigError, match="make a key with `shoal key new`"):
                await guest.create_stream(PATH)
            opened = await guest.open_stream(stream.id)
            async with opened.subscribe() as messages:
                await stream.publish({"speed": 8})
                assert (await anext(messages)).content == {"speed": 8}
            with pytest.raises(shoal.NotPermitted) as refused:
                await opened.publish({"speed": 9})
            id = show_node_id(guest.id)
            assert f"{id} may not publish" in str(refused.value)
            assert f"`shoal stream grant {stream.id} publish {id}`" in str(refused.value)

    asyncio.run(main())


def test_what_is_edited_counts_from_then_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_town(tmp_path) as town, town.node(ALICE) as alice:
            stream = await alice.create_stream(PATH)
            assert stream.partitions == 1
            await town.registry.edit(stream.id, StreamTerms(partitions=7))
            async with asyncio.timeout(10):
                while stream.partitions == 1:
                    await asyncio.sleep(0.01)
            assert stream.partitions == 7

    asyncio.run(main())


def test_a_registry_that_is_damaged_is_a_reason_too() -> None:
    """Whatever waits for the answer has one."""

    class Damaged:
        async def verdict(self, stream: StreamId, who: NodeId) -> Verdict:
            raise RegistryDamaged("block 7 is not as it was written")

    async def main() -> None:
        terms, stream = Terms(NetworkFile()), StreamId(f"{show_node_id(ALICE.address)}{PATH}")
        terms.learn(stream, StreamTerms())
        told: list[Verdict] = []
        role = RegistryRole(Damaged(), SECTION, terms, BOB.address)  # type: ignore[arg-type]
        role.check(stream, BOB.address, told.append)
        async with asyncio.timeout(10):
            while not told:
                await asyncio.sleep(0)
        assert (told[0].permissions, told[0].problem) == (0, "block 7 is not as it was written")

    asyncio.run(main())


def test_streams_of_others_are_not_read(tmp_path: Path) -> None:
    """Or whoever makes many of them keeps everybody busy, and revocations waiting."""

    async def main() -> None:
        async with a_town(tmp_path) as town, town.node(BOB) as bob:
            assert bob.registry is not None
            await town.registry.create(PATH, StreamTerms())
            last = await town.registry.create("/last", StreamTerms())
            await bob.open_stream(last)
            async with asyncio.timeout(10):
                await town.registry.edit(last, StreamTerms(partitions=2))
                while bob.partitions.count(last) == 1:
                    await asyncio.sleep(0.01)
            assert bob.registry.terms.streams == [last]

    asyncio.run(main())


def test_a_subscriber_that_may_no_longer_is_told_and_may_come_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_town(tmp_path) as town, town.node(ALICE) as alice, town.node(BOB) as bob:
            stream = await alice.create_stream(PATH)
            whom = [BOB.address]
            await town.registry.grant(stream.id, whom, Permission.SUBSCRIBE)
            opened = await bob.open_stream(stream.id)
            async with opened.subscribe() as messages:
                await stream.publish({"number": 1})
                assert (await anext(messages)).content == {"number": 1}
                await town.registry.revoke(stream.id, whom, Permission.SUBSCRIBE)
                with pytest.raises(shoal.NotPermitted, match="may not subscribe"):
                    async with asyncio.timeout(10):
                        await anext(messages)
            await town.registry.grant(stream.id, whom, Permission.SUBSCRIBE)
            async with asyncio.timeout(10):
                async with opened.subscribe() as messages:
                    await stream.publish({"number": 2})
                    assert (await anext(messages)).content == {"number": 2}

    asyncio.run(main())


def test_a_storage_node_finds_out_what_it_is_to_keep(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_town(tmp_path) as town, town.node(ALICE) as alice:
            terms = StreamTerms(storage_nodes=(BOB.address,))
            before = await alice.create_stream("/before", terms=terms)
            async with town.node(BOB, storage=StorageSection()) as keeper:
                await town.registry.put_node(
                    Directory.STORAGE_NODES, Contact(keeper.id, keeper.addresses)
                )
                after = await alice.create_stream("/after", terms=terms)
                assert keeper.storage is not None
                async with asyncio.timeout(10):
                    while len(keeper.storage.streams) < 2:
                        await asyncio.sleep(0.01)
                assert set(keeper.storage.streams) == {before.id, after.id}
                await town.registry.edit(after.id, StreamTerms())
                async with asyncio.timeout(10):
                    while keeper.storage.keeps(after.id):
                        await asyncio.sleep(0.01)
                assert keeper.storage.keeps(before.id)

    asyncio.run(main())


def test_a_storage_node_gets_what_one_has_that_is_named_later(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            a_town(tmp_path) as town,
            town.node(ALICE) as alice,
            town.node(BOB, storage=StorageSection(folder="one")) as one,
            town.node(CAROL, storage=StorageSection(folder="two")) as two,
        ):
            assert one.storage is not None
            assert two.storage is not None
            for keeper in (one, two):
                contact = Contact(keeper.id, keeper.addresses)
                await town.registry.put_node(Directory.STORAGE_NODES, contact)
            terms = StreamTerms(storage_nodes=(BOB.address,))
            stream = await alice.create_stream(PATH, terms=terms)
            async with asyncio.timeout(10):
                while stream.id not in one.storage.streams:
                    await asyncio.sleep(0.01)
            both = StreamTerms(storage_nodes=(BOB.address, CAROL.address))
            await town.registry.edit(stream.id, both)
            async with asyncio.timeout(10):
                for role, other in ((one.storage, two.id), (two.storage, one.id)):
                    while other not in role.sync._followed.peers:
                        await asyncio.sleep(0.01)

    asyncio.run(main())


class SlowChain:
    """A registry in which somebody makes hundreds of streams; it answers when it is told to."""

    def __init__(self, changes: list[Change]) -> None:
        self.changes = changes
        self.answers = asyncio.Event()
        self.away = False
        self.asked: list[StreamId] = []

    async def watch(self, since: int | None) -> AsyncIterator[Change]:
        assert since == 0, "a storage node wants to know of all streams"
        for change in self.changes:
            yield change
        await asyncio.Event().wait()

    async def stream(self, stream: StreamId) -> StreamTerms:
        self.asked.append(stream)
        await self.answers.wait()
        if self.away:
            raise shoal.RegistryUnavailable("the chain is away")
        return StreamTerms(storage_nodes=(BOB.address,))

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("away", [False, True])
def test_whoever_makes_many_streams_keeps_no_revocation_waiting_at_a_storage_node(
    away: bool,
) -> None:
    streams = [StreamId(f"{show_node_id(ALICE.address)}/{n}") for n in range(300)]
    revoked = Change("permissions", 2, streams[7], ALICE.address)
    changes = [*(Change("created", 1, stream) for stream in streams), revoked]

    async def main() -> None:
        chain = SlowChain(changes)
        chain.away = away
        terms = Terms(NetworkFile())
        role = RegistryRole(chain, SECTION, terms, BOB.address)  # type: ignore[arg-type]
        told: list[AccessChanged] = []
        seen: list[StreamId] = []
        role.start(told.append, seen.append)
        async with asyncio.timeout(10):
            while AccessChanged(streams[7], ALICE.address) not in told:
                await asyncio.sleep(0)
            assert len(terms.streams) == 0, "no stream has been read"
            chain.answers.set()
            await asyncio.sleep(SECTION.interval_s)
            chain.away = False
            while set(terms.streams) != set(streams):
                await asyncio.sleep(0.01)
        assert set(seen) == set(streams)
        assert chain.asked[:READS_AT_ONCE] == streams[:READS_AT_ONCE]
        assert all(terms.storage_of(stream) for stream in streams)
        await role.close()

    asyncio.run(main())


# Terms

STREAM = StreamId(show_node_id(ALICE.address) + PATH)
KEEPER, OTHER = NodeId(bytes([7]) * 20), NodeId(bytes([8]) * 20)


def test_without_a_registry_the_file_decides() -> None:
    keeper = PeerEntry(show_node_id(KEEPER), ("ws://127.0.0.1:1",))
    settings = StreamSettings(STREAM, partitions=5, degree=6, storage=(keeper.id,))
    terms = Terms(NetworkFile(streams=(settings,), storage_nodes=(keeper,)))
    assert (terms.partitions(STREAM), terms.degree(STREAM)) == (5, 6)
    assert terms.storage_of(STREAM) == (keeper.contact(),)
    assert terms.pinned_trackers(STREAM) == ()
    assert terms.trackers(Contact(KEEPER)) == ()


def test_what_the_registry_says_comes_before_the_file() -> None:
    listed = (Contact(KEEPER, ("ws://127.0.0.1:1",)),)
    settings = StreamSettings(STREAM, partitions=5, degree=6)
    terms = Terms(NetworkFile(streams=(settings,)), listed, listed)
    said = StreamTerms(partitions=2, trackers=(OTHER,), storage_nodes=(KEEPER, OTHER))
    terms.learn(STREAM, said)
    assert (terms.partitions(STREAM), terms.degree(STREAM)) == (2, None)
    assert terms.pinned_trackers(STREAM) == (OTHER,)
    assert terms.storage_of(STREAM) == (*listed, Contact(OTHER))
    assert terms.trackers(Contact(OTHER)) == listed
    terms.learn(STREAM, None)
    assert terms.partitions(STREAM) == 5


def test_terms_without_a_registry_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        network = NetworkFile(tracker=TrackerSection(), folder=str(tmp_path))
        async with shoal.Node.open(network) as node:
            with pytest.raises(shoal.UsageError, match=r"add \[registry\], or use \[\[streams\]\]"):
                await node.create_stream(PATH, terms=StreamTerms(partitions=2))

    asyncio.run(main())
