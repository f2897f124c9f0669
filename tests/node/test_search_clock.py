"""A node whose clock is off neither puts documents nor searches: others refuse what it casts."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.base.errors import ClockWrong
from shoal.node import Node
from tests.node.search import found, in_search_town, until_found
from tests.node.test_clock_guard import step


@pytest.mark.parametrize("step_s", [-700, 700])
def test_who_has_a_wrong_clock_is_told_instead_of_finding_nothing(
    tmp_path: Path, step_s: int
) -> None:
    async def scenario(alice: Node, bob: Node) -> None:
        await bob.put({"title": "air"}, kind="durable", name="q")
        await until_found(alice, "title:air", 1)
        step(alice, step_s)
        with pytest.raises(ClockWrong):
            await alice.put({"title": "noise"}, kind="instant")
        with pytest.raises(ClockWrong):
            await found(alice, "title:air")
        with pytest.raises(ClockWrong):
            async with alice.watch("title:noise"):
                pass
        step(alice, 0)
        await alice.put({"title": "noise"}, kind="durable")
        await until_found(bob, "title:noise", 1)

    in_search_town(tmp_path, scenario, "alice", "bob")
