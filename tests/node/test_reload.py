"""A node that goes on by another version of its network file, without a restart."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from shoal.base.errors import ConfigError
from shoal.base.ids import Contact, StreamId, show_node_id
from shoal.config.network_file import compare, tracker_contact
from shoal.config.sections import (
    DhtSection,
    NodeSection,
    PeerEntry,
    SearchSection,
    StorageSection,
    StreamSettings,
    TrackerSection,
)
from shoal.identity import SeededEntropy
from shoal.kernel.fake_host import FakeHost
from shoal.node import NetworkFile, Node
from shoal.protocols.streams.commands import JoinStream, SetTrackers
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.member.tracker_selection import TrackerRing
from shoal.protocols.streams.messages import Join, Leave
from tests.node.network import contents, free_port, open_tracker, run, take
from tests.node.search import FAST
from tests.node.test_several_trackers import members
from tests.support.machines import peer_id
from tests.transport.recorder import until

STREAM = StreamId("0x" + "ab" * 20 + "/x")


def test_streams_go_to_a_tracker_with_a_new_key_and_lose_nothing() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            first = AsyncExitStack()
            old = await first.enter_async_context(open_tracker(name="old"))
            network = NetworkFile(trackers=(tracker_contact(old.id, list(old.addresses)),))
            nodes = [await stack.enter_async_context(Node.open(network)) for _ in range(3)]
            id = (await nodes[0].create_stream("/x")).id
            streams = [await node.open_stream(id) for node in nodes]
            queues = [await stack.enter_async_context(stream.subscribe()) for stream in streams]
            await until(lambda: all(node.degree(id) == 2 for node in nodes))
            listen = old.addresses[0]
            await first.aclose()
            new = await stack.enter_async_context(open_tracker(name="new", listen=listen))
            later = NetworkFile(trackers=(tracker_contact(new.id, list(new.addresses)),))
            for number, node in enumerate(nodes):
                found = await node.reload(later)
                assert (found.taken, found.restart) == (("trackers",), ())
                await streams[0].publish(number)
            await until(lambda: members(new, id) == {node.id for node in nodes})
            await until(lambda: all(node.readiness.ready for node in nodes))
            await streams[1].publish("last")
            for messages in queues:
                assert contents(await take(messages, 4)) == [0, 1, 2, "last"]
            newcomer = await stack.enter_async_context(Node.open(later))
            await newcomer.join(id)
            await until(lambda: newcomer.degree(id) == 3)

    run(main())


@pytest.mark.parametrize("seed", range(40))
def test_any_change_of_trackers_leaves_every_stream_with_one_of_them(seed: int) -> None:
    rng = Random(seed)
    every = [Contact(peer_id(n), (f"ws://10.0.0.{n}:1",)) for n in range(1, 7)]
    node = peer_id(0)
    machine = StreamNode(node, TrackerRing(every[:2]), lambda body: b"", "c", Random(seed))
    host = FakeHost(node, [machine])
    host.start()
    streams = [StreamId(f"{STREAM}{n}") for n in range(4)]
    for stream in streams:
        host.command(machine, JoinStream(stream))
    listed = every[:2]
    for _ in range(60):
        peer = rng.choice(every).node
        match rng.randrange(4):
            case 0:
                listed = rng.sample(every, rng.randint(1, 4))
                host.command(machine, SetTrackers(tuple(listed)))
            case 1:
                if not host.links.is_up(peer):
                    host.link_opened(peer)
            case 2:
                if host.links.is_up(peer):
                    host.link_closed(peer, "gone")
                else:
                    host.dial_failed(peer, "refused")
            case 3:
                host.advance(rng.randrange(1, 5_000_000_000))
        machine.check_invariants()
        known = {contact.node for contact in listed}
        assert {machine.trackers.at(stream) for stream in streams} <= known | {None}
    for contact in listed:
        if not host.links.is_up(contact.node):
            host.link_opened(contact.node)
    host.advance(60_000_000_000)
    for stream in streams:
        at = machine.trackers.at(stream)
        assert at in {contact.node for contact in listed}
        assert any(to == at and isinstance(said, Join | Leave) for to, said in host.sent)


def test_a_stream_goes_to_the_tracker_that_its_owner_pins_now() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            trackers = [
                await stack.enter_async_context(open_tracker(name=f"tracker {number}"))
                for number in range(2)
            ]
            entries = tuple(tracker_contact(t.id, list(t.addresses)) for t in trackers)

            def pinned(number: int) -> NetworkFile:
                settings = StreamSettings(trackers=(entries[number].id,))
                return NetworkFile(trackers=entries, streams=(settings,))

            node = await stack.enter_async_context(Node.open(pinned(0)))
            id = (await node.create_stream("/x")).id
            await node.join(id)
            await until(lambda: members(trackers[0], id) == {node.id})
            assert (await node.reload(pinned(1))).taken == ("streams",)
            await until(lambda: members(trackers[1], id) == {node.id})
            await until(lambda: members(trackers[0], id) == set())

    run(main())


def test_storage_and_bootstrap_nodes_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.node.search.client.SearchConfig", FAST)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            nobody = PeerEntry("0x" + "cd" * 20, (f"ws://127.0.0.1:{free_port()}",))
            network = NetworkFile(
                node=NodeSection(listen=(f"ws://127.0.0.1:{free_port()}",)),
                tracker=TrackerSection(),
                storage=StorageSection(),
                dht=DhtSection(bootstrap=(nobody,)),
                search=SearchSection(bootstrap=(nobody,)),
                folder=str(tmp_path),
            )
            node = await stack.enter_async_context(Node.open(network, entropy=SeededEntropy("n")))
            other = await stack.enter_async_context(
                Node.open(NetworkFile(dht=DhtSection(), search=SearchSection()))
            )
            assert node.storage is not None
            assert not node.storage.keeps(STREAM)
            gone = PeerEntry("0x" + "ef" * 20, (f"ws://127.0.0.1:{free_port()}",))
            section = DhtSection(bootstrap=(gone,)), SearchSection(bootstrap=(gone,))
            await node.reload(replace(network, dht=section[0], search=section[1]))
            await until(lambda: sum(gone.id in problem for problem in node.readiness.problems) == 2)
            assert not any(nobody.id in problem for problem in node.readiness.problems)
            own = PeerEntry(show_node_id(node.id), node.addresses)
            entry = (PeerEntry(show_node_id(other.id), other.addresses),)
            found = await node.reload(
                replace(
                    network,
                    storage_nodes=(own,),
                    streams=(StreamSettings(id=STREAM, storage=(own.id,)),),
                    storage=StorageSection(days_max=1, gigabytes_max=1),
                    dht=DhtSection(bootstrap=entry),
                    search=SearchSection(bootstrap=entry),
                )
            )
            assert found.taken == (
                *("storage_nodes", "streams", "storage.days_max", "storage.gigabytes_max"),
                *("dht.bootstrap", "search.bootstrap"),
            )
            assert found.restart == ()
            assert STREAM in node.storage.streams
            await until(lambda: node.readiness.ready)
            huge = replace(node.network, storage=StorageSection(days_max=1, gigabytes_max=1e6))
            assert (await node.reload(huge)).restart == ("storage",)

    run(main())


def test_what_cannot_be_taken_is_said_and_a_file_that_cannot_work_changes_nothing(
    tmp_path: Path,
) -> None:
    tracker = tracker_contact(peer_id(1), ["ws://127.0.0.1:1"])
    old = NetworkFile(trackers=(tracker,), storage=StorageSection(folder="a"))
    new = NetworkFile(
        node=NodeSection(listen=("ws://127.0.0.1:7",)),
        trackers=(tracker,),
        storage=StorageSection(folder="b", days_max=2),
        dht=DhtSection(),
    )
    found = compare(old, new)
    assert found.taken == ["storage.days_max"]
    assert list(found.restart) == ["node", "storage.folder", "dht"]
    assert found.network == replace(old, storage=StorageSection(folder="a", days_max=2))

    async def main() -> None:
        async with Node.open(NetworkFile()) as node:
            (tmp_path / "shoal.toml").write_text("[[trackers]]\nid = 1\n")
            before = node.network
            with pytest.raises(ConfigError, match=r"trackers\[0\]\.id"):
                await node.reload(tmp_path / "shoal.toml")
            assert node.network is before

    run(main())
