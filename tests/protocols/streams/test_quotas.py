"""Strangers that make up streams, at a tracker and at a storage node that keeps all of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from shoal.base.ids import NodeId, StreamId
from shoal.kernel.effects import Effect
from shoal.kernel.inputs import Started
from shoal.protocols.streams.config import StorageConfig, TrackerConfig
from shoal.protocols.streams.history.messages import Keep, Kept, Refused
from shoal.protocols.streams.history.storage_node import StreamWanted
from shoal.protocols.streams.messages import Instruction, Join, KeepStreams, Leave, NewStream
from shoal.protocols.streams.stream_quota import NameQuota, Quotas
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.tracker import Tracker
from tests.support.storage_host import StorageHost, message
from tests.support.streams import ALICE, BOB, CAROL, EVE, ME, Bench, contact, node, sent


def name(number: int, owner: object = "") -> StreamId:
    return StreamId(f"0x{owner}/made-up/{number}")


class Table:
    """A table of names, and its quota."""

    def __init__(self, prefixes: dict[NodeId, str] | None = None, **quotas: int) -> None:
        self.names: dict[StreamId, None] = {}
        limits = Quotas(**{"names_max": 100, "per_key": 1000, "per_prefix": 1000, **quotas})
        self.quota = NameQuota(limits, lambda: len(self.names), (prefixes or {}).get)

    def fill(self, peer: NodeId, owner: object, count: int = 1000) -> int:
        """How many names a peer gets that wants so many."""
        got = 0
        for number in range(count):
            if self.quota.admit(name(number, owner), peer):
                self.names[name(number, owner)] = None
                got += 1
        self.quota.check_invariants()
        return got


def test_however_many_sources_there_were_the_next_one_finds_room() -> None:
    table = Table(names_max=1000)
    got = [table.fill(node(number), number) for number in range(10)]
    assert got == sorted(got, reverse=True)
    assert got[0] < 1000 / 2
    assert all(got)
    assert table.fill(EVE, "eve") > 0


def test_keys_of_one_prefix_are_one_source() -> None:
    keys = [node(number) for number in range(10)]
    table = Table(dict.fromkeys(keys, "203.0.113.0/24"))
    assert sum(table.fill(key, number) for number, key in enumerate(keys)) < 40
    assert table.fill(EVE, "eve") > 10


def test_bounds_of_a_key_and_a_prefix_are_kept() -> None:
    table = Table({ALICE: "prefix", BOB: "prefix"}, per_key=4, per_prefix=6)
    assert (table.fill(ALICE, "a"), table.fill(BOB, "b"), table.fill(EVE, "e")) == (4, 2, 4)


def test_names_that_are_given_back_are_charged_no_more() -> None:
    table = Table(per_key=3)
    assert table.fill(ALICE, "a") == 3
    table.quota.release(name(0, "a"))
    table.quota.release(name(0, "a"))
    table.quota.release(name(7, "nobody's"))
    assert table.quota.held(ALICE) == 2
    assert table.fill(ALICE, "more") == 1


# A tracker

SMALL = TrackerConfig(streams_max=100, streams_per_node_max=10)


def tracker(config: TrackerConfig = SMALL, keeper: NodeId | None = None) -> Bench[Tracker]:
    policy = partial(RandomPolicy, 4, Random(1))
    kept = () if keeper is None else (contact(keeper),)
    made = Bench(Tracker(lambda stream: policy(), config, lambda stream: kept))
    made.feed(Started())
    return made


def join(bench: Bench[Tracker], peer: NodeId, stream: StreamId) -> list[tuple[Any, Any]]:
    bench.now_ns += 1_000_000_000  # nobody hurries
    effects: list[Effect] = bench.receive(peer, Join(stream, contact(peer), 0, 0, ()))
    return sent(effects, Instruction)


def test_ten_keys_do_not_close_a_tracker_to_new_streams() -> None:
    bench = tracker()
    for number in range(10):
        for each in range(10):
            join(bench, node(200 + number), name(each, number))
    assert join(bench, ALICE, name(0, "alice"))
    assert join(bench, BOB, name(0, "bob"))


def test_streams_that_are_over_make_room_again() -> None:
    bench = tracker(TrackerConfig(streams_max=6))
    assert join(bench, ALICE, name(0))
    assert join(bench, ALICE, name(1))
    assert not join(bench, ALICE, name(2))
    bench.receive(ALICE, Leave(name(0)))
    assert join(bench, ALICE, name(2))


def test_streams_that_only_storage_is_in_give_way() -> None:
    bench = tracker(TrackerConfig(streams_max=3), keeper=CAROL)
    for number in range(3):
        assert join(bench, node(200 + number), name(number))
        assert join(bench, CAROL, name(number))
    assert not join(bench, ALICE, name(9))
    bench.receive(node(200), Leave(name(0)))
    assert join(bench, ALICE, name(9))
    assert name(0) not in bench.machine.streams
    assert not join(bench, CAROL, name(0))  # and not the other way round


def test_who_comes_back_to_a_stream_that_it_left_to_storage_pays_again() -> None:
    bench = tracker(TrackerConfig(streams_max=100, streams_of_key_max=2), keeper=CAROL)
    for number in range(2):
        assert join(bench, EVE, name(number))
        join(bench, CAROL, name(number))
        bench.receive(EVE, Leave(name(number)))
    assert join(bench, EVE, name(2))
    assert join(bench, EVE, name(0))
    assert not join(bench, EVE, name(1))
    assert bench.machine.quota.held(EVE) == 2


# A storage node


def keep(host: StorageHost, peer: NodeId, stream: StreamId) -> Any:
    if not host.links.is_up(peer):
        host.link_opened(peer)
    host.received(peer, Keep(1, message(1, stream=stream).signed))
    host.finish_all()
    (answer,) = host.said(peer)
    return answer


def test_a_stranger_does_not_close_a_storage_node_to_the_streams_of_others(
    tmp_path: Path,
) -> None:
    streams = [name(number) for number in range(100)] + [name(0, "alice")]
    config = StorageConfig(streams_max=60)
    kept: dict[StreamId, None] = {}
    quota = NameQuota(config.quotas, lambda: len(kept))
    host = StorageHost(ME, tmp_path / "s", streams=streams, config=config, quota=quota, kept=kept)

    def wanted() -> None:  # as the storage role does
        for event in host.notified:
            if isinstance(event, StreamWanted):
                kept[event.stream] = None
        host.notified.clear()

    answers = []
    for stream in streams[:-1]:
        answers.append(keep(host, EVE, stream))
        wanted()
    assert 10 < answers.count(Kept(1)) < 40
    assert answers[-1] == Refused(1, "too-many-streams")
    assert host.store_below.info().streams == answers.count(Kept(1))
    assert keep(host, ALICE, streams[-1]) == Kept(1)
    assert keep(host, EVE, streams[0]) == Kept(1)  # what it has it may go on with
    host.close()


def test_what_trackers_tell_of_is_charged_to_who_began_it(tmp_path: Path) -> None:
    """Or a stranger would have storage keep what it left at the tracker at once."""
    streams = [name(number) for number in range(40)]
    config = StorageConfig(streams_max=60, streams_of_prefix_max=12, streams_of_key_max=8)
    host = StorageHost(ME, tmp_path / "s", streams=streams, config=config, trackers=(BOB,))
    for number, stream in enumerate(streams[:30]):
        key = node(300 + number)
        host.received(BOB, KeepStreams((NewStream(stream, key, "203.0.113.0/24"),)))
    assert len(host.notified) == 12
    host.notified.clear()
    for stream in streams[20:]:
        host.received(BOB, KeepStreams((NewStream(stream, ALICE),)))
    assert len(host.notified) == 8
    host.close()


def test_bad_signatures_do_not_use_up_the_names_of_a_source(tmp_path: Path) -> None:
    streams = [name(number) for number in range(20)]
    config = StorageConfig(streams_max=8)
    kept: dict[StreamId, None] = {}
    quota = NameQuota(config.quotas, lambda: len(kept))
    host = StorageHost(ME, tmp_path / "s", streams=streams, config=config, quota=quota, kept=kept)
    host.link_opened(EVE)
    for stream in streams:
        forged = bytearray(message(1, stream=stream).signed)
        forged[0] ^= 1
        host.received(EVE, Keep(1, bytes(forged)))
        host.finish_all()
    assert host.said(EVE) == [Refused(1, "bad-signature")] * 20
    assert quota.held(EVE) == 0
    host.close()
