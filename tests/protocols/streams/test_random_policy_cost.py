"""What one event costs the random policy, counted and not timed: the same at any size."""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random
from types import FrameType
from typing import Any

import pytest

from shoal.base.ids import NodeId, node_id
from shoal.protocols.streams.topology.policy import LinkChanges
from shoal.protocols.streams.topology.random_policy import RandomPolicy


def node(number: int) -> NodeId:
    return node_id(number.to_bytes(20, "big"))


def bytecodes(run: Callable[[], object]) -> int:
    """How many bytecode instructions a call executes: a clock that does not depend on machines."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


class CountingRandom(Random):
    """Counts the words drawn."""

    drawn = 0

    def getrandbits(self, k: int, /) -> int:
        """Draw and count."""
        self.drawn += 1
        return super().getrandbits(k)


def dearest_event(degree: int, n: int) -> dict[str, tuple[int, int, int]]:
    """The most (bytecodes, link changes, random words) of 50 events of each kind at n nodes."""
    rng = CountingRandom(degree)
    policy = RandomPolicy(degree, rng)
    for each in range(n):
        policy.join(node(each))
    choose = Random(1)
    most: dict[str, tuple[int, int, int]] = {}

    def measure(kind: str, run: Callable[[], LinkChanges]) -> None:
        drawn, version = rng.drawn, policy._graph.version
        steps = bytecodes(run)
        cost = (steps, policy._graph.version - version, rng.drawn - drawn)
        most[kind] = max(most.get(kind, (0, 0, 0)), cost)

    for each in range(n, n + 50):
        measure("join", lambda each=each: policy.join(node(each)))  # type: ignore[misc]
        a = choose.choice(list(policy.nodes))
        b = choose.choice(policy.neighbours(a))
        measure("link_failed", lambda a=a, b=b: policy.link_failed(a, b))  # type: ignore[misc]
        measure("leave", lambda a=a: policy.leave(a))  # type: ignore[misc]
    return most


@pytest.mark.parametrize("degree", [3, 4, 5, 6])
def test_the_cost_of_an_event_does_not_grow_with_the_overlay(degree: int) -> None:
    small, large = dearest_event(degree, 100), dearest_event(degree, 5000)
    for kind, (steps, changes, drawn) in large.items():
        # A join cuts d / 2 links and makes d; a leave cuts d and makes d / 2, with a switch
        # (a cut and a link more) for each pair that is linked already; a failed link needs one.
        assert changes <= 3 * degree + 2, kind
        assert drawn <= 20 * degree, kind
        assert steps <= 1.5 * small[kind][0], kind
