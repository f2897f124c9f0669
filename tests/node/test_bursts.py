"""Bursts over sockets: nothing is lost between a fast publisher and a subscriber that keeps up."""

from __future__ import annotations

from shoal.kernel.records import GapFound, Record, Rejected
from tests.node.network import Town, contents, in_town, take

BURST = 3_000  # three times what one link may have a node check at once


def test_a_burst_arrives_whole_and_in_order() -> None:
    async def scenario(town: Town) -> None:
        one, two = await town.move_in(2)
        records: list[Record] = []
        two.host.observers.append(lambda now_ns, record: records.append(record))
        stream = await one.create_stream("/x")
        async with (await two.open_stream(stream.id)).subscribe() as messages:
            for number in range(BURST):
                await stream.publish(number)
            arrived = await take(messages, BURST)
            assert contents(arrived) == list(range(BURST))
            assert not any(message.gap_before for message in arrived)
            assert not [record for record in records if isinstance(record, GapFound | Rejected)]

    in_town(scenario)
