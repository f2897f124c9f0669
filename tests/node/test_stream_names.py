"""Names of streams through the API: whose they are, and which cannot be."""

from __future__ import annotations

import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import show_node_id
from shoal.node import NetworkFile, Node
from tests.node.network import run

SOMEBODY = "0x" + "ab" * 20


def test_a_path_is_mine_and_a_full_id_is_anybody_s() -> None:
    async def main() -> None:
        async with Node.open(NetworkFile()) as node:
            own = show_node_id(node.id)
            assert (await node.create_stream("/city/vehicles")).id == f"{own}/city/vehicles"
            assert (await node.open_stream("/x")).id == f"{own}/x"
            assert (await node.open_stream(f"{SOMEBODY}/a/b")).id == f"{SOMEBODY}/a/b"
            assert repr(await node.open_stream("/x")) == f"Stream('{own}/x')"

    run(main())


def test_upper_and_lower_case_name_the_same_stream() -> None:
    async def main() -> None:
        async with Node.open(NetworkFile()) as node:
            mixed = await node.open_stream("0x" + "Ab" * 20 + "/Path")
            assert mixed.id == f"{SOMEBODY}/Path"

    run(main())


@pytest.mark.parametrize(
    "id", ["", "x", SOMEBODY, SOMEBODY + "/", "0x12/path", "name/path", f"{SOMEBODY}/{'x' * 300}"]
)
def test_a_name_that_cannot_be_is_refused_with_a_remedy(id: str) -> None:
    async def main() -> None:
        async with Node.open(NetworkFile()) as node:
            with pytest.raises(UsageError, match="write"):
                await node.open_stream(id)

    run(main())


def test_an_own_path_begins_with_a_slash() -> None:
    async def main() -> None:
        async with Node.open(NetworkFile()) as node:
            with pytest.raises(UsageError, match=r"'vehicles': begin with a slash, as in '/city"):
                await node.create_stream("vehicles")
            with pytest.raises(UsageError, match="path"):
                await node.create_stream("/")

    run(main())


def test_a_node_without_a_tracker_says_what_is_missing() -> None:
    async def main() -> None:
        async with Node.open(NetworkFile()) as node:
            stream = await node.create_stream("/x")
            with pytest.raises(UsageError, match=r"add \[\[trackers\]\]"):
                await stream.publish(1)
            with pytest.raises(UsageError, match=r"add \[\[trackers\]\]"):
                async with stream.subscribe():
                    raise AssertionError("never reached")

    run(main())
