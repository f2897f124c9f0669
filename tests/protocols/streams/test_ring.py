"""Which trackers a stream goes to: the same for everybody, spread evenly, pins first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import StreamId
from shoal.protocols.streams.member.tracker_selection import TrackerRing
from tests.support.streams import ALICE, BOB, CAROL, DAVE, STREAM, contact, node

TRACKERS = [contact(node(1000 + number)) for number in range(5)]
STREAMS = [StreamId(f"0xab/stream/{number}") for number in range(2000)]


def test_the_order_does_not_depend_on_who_computes_it() -> None:
    ring, other = TrackerRing(TRACKERS), TrackerRing(TRACKERS[::-1])
    for stream in STREAMS[:200]:
        assert ring.order(stream) == other.order(stream)
        assert sorted(contact.node for contact in ring.order(stream)) == sorted(ring.trackers)


def test_the_order_does_not_depend_on_the_process() -> None:
    code = (
        "from shoal.protocols.streams.member.tracker_selection import TrackerRing; "
        "from tests.protocols.streams.test_ring import TRACKERS, STREAM; "
        "print([c.node.hex()[-4:] for c in TrackerRing(TRACKERS).order(STREAM)])"
    )
    said = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": "src:."}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
        said.add(run.stdout)
    # Written down: nodes of different versions must agree as well.
    assert said == {b"['03e9', '03ea', '03ec', '03eb', '03e8']\n"}


def test_streams_spread_over_the_trackers() -> None:
    ring = TrackerRing(TRACKERS)
    firsts = Counter(ring.order(stream)[0].node for stream in STREAMS)
    assert len(firsts) == len(TRACKERS)
    assert min(firsts.values()) > 300  # of 400 on average


def test_streams_of_a_dead_tracker_spread_over_all_the_others() -> None:
    ring = TrackerRing(TRACKERS)
    dead = TRACKERS[0].node
    orders = [ring.order(stream) for stream in STREAMS]
    heirs = Counter(order[1].node for order in orders if order[0].node == dead)
    assert len(heirs) == len(TRACKERS) - 1
    assert min(heirs.values()) > 60  # of 100 on average


def test_a_tracker_that_comes_or_goes_moves_only_its_own_streams() -> None:
    ring, smaller = TrackerRing(TRACKERS), TrackerRing(TRACKERS[1:])
    for stream in STREAMS:
        rest = tuple(c for c in ring.order(stream) if c != TRACKERS[0])
        assert smaller.order(stream) == rest


def test_a_pinned_tracker_that_nobody_lists_is_left_out() -> None:
    listed = TRACKERS[3].node
    ring = TrackerRing(TRACKERS, lambda stream: (ALICE, listed))
    order = [contact.node for contact in ring.order(STREAM)]
    assert order[0] == listed
    assert sorted(order) == sorted(ring.trackers)


def test_pinned_trackers_come_first_in_their_order_and_the_others_after_them() -> None:
    trackers = [contact(id) for id in (ALICE, BOB, CAROL, DAVE)]
    pinned = TrackerRing(trackers, {STREAM: (DAVE, ALICE)}.__getitem__)
    plain = TrackerRing(trackers).order(STREAM)
    rest = tuple(c for c in plain if c.node not in (DAVE, ALICE))
    assert pinned.order(STREAM) == (contact(DAVE), contact(ALICE), *rest)


@pytest.mark.parametrize("trackers", [[], [contact(ALICE), contact(ALICE)]], ids=["none", "twice"])
def test_a_ring_has_trackers_and_each_once(trackers: list[object]) -> None:
    with pytest.raises(UsageError):
        TrackerRing(trackers)  # type: ignore[arg-type]
