"""A node whose clock is off publishes nothing, says by how much, and goes on when it is right."""

from __future__ import annotations

from contextlib import AsyncExitStack
from time import time_ns

import msgspec
import pytest

import shoal
from shoal.base.units import S_NS
from shoal.config.network_file import NetworkFile
from shoal.config.sections import DhtSection, NodeSection, TrackerSection
from shoal.identity import PrivateKey, SeededEntropy
from shoal.node.clock_guard import BELIEVED_NS
from shoal.node.node import Node
from shoal.protocols.streams.peer_clocks import ClocksCompared
from tests.node.network import Town, in_town, network_of, open_tracker, run
from tests.transport.recorder import until


def step(node: Node, by_s: float) -> None:
    """Set what one node takes for the system clock, to so much off the true time."""
    node.host._clock._wall_ns = lambda: time_ns() + round(by_s * S_NS)


@pytest.mark.parametrize("step_s", [600, -600, 3600])
def test_publish_raises_while_the_clock_is_off_and_works_when_it_is_right(step_s: int) -> None:
    async def scenario(town: Town) -> None:
        alice, bob = await town.move_in(2)
        stream = await alice.create_stream("/x")
        there = await bob.open_stream(stream.id)
        async with there.subscribe() as messages:
            await stream.publish({"n": 1})
            assert (await anext(messages)).content == {"n": 1}
            step(alice, step_s)
            with pytest.raises(shoal.ClockWrong) as raised:
                await stream.publish({"n": 2})
            said = f"{abs(step_s)}.0 s {'ahead of' if step_s > 0 else 'behind'}"
            assert said in str(raised.value)
            assert "Set the clock" in str(raised.value)
            await until(lambda: not alice.readiness.ready)
            assert any(said in problem for problem in alice.readiness.problems)
            step(alice, 0)
            await stream.publish({"n": 3})
            assert (await anext(messages)).content == {"n": 3}
            await until(lambda: alice.readiness.ready)

    in_town(scenario)


def test_one_peer_that_is_wrong_among_three_stops_nobody() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            trackers = [
                await stack.enter_async_context(open_tracker(name=f"t{n}")) for n in range(3)
            ]
            step(trackers[0], 86_400)
            network = NetworkFile(
                trackers=tuple(e for t in trackers for e in network_of(t).trackers)
            )
            node = await stack.enter_async_context(Node.open(network))
            stream = await node.create_stream("/x")
            await stream.publish(1)
            await until(lambda: node.clock.problem() is None and node.clock.ahead_ns is not None)
            step(trackers[1], 86_400)
            step(node, 0.5)  # nothing to speak of: it is asked again by and by
            await stream.publish(2)

    run(main())


def test_the_only_tracker_decides_and_the_limit_can_be_raised() -> None:
    async def main() -> None:
        async with open_tracker() as tracker:
            step(tracker, 600)
            network = network_of(tracker)
            async with Node.open(network) as node:
                stream = await node.create_stream("/x")
                with pytest.raises(shoal.ClockWrong, match=r"600\.\d s behind 1 of 1"):
                    await stream.publish(1)
            patient = NodeSection(clock_limit_s=700)
            async with Node.open(msgspec.structs.replace(network, node=patient)) as node:
                stream = await node.create_stream("/x")
                await stream.publish(1)

    run(main())


def test_the_first_answer_of_a_round_does_not_outvote_the_round_before() -> None:
    """As that of a tracker on the same machine, whose clock is as wrong as ours."""

    async def main() -> None:
        async with Node.open(NetworkFile(tracker=TrackerSection())) as node:
            await until(lambda: node.clock.problem() is None and not node.clock.wrong)
            one, two, three = (PrivateKey.generate(SeededEntropy(str(n))).address for n in range(3))
            off = (two, 600 * S_NS), (three, 600 * S_NS)
            blame = ClocksCompared(600 * S_NS, ((one, 0), *off), 3, final=True)
            node.clock._notified(ClocksCompared(0, ((one, 0),), 3, final=False))
            assert node.clock.problem() is None  # until more is known
            for _ in range(2):
                node.clock._notified(blame)
                assert "600.0 s ahead of 3 of 3" in str(node.clock.problem())
                node.clock._notified(ClocksCompared(0, ((one, 0),), 3, final=False))
                assert "600.0 s ahead of 3 of 3" in str(node.clock.problem())
            node.clock._notified(ClocksCompared(0, ((one, 0), (two, 0), (three, 0)), 3, final=True))
            assert node.clock.problem() is None

    run(main())


def test_without_anybody_to_ask_a_step_is_believed_when_it_is_undone_or_lasts() -> None:
    async def main() -> None:
        network = NetworkFile(tracker=TrackerSection())
        async with Node.open(network) as node:
            stream = await node.create_stream("/x")
            await stream.publish(1)
            step(node, 3600)
            with pytest.raises(shoal.ClockWrong, match="was set ahead by 3600"):
                await stream.publish(2)
            assert not node.clock.is_settled
            step(node, 0)
            await stream.publish(3)
            step(node, 3600)
            node.host.now_ns()
            node.host.wall.stepped_ns -= BELIEVED_NS
            await stream.publish(4)

    run(main())


def test_a_topic_takes_nothing_either() -> None:
    async def main() -> None:
        async with Node.open(NetworkFile(dht=DhtSection())) as node:
            topic = await node.create_topic("news")
            await topic.publish(b"a")
            step(node, -600)
            with pytest.raises(shoal.ClockWrong, match="was set back by 600"):
                await topic.publish(b"b")
            step(node, 0)
            await topic.publish(b"c")

    run(main())
