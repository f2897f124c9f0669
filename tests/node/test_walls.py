"""Each part of a node reads the time of day of its host: none has a clock that nobody sets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

import msgspec
import pytest

from shoal.config.sections import (
    DhtSection,
    SearchSection,
    StorageSection,
    TopicsSection,
    TrackerSection,
    WebRTCSection,
)
from shoal.kernel.wall_clock import WallClock
from shoal.node import Node
from tests.node.network import network_of, open_tracker, run
from tests.node.private import PrivateTown


def parts_of(thing: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, as far as it can lead to parts of Shoal."""
    if isinstance(thing, dict):
        for key, value in list(thing.items()):
            yield f"[{key!r}]", value
            yield f"[key {key!r}]", key
    elif isinstance(thing, list | tuple | set | frozenset) or hasattr(thing, "popleft"):
        for at, value in enumerate(list(thing)):
            yield f"[{at}]", value
    elif isinstance(thing, partial):
        yield ".func", thing.func
        yield ".args", thing.args
        yield ".keywords", thing.keywords
    elif isinstance(thing, MethodType | BuiltinMethodType):
        yield ".__self__", thing.__self__
    elif isinstance(thing, FunctionType):
        for at, cell in enumerate(thing.__closure__ or ()):
            with suppress(ValueError):
                yield f".<closure {at}>", cell.cell_contents
    elif type(thing).__module__.partition(".")[0] == "shoal":
        names = list(getattr(thing, "__dict__", {}))
        for kind in type(thing).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            names += [slots] if isinstance(slots, str) else list(slots)
        names += list(getattr(thing, "__struct_fields__", ()))
        for name in dict.fromkeys(names):
            with suppress(AttributeError):
                yield f".{name}", getattr(thing, name)


def walls_of(root: Any, name: str) -> dict[str, WallClock]:
    """Every clock that can be reached from an object, by one way to it."""
    walls: dict[str, WallClock] = {}
    seen: dict[int, Any] = {id(root): root}
    left = [(name, root)]
    while left:
        way, thing = left.pop()
        if isinstance(thing, WallClock):
            walls[way] = thing
            continue
        if isinstance(thing, str | bytes | int | float | type | None):
            continue
        for step, part in parts_of(thing):
            if id(part) not in seen:
                seen[id(part)] = part
                left.append((way + step, part))
    return walls


def check(node: Node) -> dict[str, WallClock]:
    host = node.host
    driven = {id(wall) for wall in host._walls}
    walls = walls_of(node, "node")
    loose = [way for way, wall in walls.items() if id(wall) not in driven]
    assert not loose, loose
    return walls


def test_every_part_of_a_node_reads_the_clock_that_its_host_sets(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            tracker = await stack.enter_async_context(open_tracker())
            (tmp_path / "token").write_text("x" * 32)
            network = msgspec.structs.replace(
                network_of(tracker),
                tracker=TrackerSection(),
                storage=StorageSection(create=True),
                dht=DhtSection(),
                topics=TopicsSection(),
                search=SearchSection(),
                webrtc=WebRTCSection(),
                folder=str(tmp_path),
            )
            node = await stack.enter_async_context(Node.open(network))
            stream = await node.create_stream("/x")
            async with stream.subscribe():
                await stream.publish({"n": 1})
                topic = await node.create_topic("t")
                await topic.publish(b"x")
                found = check(node)
                assert len(found) >= 5, found  # or the way to them is not found

    run(main())


def test_with_a_registry_every_part_reads_it_as_well(tmp_path: Path) -> None:
    pytest.importorskip("pyrevm", reason="no EVM is made for this Python")

    async def main() -> None:
        town = PrivateTown(tmp_path)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(town.registry())
            for name in ("tracker", "storage", "alice"):
                node = await stack.enter_async_context(town.open(name))
                if name == "alice":
                    stream = await node.create_stream("/x")
                    async with stream.subscribe():
                        await stream.publish({"n": 1})
                        check(node)
                check(node)
        await asyncio.get_running_loop().shutdown_default_executor()

    run(main())
