"""Subscriptions that want messages as they come."""

from __future__ import annotations

import pytest

import shoal
from shoal.base.errors import UsageError
from shoal.kernel.records import Delivered
from shoal.node import Last
from tests.node.disorder import send_in_order
from tests.node.network import Town, contents, in_town, nothing_more, take

ORDER = (0, 3, 2, 1, 4)


@pytest.mark.parametrize("first", [True, False])
def test_each_subscription_of_a_node_is_told_in_the_order_that_it_wants(first: bool) -> None:
    async def scenario(town: Town) -> None:
        one, two = await town.move_in(2)
        stream = await one.create_stream("/x")
        await one.join(stream.id)
        other = await two.open_stream(stream.id)
        async with other.subscribe(ordered=first) as a, other.subscribe(ordered=not first) as b:
            ordered, unordered = (a, b) if first else (b, a)
            await send_in_order(one, stream, ORDER)
            assert contents(await take(ordered, 5)) == [0, 1, 2, 3, 4]
            as_they_came = await take(unordered, 5)
            assert contents(as_they_came) == list(ORDER)
            assert [m.gap_before for m in as_they_came] == [None] * 5
            assert {m.offset for m in as_they_came} == {None}
            assert as_they_came[0].hops == 1
            await nothing_more(ordered)
            await nothing_more(unordered)

    in_town(scenario)


def test_nobody_who_is_alone_waits_for_a_message_before_it() -> None:
    async def scenario(town: Town) -> None:
        one, two = await town.move_in(2)
        stream = await one.create_stream("/x")
        await one.join(stream.id)
        delivered: list[Delivered] = []
        two.host.observers.append(
            lambda _, record: delivered.append(record) if type(record) is Delivered else None
        )
        async with (await two.open_stream(stream.id)).subscribe(ordered=False) as messages:
            await send_in_order(one, stream, ORDER)
            assert contents(await take(messages, 5)) == list(ORDER)
        assert len(delivered) == 5

    in_town(scenario)


def test_own_messages_come_too() -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.create_stream("/x")
        async with stream.subscribe(ordered=False) as messages, stream.subscribe() as others:
            await stream.publish(1)
            assert contents(await take(messages, 1)) == contents(await take(others, 1)) == [1]
            await nothing_more(messages)

    in_town(scenario)


@pytest.mark.parametrize("start", ["earliest", Last(5)])
def test_history_is_in_order(start: shoal.Last | str) -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.create_stream("/x")
        with pytest.raises(UsageError, match="give no start"):
            async with stream.subscribe(start, ordered=False):
                pass

    in_town(scenario)
