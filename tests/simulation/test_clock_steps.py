"""The clock of one role is set, and set right again: nothing that was acknowledged is lost, nothing
is removed, and all works soon after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.base.ids import MessageId
from shoal.base.units import S_NS
from shoal.protocols.streams.commands import JoinStream, MessageArrived
from shoal.sim import SimNode
from shoal.sim.simulation import START_NS
from shoal.storage.config import Retention, StoreConfig
from tests.support.storage_network import STREAM, STREAMS, StorageNetwork

DAY_S = 86_400
STEPS_S = [600, -600, 3600, 30 * DAY_S]
ROLES = ["publisher", "subscriber", "tracker", "storage"]
CONFIG = StoreConfig(retention=Retention(age_ns=DAY_S * S_NS, size_bytes_max=None))
BEGIN_S, LASTS_S, RIGHT_S = 30.0, 10.0, 60.0


class World(StorageNetwork):
    """A tracker, publishers that go on, one subscriber that hears, and two storage nodes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(7, folder, publishers=4, store_config=CONFIG)
        self.heard: dict[MessageId, int] = {}
        self.gaps = 0
        self.subscriber = self.publishers[-1]
        self.at_s: dict[MessageId, float] = {}

    def begin(self) -> None:
        self.start()
        self.subscriber.listeners.append(self._hear)
        self.subscriber.command(STREAMS, JoinStream(STREAM, subscribe=True))

    def victim(self, role: str) -> SimNode:
        if role == "tracker":
            return self.simulation.with_role("tracker")[0]
        if role == "storage":
            return self.storage[0]
        return self.subscriber if role == "subscriber" else self.publishers[0]

    def go_on(self, end_s: float) -> None:
        """Two of the publishers publish, the one that may be the victim among them."""
        number = len(self.published)
        while self.simulation.time_s < end_s:
            before = set(self.published)
            self.publish(number % 2)
            number += 1
            for id in self.published.keys() - before:
                self.at_s[id] = self.simulation.time_s
            self.simulation.run_for(1)

    def _hear(self, event: Any) -> None:
        if isinstance(event, MessageArrived):
            id = event.message.id
            self.heard[id] = self.heard.get(id, 0) + 1
            self.gaps += event.gap_before


def published_in(world: World, when: Callable[[float], bool]) -> set[MessageId]:
    return {id for id, at_s in world.at_s.items() if when(at_s)}


@pytest.mark.parametrize("step_s", STEPS_S)
@pytest.mark.parametrize("role", ROLES)
def test_a_step_for_ten_seconds_costs_no_more_than_that(
    tmp_path: Path, role: str, step_s: int
) -> None:
    with World(tmp_path) as world:
        world.begin()
        world.simulation.run_for(5)
        world.go_on(BEGIN_S)
        node = world.victim(role)
        node.step_wall(step_s * S_NS)
        world.go_on(BEGIN_S + LASTS_S)
        node.step_wall(-step_s * S_NS)
        world.go_on(BEGIN_S + LASTS_S + RIGHT_S)
        world.simulation.run_for(30)
        kept = [{row.id for row in rows_of(store)} for store in world.stores]
        end_s = BEGIN_S + LASTS_S
        others = published_in(world, lambda s: not BEGIN_S - 1 < s < end_s + 1)
        # What the victim stamps wrongly, others refuse: a node with a checked clock publishes none.
        own_wrong = {id for id in world.at_s if is_off(world, id)}
        assert len(own_wrong) <= 6 if role == "publisher" and step_s > 0 else not own_wrong
        assert others - own_wrong <= kept[0]
        assert others - own_wrong <= kept[1]
        assert set(world.heard.values()) == {1}, "nothing twice"
        wanted = world.at_s.keys() - own_wrong
        assert wanted <= world.heard.keys(), "nor anything missing, live"
        for store in world.stores:
            store.check_invariants()


def rows_of(store: Any) -> list[Any]:
    return [row for page in store.range(STREAM, 0) for row in page]


def is_off(world: World, id: MessageId) -> bool:
    return abs(id.timestamp_ms / 1000 - START_NS / S_NS - world.at_s[id]) > 60
