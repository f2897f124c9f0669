"""Publishing over HTTP, and subscribing by server-sent events and WebSocket."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from shoal.base.errors import StreamUnavailable
from shoal.base.ids import StreamId, show_node_id
from shoal.gateway import live_feeds as gateway_feeds
from shoal.gateway import requests as gateway_bodies
from shoal.gateway.config import LINES_MAX, SUBSCRIBER_QUEUE_BYTES_MAX
from shoal.gateway.endpoints.metrics import gauges_of
from shoal.gateway.endpoints.publishing import contents_of
from shoal.gateway.live_feeds import Feeds, Gap, Queue, Told, parse_message_id, show_message_id
from shoal.gateway.requests import TooManySubscribers
from tests.gateway.client import open_gateway
from tests.node.archive import STREAM, Archive, in_archive
from tests.node.disorder import send_in_order
from tests.node.network import Town, contents, in_town, run, take
from tests.node.storage import StorageTown, until_stored
from tests.transport.recorder import until

JSON, NDJSON, TEXT, BINARY = (
    "application/json",
    "application/x-ndjson",
    "text/plain",
    "application/octet-stream",
)


def test_what_is_posted_comes_out_everywhere() -> None:
    async def scenario(town: Town) -> None:
        near, far = await town.move_in(2)
        stream = await near.create_stream("/x")
        path = f"/streams/{stream.id}/messages"
        async with (
            open_gateway(near) as client,
            open_gateway(far) as of_far,
            (await far.open_stream(stream.id)).subscribe() as messages,
            client.events(f"/streams/{stream.id}/live") as own,
            of_far.events(f"/streams/{stream.id}/live") as events,
            of_far.socket(f"/ws/streams/{stream.id}") as socket,
        ):
            (place,) = (await client.post(path, '{"speed": 8.3}', JSON))["messages"]
            await client.post(path, "Grüße", TEXT)
            await client.post(path, b"\xff\x00", BINARY)
            many = await client.post(path, '{"n": 1}\n\n{"n": 2}\n', NDJSON)
            assert place["publisher"] == show_node_id(near.id)
            assert [one["sequence"] >= 0 for one in many["messages"]] == [True, True]
            expected = [{"speed": 8.3}, "Grüße", b"\xff\x00", {"n": 1}, {"n": 2}]
            assert contents(await take(messages, 5)) == expected
            told = [{"speed": 8.3}, "Grüße", "/wA=", {"n": 1}, {"n": 2}]
            assert await own.contents(5) == told
            assert await events.contents(5) == told
            over_socket = [json.loads(await socket.receive_str(timeout=20)) for _ in range(5)]
            assert [one["content"] for one in over_socket] == told
            assert over_socket[0]["timestamp_ms"] == place["timestamp_ms"]
            metrics = of_far.gateway.metrics.text().decode()
            assert "shoal_gateway_subscribers 2.0" in metrics
            metrics = client.gateway.metrics.text().decode()
            assert "shoal_gateway_published_total 5.0" in metrics
            assert 'route="post_streams_id_messages",status="201"} 4.0' in metrics
        # Nobody listens there any more; the other one publishes, and stays.
        await until(lambda: town.members(stream.id) == [near.id], 10)

    in_town(scenario)


@pytest.mark.parametrize(
    ("query", "body", "media", "status", "remedy"),
    [
        ("", "{", JSON, 400, "this is not application/json"),
        ("", '{"n": 1}\n{', NDJSON, 400, "line 2 is not JSON"),
        ("", b"\xff", TEXT, 400, "say what it is in Content-Type"),
        ("?partition=7", "1", JSON, 400, "has one partition, 0"),
        ("?partition=x", "1", JSON, 400, "partition=x: give a whole number"),
        ("?durable=1", "1", JSON, 400, "is kept by nobody"),
        ("?colour=red", "1", JSON, 400, "colour=: no such value"),
        ("", "x" * (512 * 1024 + 1), TEXT, 413, "send smaller chunks"),
        ("", "1\n" * (LINES_MAX + 1), NDJSON, 400, f"send {LINES_MAX} at most"),
    ],
)
def test_what_cannot_be_published_is_explained(
    query: str, body: Any, media: str, status: int, remedy: str
) -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.create_stream("/x")
        async with open_gateway(node) as client:
            answer = await client.post(f"/streams/{stream.id}/messages{query}", body, media, status)
            assert remedy in answer["error"]

    in_town(scenario)


def test_a_tracker_that_does_not_answer_is_nothing_that_the_client_did_wrong() -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.create_stream("/x")
        away = StreamUnavailable("no answer from tracker")
        with mock.patch.object(type(stream), "publish", side_effect=away):
            async with open_gateway(node) as client:
                answer = await client.post(f"/streams/{stream.id}/messages", "1", JSON, 503)
                assert "no answer from tracker" in answer["error"]

    in_town(scenario)


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.create_stream("/x")
        with mock.patch.object(gateway_bodies, "STALLED_S", 0.05):
            async with open_gateway(node) as client:
                host, port = client.gateway.address.removeprefix("http://").split(":")
                reader, writer = await asyncio.open_connection(host, int(port))
                head = f"POST /streams/{stream.id}/messages HTTP/1.1\r\nHost: localhost\r\n"
                writer.write(f"{head}Content-Length: 10\r\n\r\n123".encode())
                async with asyncio.timeout(10):
                    assert b" 408 " in await reader.readline()
                writer.close()
                await writer.wait_closed()

    in_town(scenario)


def test_a_line_that_cannot_be_published_says_how_many_were() -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in(partitions=2)
        stream = await node.create_stream("/x")
        async with open_gateway(node) as client:
            publish, count = type(stream).publish, 0

            async def failing(self: Any, *arguments: Any, **more: Any) -> Any:
                nonlocal count
                count += 1
                return await publish(self, *arguments, **{**more, "durable": count > 2})

            with mock.patch.object(type(stream), "publish", failing):
                path = f"/streams/{stream.id}/messages"
                answer = await client.post(path, "1\n2\n3\n4", NDJSON, 400)
        assert answer["published"] == 2
        assert answer["error"].startswith("line 3: ")

    in_town(scenario)


def test_keys_choose_partitions_and_subscribers_one_of_them() -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in(partitions=4)
        stream = await node.create_stream("/x")
        path = f"/streams/{stream.id}/messages"
        async with (
            open_gateway(node) as client,
            client.events(f"/streams/{stream.id}/live?partition=3") as events,
        ):
            one = await client.post(path + "?key=bus%207", "1\n2", NDJSON)
            assert len({place["partition"] for place in one["messages"]}) == 1
            await client.post(path + "?partition=1", "3", JSON)
            await client.post(path + "?partition=3", "4", JSON)
            assert (await events.contents(1))[-1] in (1, 2, 4)

    in_town(scenario)


def test_a_subscriber_may_want_messages_as_they_come() -> None:
    async def scenario(town: Town) -> None:
        one, two = await town.move_in(2)
        stream = await one.create_stream("/x")
        await one.join(stream.id)
        path = f"/streams/{stream.id}/live"
        async with open_gateway(two) as client:
            async with (
                client.events(path) as ordered,
                client.events(path + "?ordered=false") as unordered,
            ):
                await send_in_order(one, stream, (0, 2, 1))
                assert await ordered.contents(3) == [0, 1, 2]
                seen = [await unordered.next() for _ in range(3)]
                assert [event[2]["content"] for event in seen] == [0, 2, 1]
            # A browser comes back by itself, and there is no place to go on from.
            again = {"Last-Event-ID": seen[-1][1]}
            async with client.events(path + "?ordered=false", **again) as events:
                await stream.publish("after")
                name, _, data = await events.next()
                assert (name, data["gap"]["reason"]) == ("gap", "no-history")
                assert await events.contents(1) == ["after"]
            answer = await client.get(path + "?ordered=false&last=5", 400)
            assert "give no start" in answer["error"]
            answer = await client.get(path + "?ordered=perhaps", 400)
            assert "ordered=perhaps: give true, or false" in answer["error"]

    in_town(scenario)


def test_events_resume_after_the_last_one_seen() -> None:
    async def scenario(town: Archive) -> None:
        publisher = await town.publisher()
        async with open_gateway(await town.open()) as client:
            path = f"/streams/{STREAM}/live"
            async with client.events(path) as events:
                for number in range(3):
                    await publisher.publish(number, durable=True)
                seen = [await events.next() for _ in range(3)]
            assert [event[2]["content"] for event in seen] == [0, 1, 2]
            for number in range(3, 6):
                await publisher.publish(number, durable=True)
            async with client.events(path, **{"Last-Event-ID": seen[1][1]}) as events:
                assert await events.contents(4) == [2, 3, 4, 5]
                await publisher.publish(6)
                assert await events.contents(1) == [6]
            async with client.events(path + "?from=earliest") as events:
                assert await events.contents(7) == [0, 1, 2, 3, 4, 5, 6]
            async with client.socket(f"/ws/streams/{STREAM}?last=2") as socket:
                lines = [json.loads(await socket.receive_str(timeout=20)) for _ in range(2)]
                assert [line["content"] for line in lines] == [5, 6]
            answer = await client.get(path, 400, headers={"Last-Event-ID": "nonsense"})
            assert "give one that an event had" in answer["error"]

    in_archive(scenario)


def test_without_storage_a_subscriber_that_comes_back_hears_of_a_gap() -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.create_stream("/x")
        path = f"/streams/{stream.id}/live"
        async with open_gateway(node) as client:
            async with client.events(path) as events:
                await stream.publish("before")
                _, id, _ = await events.next()
            await stream.publish("missed")
            async with client.events(path, **{"Last-Event-ID": id}) as events:
                await stream.publish("after")
                name, _, data = await events.next()
                assert (name, data["gap"]["reason"]) == ("gap", "no-history")
                assert await events.contents(1) == ["after"]

    in_town(scenario)


def told(number: int, partition: int = 0) -> Told:
    return Told(str(number), b"%d" % number, number, partition)


def test_a_slow_subscriber_loses_the_oldest_and_is_told() -> None:
    async def main() -> None:
        with mock.patch.object(gateway_feeds, "SUBSCRIBER_QUEUE_MAX", 3):
            queue = Queue(None)
            assert [queue.push(told(number)) for number in range(5)] == [0, 0, 0, 1, 1]
            first, second = await anext(queue), await anext(queue)
        assert (first.content, first.gap_before) == (2, Gap(2, "slow-consumer"))
        assert (second.content, second.gap_before) == (3, None)
        queue.end(None)
        assert [one.content async for one in queue] == [4]

    run(main())


def test_what_waits_for_a_subscriber_is_bounded_in_bytes() -> None:
    async def main() -> None:
        third = b"x" * (SUBSCRIBER_QUEUE_BYTES_MAX // 3)
        queue = Queue(None)
        large = [Told(str(number), third, number) for number in range(5)]
        assert [queue.push(one) for one in large] == [0, 0, 0, 1, 1]
        assert queue.push(Told("5", 2 * third, 5)) == 2
        first, second = await anext(queue), await anext(queue)
        assert (first.content, first.gap_before) == (4, Gap(4, "slow-consumer"))
        assert (second.content, second.gap_before) == (5, None)

    run(main())


def test_a_subscriber_s_place_is_given_back() -> None:
    async def main() -> None:
        feeds = Feeds()
        with mock.patch.object(gateway_feeds, "SUBSCRIBERS_MAX", 1):
            async with feeds.counted():
                with pytest.raises(TooManySubscribers, match="ask another node's gateway"):
                    async with feeds.counted():
                        raise AssertionError("never reached")
            async with feeds.counted():
                assert feeds.subscribers == 1

    run(main())


def test_subscribers_end_with_the_gateway() -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.create_stream("/x")
        async with (
            open_gateway(node) as client,
            client.events(f"/streams/{stream.id}/live"),
            client.socket(f"/ws/streams/{stream.id}") as socket,
        ):
            async with asyncio.timeout(10):
                await client.gateway.close()
                assert (await socket.receive()).type.name in ("CLOSE", "CLOSED", "CLOSING")
        await until(lambda: not town.members(stream.id), 10)

    in_town(scenario)


def test_an_event_s_id_is_one_line_whatever_its_publisher_calls_its_chain() -> None:
    stream = StreamId("0x" + "ab" * 20 + "/x")
    id = parse_message_id(stream, "12-3-0-0x" + "cd" * 20 + "-a%0Ab-c")
    assert id.chain == "a\nb-c"
    assert parse_message_id(stream, show_message_id(id)) == id
    assert "\n" not in show_message_id(id)


def test_a_body_is_what_its_type_says() -> None:
    assert contents_of(JSON, b"[1]") == [msgspec.Raw(b"[1]")]
    assert contents_of(JSON, b'"one"') == ["one"]
    assert contents_of(NDJSON, b'1\n"two"\n\n') == [msgspec.Raw(b"1"), "two"]
    assert contents_of("text/csv", b"a,b") == ["a,b"]
    assert contents_of("image/png", b"\x89") == [b"\x89"]


def test_messages_take_no_more_room_than_their_body() -> None:
    """They wait for storage, or for a slow link, and the budget counts the body."""
    line = b"[" + b"{}," * 100_000 + b"{}]"
    body = b"\n".join([line] * 8)
    tracemalloc.start()
    try:
        contents = contents_of(NDJSON, body)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1.5 * len(body)
    assert [bytes(content) for content in contents] == [line] * 8


def test_a_durable_message_without_storage_is_waited_for_under_its_id(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one")
        async with town.open("tracker"), town.open() as node, open_gateway(node) as client:
            stream = await node.open_stream("0x" + "ab" * 20 + "/x")
            path = f"/streams/{stream.id}/messages"
            answer = await client.post(f"{path}?durable=1", "1", JSON, 503)
            assert "tries again" in answer["error"]
            place = json.dumps(answer["message"])
            many = await client.post(f"{path}?durable=1", "2\n3", NDJSON, 503)
            assert many["published"] == 0
            assert many["message"]["timestamp_ms"] >= answer["message"]["timestamp_ms"]
            await client.post(f"{path}/retry", "{}", JSON, 400)
            assert [gauge.value for gauge in gauges_of(node)] == [2, 0]
            async with town.open("one") as keeper:
                kept = await client.post(f"{path}/retry", place, JSON, 200)
                assert kept == {"messages": [answer["message"]]}
                await until_stored(keeper, 2)
            stranger = place.replace(str(answer["message"]["timestamp_ms"]), "1")
            await client.post(f"{path}/retry", stranger, JSON, 404)

    run(main())
