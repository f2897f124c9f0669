"""Streams through the API that come to nothing: no tracker, cancelled, closed, no address."""

from __future__ import annotations

import asyncio

import pytest

from shoal.base.errors import StreamUnavailable, UsageError
from shoal.config.sections import NodeSection, PeerEntry
from shoal.identity.message_body import JSON
from shoal.node import NetworkFile, Node
from shoal.node.streams import memberships as module
from shoal.protocols.streams.commands import StreamReady
from tests.node.network import Town, contents, in_town, nothing_more, run, take

SOMEBODY = "0x" + "ab" * 20


def test_a_tracker_that_is_not_there_is_named_within_the_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "JOIN_TIMEOUT_S", 0.3)
    entry = PeerEntry(SOMEBODY, ("ws://127.0.0.1:9",))

    async def main() -> None:
        async with Node.open(NetworkFile(trackers=(entry,))) as node:
            stream = await node.create_stream("/x")
            complaint = (
                rf"no answer from tracker {SOMEBODY} within 0.3 s \(ws://127.0.0.1:9: .*\): "
                "is it running, at the address in the network file"
            )
            with pytest.raises(StreamUnavailable, match=complaint):
                await stream.publish(1)
            with pytest.raises(StreamUnavailable, match=complaint):
                async with stream.subscribe():
                    raise AssertionError("never reached")
            with pytest.raises(StreamUnavailable, match=complaint):
                await node.join(stream.id)
            assert not node._memberships.joined
            assert node._streams is not None
            assert not node._streams.streams

    run(main())


def test_another_at_the_tracker_s_address_is_not_the_tracker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "JOIN_TIMEOUT_S", 0.3)

    async def scenario(town: Town) -> None:
        entry = PeerEntry(SOMEBODY, town.tracker.addresses)
        async with Node.open(NetworkFile(trackers=(entry,))) as node:
            with pytest.raises(StreamUnavailable, match=f"no answer from tracker {SOMEBODY}"):
                await node.join("/x")

    in_town(scenario)


def test_cancelled_subscriptions_and_publications_leave_no_trace() -> None:
    entry = PeerEntry(SOMEBODY, ("ws://127.0.0.1:9",))

    async def main() -> None:
        async with Node.open(NetworkFile(trackers=(entry,))) as node:
            stream = await node.create_stream("/x")

            async def subscribe() -> None:
                async with stream.subscribe():
                    raise AssertionError("never reached")

            tasks = [
                asyncio.ensure_future(subscribe()),
                asyncio.ensure_future(stream.publish(JSON)),
                asyncio.ensure_future(node.join(stream.id)),
            ]
            await asyncio.sleep(0.05)
            assert node._memberships.joined[stream.id].users == 3
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(result) for result in results] == [asyncio.CancelledError] * 3
            assert not node._memberships.joined
            assert node._streams is not None
            assert not node._streams.streams

    run(main())


def test_whoever_cancels_a_join_as_it_succeeds_is_heard() -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        joining = asyncio.ensure_future(node.join(SOMEBODY + "/x"))
        ready = []

        def cancel(event: object) -> None:
            if type(event) is StreamReady:
                ready.append(joining.cancel())

        node.host.listeners.append(cancel)
        with pytest.raises(asyncio.CancelledError):
            await joining
        assert ready == [True]

    in_town(scenario)


def test_a_cancelled_reader_and_its_successor_miss_nothing() -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.create_stream("/x")
        async with stream.subscribe() as messages:
            for number in range(50):
                waiting = asyncio.ensure_future(anext(messages))
                await asyncio.sleep(0)
                if number % 2:
                    await stream.publish(number)  # it is there, and nobody has taken it
                waiting.cancel()
                await asyncio.wait([waiting])
                if number % 2:
                    got = await take(messages, 1) if waiting.cancelled() else [waiting.result()]
                    assert contents(got) == [number]
            await nothing_more(messages)

    in_town(scenario)


def test_a_closed_node_says_so_and_lets_nobody_wait() -> None:
    entry = PeerEntry(SOMEBODY, ("ws://127.0.0.1:9",))

    async def main() -> None:
        async with Node.open(NetworkFile(trackers=(entry,))) as node:
            stream = await node.create_stream("/x")
            waiting = asyncio.ensure_future(stream.publish(1))
            await asyncio.sleep(0.02)
        async with asyncio.timeout(5):
            with pytest.raises(UsageError, match="this node is closed"):
                await waiting
            with pytest.raises(UsageError, match="this node is closed"):
                await stream.publish(1)
            with pytest.raises(UsageError, match="this node is closed"):
                async with stream.subscribe():
                    raise AssertionError("never reached")
        await node.close()

    run(main())


def test_an_address_that_is_taken_is_named() -> None:
    async def scenario(town: Town) -> None:
        taken = town.tracker.addresses[0]
        network = NetworkFile(node=NodeSection(listen=("ws://127.0.0.1:0", taken)))
        with pytest.raises(UsageError, match=f"cannot listen on {taken}"):
            async with Node.open(network):
                raise AssertionError("never reached")

    in_town(scenario)
