"""The gateway over HTTP: health, metrics, and what a live tracker knows."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import permutations, product
from typing import Any

import aiohttp
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from shoal.base.errors import UsageError
from shoal.base.ids import show_node_id
from shoal.config.sections import PeerEntry, StreamSettings, TrackerSection
from shoal.gateway import Gateway
from shoal.kernel.inputs import TimerFired
from shoal.kernel.records import Rejected
from shoal.node import NetworkFile, Node, Stream
from shoal.protocols.streams.tracker.delay_estimate import estimate_delays
from shoal.protocols.streams.tracker.stream_record import overlay_of
from tests.node.network import Town, in_town, run, take
from tests.runtime.world import left_over
from tests.support.machines import peer_id
from tests.transport.recorder import until

MEMBERS = 4


class Client:
    """Reads from a gateway."""

    def __init__(self, gateway: Gateway, session: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self._session = session

    async def get(self, path: str, status: int = 200, method: str = "GET") -> Any:
        """The JSON of an answer."""
        async with self._session.request(method, self.gateway.address + path) as response:
            assert response.status == status, await response.text()
            assert response.content_type == "application/json"
            return await response.json()

    async def metrics(self) -> dict[str, float]:
        """Every sample, by name and labels."""
        async with self._session.get(self.gateway.address + "/metrics") as response:
            assert response.status == 200
            assert response.content_type == "text/plain"
            text = await response.text()
        return {
            sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@asynccontextmanager
async def gateway_of(node: Node, listen: str = "127.0.0.1:0") -> AsyncIterator[Client]:
    gateway = Gateway(node.host, node.tracker)
    try:
        await gateway.open(listen)
        async with aiohttp.ClientSession() as session:
            yield Client(gateway, session)
    finally:
        await gateway.close()


async def carried(town: Town) -> Stream:
    """A stream with a few members, fully linked, whose round trips the tracker knows."""
    nodes = await town.move_in(MEMBERS)
    stream = await nodes[0].create_stream("/city/vehicles")
    for node in nodes:
        await node.join(stream.id)
    await until(lambda: all(node.degree(stream.id) == MEMBERS - 1 for node in nodes))
    assert town.tracker.tracker is not None
    tracked = town.tracker.tracker.streams[stream.id]
    for node in nodes:
        machine = node._streams
        assert machine is not None
        active = machine.streams[stream.id].channel.active
        await until(lambda m=machine, a=active: all(m.rtts.rtt_us(p) for p in a))  # type: ignore[misc]
        # Ahead of time: reports are due after half a minute.
        node.host.feed(node.host.machines.index(machine), TimerFired(("report", stream.id)))
    await until(lambda: len(tracked.delays) == MEMBERS * (MEMBERS - 1) // 2)
    return stream


def test_health_says_who_is_there() -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        await node.join("/x")
        async with gateway_of(node) as client, gateway_of(town.tracker) as of_tracker:
            assert await client.get("/health") == {
                "node": show_node_id(node.id),
                "links": 1,
                "tracker": False,
            }
            assert (await of_tracker.get("/health"))["tracker"] is True

    in_town(scenario)


def test_metrics_count_what_happened() -> None:
    async def scenario(town: Town) -> None:
        one, two = await town.move_in(2)
        stream = await one.create_stream("/x")
        async with (
            gateway_of(one) as of_one,
            (await two.open_stream(stream.id)).subscribe() as messages,
        ):
            # This one comes when links are up already.
            async with gateway_of(two) as of_two:
                before = await of_two.metrics()
                assert before["shoal_links"] == 1
                assert before["shoal_received_total"] == 0
                for number in range(10):
                    await stream.publish(number)
                await take(messages, 10)
                two.host.rejected(peer_id(1), "stale")
                two.host.rejected(peer_id(1), "stale")
                two.host.rejected(peer_id(2), "malformed")
                published, got = await of_one.metrics(), await of_two.metrics()
            assert published["shoal_published_total"] == 10
            assert published["shoal_forwarded_total"] == 10
            assert published["shoal_received_total"] == 0
            assert published["shoal_links"] == len(one.host.connections) == 2
            assert got["shoal_received_total"] == 10
            assert got["shoal_delivered_total"] == 10
            assert got["shoal_duplicates_total"] == 0
            assert got["shoal_rejected_total stale"] == 2
            assert got["shoal_rejected_total malformed"] == 1
            assert got["shoal_links"] == 2
            # Ages, as a histogram: buckets only grow, and the last one is everything.
            buckets = [v for k, v in got.items() if k.startswith("shoal_message_age_seconds_b")]
            assert len(buckets) == 10
            assert buckets == sorted(buckets)
            assert buckets[-1] == got["shoal_message_age_seconds_count"] == 10
            assert 0 < got["shoal_message_age_seconds_sum"] < 60

    in_town(scenario)


def test_a_tracker_shows_its_streams_and_their_topology() -> None:
    async def scenario(town: Town) -> None:
        async with gateway_of(town.tracker) as client:
            assert await client.get("/streams") == []
            stream = await carried(town)
            assert await client.get("/streams") == [{"id": stream.id, "members": MEMBERS}]
            topology = await client.get(f"/streams/{stream.id}/topology")
            ids = [show_node_id(node.id) for node in town.nodes]
            assert topology["degree"] == 4
            assert topology["members"] == ids
            links = {(link["a"], link["b"]) for link in topology["links"]}
            assert len(topology["links"]) == len(links) == MEMBERS * (MEMBERS - 1) // 2
            assert {end for link in links for end in link} == set(ids)
            assert all(link["rtt_us"] > 0 for link in topology["links"])

    in_town(scenario)


def test_the_estimate_is_that_of_the_tracker_s_measurements() -> None:
    async def scenario(town: Town) -> None:
        async with gateway_of(town.tracker) as client:
            stream = await carried(town)
            topology = await client.get(f"/streams/{stream.id}/topology")
            estimate = await client.get(f"/streams/{stream.id}/estimate")
            assert town.tracker.tracker is not None
            state = town.tracker.tracker.streams[stream.id]
            expected = estimate_delays(*overlay_of(state))
        distances = shortest_ms(topology)
        assert estimate["nodes"] == MEMBERS
        assert estimate["links"] == estimate["measured_links"] == len(topology["links"])
        assert estimate["reachable_pairs"] == MEMBERS * (MEMBERS - 1)
        assert estimate == msgspec.to_builtins(expected)
        # Loopback varies a lot; the fastest of varying paths is faster than the fastest mean.
        values = list(distances.values())
        assert estimate["mean_ms"] <= 1.5 * sum(values) / len(values)
        assert 0 < estimate["min_ms"] <= estimate["max_ms"] < 5_000, "this is loopback"
        assert set(estimate["per_node_ms"]) == set(topology["members"])

    in_town(scenario)


def shortest_ms(topology: Any) -> dict[tuple[str, str], float]:
    """Floyd and Warshall, over half the round trips."""
    members = topology["members"]
    far = dict.fromkeys(permutations(members, 2), math.inf)
    for link in topology["links"]:
        far[link["a"], link["b"]] = far[link["b"], link["a"]] = link["rtt_us"] / 2_000
    for middle, a, b in product(members, repeat=3):
        if len({middle, a, b}) == 3:
            far[a, b] = min(far[a, b], far[a, middle] + far[middle, b])
    return far


def test_without_measurements_there_is_no_estimate_but_an_answer() -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        await node.join("/x")
        async with gateway_of(town.tracker) as client:
            estimate = await client.get(f"/streams/{show_node_id(node.id)}/x/estimate")
        assert (estimate["nodes"], estimate["links"]) == (1, 0)
        assert estimate["mean_ms"] is None
        assert estimate["per_node_ms"] == {show_node_id(node.id): None}

    in_town(scenario)


@pytest.mark.parametrize(
    ("method", "path", "status", "remedy"),
    [
        ("GET", "/", 404, "GET one of /health, /ready, /metrics, /node, /streams"),
        ("GET", "/stream", 404, "GET one of"),
        ("GET", "/streams/x", 404, "GET one of"),
        ("GET", "/streams/0x12/y/topology", 404, "GET /streams lists what is tracked"),
        ("GET", "/streams/0x12/y/estimate", 404, "GET /streams lists what is tracked"),
        ("POST", "/health", 405, "no POST /health here: GET one of"),
        ("DELETE", "/streams", 405, "GET one of"),
    ],
)
def test_errors_are_json_with_a_remedy(method: str, path: str, status: int, remedy: str) -> None:
    async def scenario(town: Town) -> None:
        async with gateway_of(town.tracker) as client:
            answer = await client.get(path, status, method)
            assert remedy in answer["error"]

    in_town(scenario)


def test_a_tracker_says_who_keeps_a_stream() -> None:
    keeper = PeerEntry(show_node_id(peer_id(7)), ("ws://keeper:1",))
    settings = StreamSettings(storage=(keeper.id,))
    network = NetworkFile(tracker=TrackerSection(), storage_nodes=(keeper,), streams=(settings,))

    async def main() -> None:
        async with Node.open(network) as node, gateway_of(node) as client:
            path = f"/streams/{show_node_id(node.id)}/x/storage"
            assert await client.get(path) == [{"id": keeper.id, "addresses": ["ws://keeper:1"]}]

    run(main())


def test_a_node_that_is_no_tracker_says_whom_to_ask() -> None:
    async def main() -> None:
        async with Node.open(NetworkFile()) as node, gateway_of(node) as client:
            assert await client.get("/streams") == []
            answer = await client.get("/streams/0x12/y/topology", 404)
            assert answer["error"] == "this node is no tracker: ask the tracker of 0x12/y"

    run(main())


@pytest.mark.parametrize("listen", ["", "7780", "127.0.0.1", "127.0.0.1:", ":80", "x:y", "x:70000"])
def test_an_address_that_cannot_be_is_refused(listen: str) -> None:
    async def main() -> None:
        async with Node.open(NetworkFile()) as node:
            with pytest.raises(UsageError, match=r"write host:port, as in 127\.0\.0\.1:7780"):
                async with gateway_of(node, listen):
                    raise AssertionError("never reached")

    run(main())


def test_an_address_that_is_taken_is_named() -> None:
    async def main() -> None:
        async with Node.open(NetworkFile()) as node, gateway_of(node) as client:
            taken = client.gateway.address.removeprefix("http://")
            with pytest.raises(UsageError, match=f"{taken}.*: choose another port"):
                async with gateway_of(node, taken):
                    raise AssertionError("never reached")
            assert await client.get("/health")

    run(main())


def test_closing_leaves_nothing() -> None:
    async def scenario(town: Town) -> None:
        stream = await carried(town)
        before, observers = left_over(), len(town.tracker.host.observers)
        for _ in range(3):
            async with gateway_of(town.tracker) as client:
                await client.get("/health")
                await client.get(f"/streams/{stream.id}/estimate")
            await client.gateway.close()  # again does no harm
        await until(lambda: left_over() == before, 5)
        assert len(town.tracker.host.observers) == observers
        town.tracker.host.record(0, Rejected(peer_id(1), "unheard"))
        assert b"unheard" not in client.gateway.metrics.text()

    in_town(scenario)


def test_a_request_under_way_does_not_hold_the_end_up() -> None:
    async def main() -> None:
        async with Node.open(NetworkFile()) as node, gateway_of(node) as client:
            host, port = client.gateway.address.removeprefix("http://").split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /health HTTP/1.1\r\n")  # and not a word more
            await writer.drain()
            async with asyncio.timeout(10):
                await client.gateway.close()
            writer.close()

    run(main())
