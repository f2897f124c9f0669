"""Streams that are encrypted, for applications: over sockets, with an embedded registry."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from shoal.base.errors import HistoryUnavailable
from shoal.base.ids import KEYS_PARTITION, MessageId, StreamId
from shoal.config.sections import GatewaySection, OutboxSection
from shoal.identity import SeededEntropy
from shoal.identity.group_key import GroupKey, Sealer, decode_announcement, read_group_keys
from shoal.identity.message_body import ENCRYPTED, decode_body
from shoal.kernel.access import Permission
from shoal.node import NetworkFile, Node
from shoal.node.roles.outbox import Delivery
from shoal.node.streams.history import NodeHistory
from shoal.node.streams.message import BROKEN, NO_KEY
from shoal.node.streams.publishing import Publishing
from shoal.protocols.streams.commands import Publish
from shoal.registry.contract_registry import ContractRegistry
from shoal.registry.port import EVERYBODY
from tests.node.network import contents, run, take
from tests.node.outbox import TOKEN, role_of, until_published, write_batch
from tests.node.private import PrivateTown, grant, key_of, make_stream

pytest.importorskip("pyrevm", reason="no EVM is made for this Python")

Scenario = Callable[["Stage"], Awaitable[None]]


class Stage:
    """A town with its servers running."""

    def __init__(
        self, town: PrivateTown, registry: ContractRegistry, stack: AsyncExitStack
    ) -> None:
        self.town = town
        self.registry = registry
        self._stack = stack
        self._nodes: list[Node] = []
        self.storage: Node | None = None

    async def open(self, name: str) -> Node:
        node = await self._stack.enter_async_context(self.town.open(name))
        self._nodes.append(node)
        return node

    async def stream(self, path: str, *readers: str, known: bool = True) -> StreamId:
        stream = await make_stream(self.registry, path)
        if readers:
            await grant(self.registry, stream, *readers, known=known)
        await self.until_known()
        return stream

    async def until_known(self) -> None:
        """Every node has heard of the registry's last change."""
        async with asyncio.timeout(10):
            for node in self._nodes:
                assert node.registry is not None
                while node.registry.registry.seen.number < self.registry.seen.number:
                    await asyncio.sleep(0.01)

    def stored(self, stream: StreamId, partition: int = 0) -> list[Any]:
        """Bodies at the storage node."""
        assert self.storage is not None
        assert self.storage.storage is not None
        pages = self.storage.storage.store.range(stream, partition)
        return [decode_body(row.signed) for page in pages for row in page]

    async def until_stored(self, stream: StreamId, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.stored(stream)) < count:
                await asyncio.sleep(0.02)


def in_town(tmp_path: Path, scenario: Scenario) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            town = PrivateTown(tmp_path)
            registry = await stack.enter_async_context(town.registry())
            stage = Stage(town, registry, stack)
            await stage.open("tracker")
            stage.storage = await stage.open("storage")
            await scenario(stage)
        # Its threads read keystores and wrap keys; nothing else may be left.
        await asyncio.get_running_loop().shutdown_default_executor()

    run(main())


def test_what_is_not_everybodys_is_sealed_and_readers_read_it(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        private = await stage.stream("/private", "bob", "carol")
        public = await stage.stream("/public")
        await stage.registry.grant(public, [EVERYBODY], Permission.SUBSCRIBE)
        await stage.until_known()
        alice, bob, carol = [await stage.open(name) for name in ("alice", "bob", "carol")]
        ours = await alice.open_stream(private)
        async with (
            (await bob.open_stream(private)).subscribe() as at_bob,
            (await carol.open_stream(private)).subscribe(ordered=False) as at_carol,
        ):
            for number in range(3):
                await ours.publish({"number": number}, durable=True)
            await ours.publish("text")
            for messages in (at_bob, at_carol):
                got = await take(messages, 4)
                if messages is at_carol:
                    got.sort(key=lambda message: (message.id.timestamp_ms, message.id.sequence))
                assert contents(got) == [*({"number": n} for n in range(3)), "text"]
                assert not any(message.undecryptable for message in got)
        await stage.until_stored(private, 4)
        for body in stage.stored(private):
            assert body.content_type == ENCRYPTED
            assert b"number" not in body.content
        assert len(stage.stored(private, KEYS_PARTITION)) == 1
        read = [m.content async for m in (await carol.open_stream(private)).read()]
        assert read == [*({"number": n} for n in range(3)), "text"]

        # What everybody may read is as it was.
        everybodys = await alice.open_stream(public)
        async with (await bob.open_stream(public)).subscribe() as at_bob:
            await everybodys.publish({"open": True}, durable=True)
            assert contents(await take(at_bob, 1)) == [{"open": True}]
        assert [body.content for body in stage.stored(public)] == [b'{"open":true}']
        assert stage.stored(public, KEYS_PARTITION) == []

    in_town(tmp_path, scenario)


def test_whoever_is_revoked_reads_nothing_new_and_a_late_reader_everything(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        stream = await stage.stream("/private", "bob", "carol", "late")
        async with stage.town.open("alice") as alice:
            bob, carol = await stage.open("bob"), await stage.open("carol")
            ours = await alice.open_stream(stream)
            async with (
                (await bob.open_stream(stream)).subscribe() as at_bob,
                (await carol.open_stream(stream)).subscribe() as at_carol,
            ):
                await ours.publish("before")
                assert contents(await take(at_bob, 1) + await take(at_carol, 1)) == ["before"] * 2
                key = await _current(alice, stream)
                await stage.registry.revoke(stream, [key_of("bob").address], Permission.SUBSCRIBE)
                async with asyncio.timeout(10):
                    while await _current(alice, stream) == key:
                        await asyncio.sleep(0.02)
                # It comes whether something is published or not; and then it is used.
                await ours.publish("after", durable=True)
                assert contents(await take(at_carol, 1)) == ["after"]
            assert bob.keys is not None
            after = stage.stored(stream)[-1]
            held = bob.keys.ring.get(after.content[:16])
            assert held is None
            assert bob.keys.ring.get(key) is not None
        # The publisher is gone, and so is whoever could be asked.
        await stage.until_stored(stream, 2)
        late = await stage.open("late")
        got = [message async for message in (await late.open_stream(stream)).read()]
        assert contents(got) == ["before", "after"]
        async with (await late.open_stream(stream)).subscribe("earliest") as messages:
            assert contents(await take(messages, 2)) == ["before", "after"]

    in_town(tmp_path, scenario)


async def _current(node: Node, stream: StreamId) -> bytes:
    assert node.keys is not None
    sealer = await node.keys.sealer(stream)
    assert sealer is not None
    return sealer.key.id


def test_a_reader_nobody_knew_asks_and_one_that_comes_later_is_given_the_keys(
    tmp_path: Path,
) -> None:
    async def scenario(stage: Stage) -> None:
        stream = await stage.stream("/private", "bob", known=False)
        alice, bob = await stage.open("alice"), await stage.open("bob")
        ours = await alice.open_stream(stream)
        async with (await bob.open_stream(stream)).subscribe() as at_bob:
            await ours.publish("asked for")
            assert contents(await take(at_bob, 1)) == ["asked for"]
        assert stage.stored(stream, KEYS_PARTITION) == []  # for nobody: no key was known
        await grant(stage.registry, stream, "carol")
        await stage.until_known()
        async with asyncio.timeout(10):
            while not stage.stored(stream, KEYS_PARTITION):
                await asyncio.sleep(0.02)
        carol = await stage.open("carol")
        got = [message async for message in (await carol.open_stream(stream)).read()]
        assert contents(got) == ["asked for"]

    in_town(tmp_path, scenario)


def test_keys_outlive_a_restart_and_are_sealed_on_disk(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        stream = await stage.stream("/private", "bob", known=False)  # its keys are nowhere else
        async with stage.town.open("alice") as alice, stage.town.open("bob") as bob:
            async with (await bob.open_stream(stream)).subscribe() as at_bob:
                await (await alice.open_stream(stream)).publish("kept", durable=True)
                assert contents(await take(at_bob, 1)) == ["kept"]
            first = await _current(alice, stream)
        for name in ("alice", "bob"):
            path = tmp_path / f"{name}.key.streams"
            (key,) = read_group_keys(path, key_of(name))
            assert key.id == first
            assert key.secret_bytes() not in path.read_bytes()
            node = await stage.open(name)  # alone: the other is away
            got = [message async for message in (await node.open_stream(stream)).read()]
            assert contents(got) == ["kept"]
            if name == "alice":
                assert await _current(node, stream) != first

    in_town(tmp_path, scenario)


def test_what_cannot_be_opened_is_shown_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.node.keys.group_keys.PATIENCE_S", 0.2)

    async def scenario(stage: Stage) -> None:
        stream = await stage.stream("/private", "bob")
        alice, bob = await stage.open("alice"), await stage.open("bob")
        ours = await alice.open_stream(stream)
        await ours.publish("first", durable=True)
        unknown = Sealer(GroupKey.generate(stream, alice.id, SeededEntropy("unknown")))
        publishing = alice._publishing
        assert isinstance(publishing, Publishing)

        def broken(id: MessageId, content_type: int, content: bytes) -> tuple[int, bytes]:
            kind, sealed = unknown.seal(id, content_type, content)
            assert alice.keys is not None
            return kind, (alice.keys.ring.all()[-1].id + sealed[16:])

        for seal in (unknown.seal, broken):
            await publishing._issue(Publish(stream, b'"x"', 0, 0, seal))
        await ours.publish("last", durable=True)
        await stage.until_stored(stream, 4)
        got = [message async for message in (await bob.open_stream(stream)).read()]
        assert contents(got) == ["first", None, None, "last"]
        assert [message.undecryptable for message in got] == [None, NO_KEY, BROKEN, None]
        assert b'"undecryptable":"no-key"' in got[1].as_json()
        async with (await bob.open_stream(stream)).subscribe("earliest") as messages:
            again = await take(messages, 4)
        assert [message.undecryptable for message in again] == [None, NO_KEY, BROKEN, None]

    in_town(tmp_path, scenario)


def test_what_an_outbox_publishes_is_sealed_the_same_each_time(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        stream = await stage.stream("/alerts", "bob")
        bob = await stage.open("bob")
        network = _with_outbox(stage)
        async with (await bob.open_stream(stream)).subscribe() as at_bob:
            async with Node.open(network) as alice:
                # It is sent, and the node ends before it has heard that it is kept.
                with mock.patch.object(Delivery, "until_kept", _for_ever):
                    await write_batch(alice, 0, [b"one", b"two"], stream=stream)
                    assert contents(await take(at_bob, 2)) == [b"one", b"two"]
            async with Node.open(network) as alice:
                await until_published(alice)
                await write_batch(alice, 1, [b"three"], stream=stream)
                assert contents(await take(at_bob, 1)) == [b"three"]
                await until_published(alice)
        assert bob.equivocations.count == 0
        await stage.until_stored(stream, 3)
        stored = stage.stored(stream)
        assert {body.content_type for body in stored} == {ENCRYPTED}
        assert len({body.content[:24] for body in stored}) == 3
        # Each batch has a key of its own, and announces it each time that it is sent.
        assert len({body.content[:16] for body in stored}) == 2

    in_town(tmp_path, scenario)


def test_rows_of_an_outbox_are_let_go_only_when_their_key_is_kept(tmp_path: Path) -> None:
    """Or those who were away could never read them, once the publisher has gone."""
    keep = NodeHistory.keep

    async def keys_are_lost(
        history: NodeHistory, stream: StreamId, signed: bytes, copies: int
    ) -> None:
        if decode_body(signed).id.partition == KEYS_PARTITION:
            raise HistoryUnavailable("no room for keys")
        await keep(history, stream, signed, copies)

    async def scenario(stage: Stage) -> None:
        stream = await stage.stream("/alerts", "bob")
        async with Node.open(_with_outbox(stage)) as alice:
            outbox = role_of(alice)
            with mock.patch.object(NodeHistory, "keep", keys_are_lost):
                await write_batch(alice, 0, [b"one", b"two"], stream=stream)
                async with asyncio.timeout(20):
                    while outbox.problem != "no room for keys":
                        await asyncio.sleep(0.02)
                assert outbox.outbox.waiting()
            await until_published(alice)
        kept = {body.content for body in stage.stored(stream, KEYS_PARTITION)}
        used = {body.content[:16] for body in stage.stored(stream)}
        assert len(used) == 1
        announced = [wrap.key for one in kept for wrap in decode_announcement(one).wraps]
        assert used <= set(announced)

    in_town(tmp_path, scenario)


def _with_outbox(stage: Stage) -> NetworkFile:
    """The file of alice, who publishes what queries hand in."""
    (stage.town.folder / "token").write_text(TOKEN)
    return replace(
        stage.town.network("alice"),
        outbox=OutboxSection(token="file:token"),
        gateway=GatewaySection(),
    )


async def _for_ever(*_: Any) -> None:
    await asyncio.Event().wait()
