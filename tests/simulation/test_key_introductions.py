"""A reader whose public key nobody knows, none of whose neighbours may read: trackers introduce it
to the publisher, or to others who may, and nobody else to anybody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shoal.base.ids import show_node_id
from shoal.kernel.access import Permission
from shoal.kernel.records import Rejected
from shoal.protocols.streams.commands import FindKey
from shoal.protocols.streams.keys.sealed_queue import key_of
from tests.support.key_network import EXCHANGE, STREAM, KeyNetwork, Member

RELAYS = [f"member {n}" for n in range(12)]  # they may publish, until one is permitted to read
BEFORE = {f"before {n}" for n in range(3)}
AFTER = {f"after {n}" for n in range(3)}


@contextmanager
def network(seed: int, folder: Path, trackers: int = 1) -> Iterator[tuple[KeyNetwork, list[Any]]]:
    """A closed stream in which nobody may read, and what is rejected in it."""
    net = KeyNetwork(
        seed, folder, ["publisher", "outsider", *RELAYS], trackers=trackers, closed=True
    )
    rejected: list[tuple[str, str]] = []

    def look(rows: Any) -> None:
        for _, _, record in rows:
            if isinstance(record, Rejected):
                rejected.append((show_node_id(record.peer), record.reason))

    net.simulation.trace.to(look)
    try:
        net.start_storage()
        for name, member in net.members.items():
            member.known = False
            if name != "outsider":
                net.grant(name, kinds=Permission.PUBLISH)
            member.start()
        net.simulation.run_until_s(20)  # links of the time before are let go
        yield net, rejected
    finally:
        net.store.close()


def publish(net: KeyNetwork, texts: set[str]) -> None:
    for text in sorted(texts):
        net.members["publisher"].publish(text)
        net.simulation.run_for(0.1)
    net.simulation.run_for(2)


def far_from(net: KeyNetwork, *others: str) -> Member:
    """A member that none of these is a neighbour of, nor linked with."""
    near = {name for other in others for name in (other, *net.members[other].neighbours())}
    far = next(net.members[name] for name in RELAYS if name not in near)
    assert not linked(net, far) & set(others)
    return far


def linked(net: KeyNetwork, member: Member) -> set[str]:
    """Members to whom it has a connection."""
    assert member.node.host is not None
    is_up = member.node.host.links.is_up
    return {name for name, other in net.members.items() if is_up(other.key.address)}


def look_for_keys(net: KeyNetwork, *members: Member) -> None:
    for member in members:
        member.find_missing()
    net.simulation.run_for(11)


@pytest.mark.parametrize("run", range(4))
def test_the_publisher_is_asked_wherever_it_is(tmp_path: Path, seed: int, run: int) -> None:
    with network(seed, tmp_path) as (net, rejected):
        everyone, publisher = net.members, net.members["publisher"]
        reader = far_from(net, "publisher")
        net.grant(reader.name)
        net.simulation.run_for(1)
        publish(net, BEFORE)
        assert len(reader.messages) == len(BEFORE)
        before = reader.neighbours(), publisher.neighbours()
        reader.find_missing()
        net.simulation.run_for(3)
        assert reader.texts() == BEFORE
        assert (reader.neighbours(), publisher.neighbours()) == before, "it is outside the degree"

        # Its neighbours have every message, and may not read: they are told of nobody.
        others = [everyone[name] for name in RELAYS if everyone[name] is not reader]
        look_for_keys(net, *others)
        assert not any(member.texts() for member in others)
        assert all(len(member.ring) == 0 for member in others)
        assert all(len(member.messages) == len(BEFORE) for member in others)

        # An outsider that knows which key it wants is told of nobody either, and gets none.
        outsider = everyone["outsider"]
        key = key_of(next(iter(reader.messages)))
        assert key is not None
        rejected.clear()
        outsider.node.command(EXCHANGE, FindKey(STREAM, publisher.key.address, key), "token")
        net.simulation.run_for(11)
        assert len(outsider.ring) == 0
        asked, joins = "key-not-permitted", "no-permission"  # it goes on to say Join
        assert {reason for _, reason in rejected} == {asked, joins}
        assert linked(net, outsider) == set()

        # Service links are given back.
        net.simulation.run_for(30)
        assert linked(net, reader) == reader.neighbours()
        net.simulation.check_quiet()


def test_another_reader_is_asked_when_the_publisher_is_gone(tmp_path: Path, seed: int) -> None:
    with network(seed, tmp_path) as (net, _):
        first = far_from(net, "publisher")
        second = far_from(net, "publisher", first.name)
        for reader in (first, second):
            net.grant(reader.name)
        net.simulation.run_for(1)
        publish(net, BEFORE)
        look_for_keys(net, first)
        assert first.texts() == BEFORE
        assert second.texts() == set()
        net.members["publisher"].node.crash()
        net.simulation.run_for(20)
        look_for_keys(net, second)
        assert second.texts() == BEFORE
        net.simulation.check_quiet()


def test_whoever_is_revoked_is_introduced_to_nobody(tmp_path: Path, seed: int) -> None:
    with network(seed, tmp_path) as (net, rejected):
        reader = far_from(net, "publisher")
        net.grant(reader.name)
        net.simulation.run_for(1)
        publish(net, BEFORE)
        look_for_keys(net, reader)
        net.revoke(reader.name)
        net.simulation.run_for(1)
        publish(net, AFTER)
        rejected.clear()
        look_for_keys(net, reader)
        assert reader.texts() == BEFORE
        assert len(reader.messages) == len(BEFORE | AFTER)
        assert (show_node_id(reader.key.address), "key-not-permitted") in rejected


@pytest.mark.parametrize("back", [False, True])
def test_the_next_tracker_introduces_as_well(tmp_path: Path, seed: int, back: bool) -> None:
    """The stream's tracker dies, and is back or not, before the key is asked for."""
    with network(seed, tmp_path, trackers=2) as (net, _):
        reader = far_from(net, "publisher")
        net.grant(reader.name)
        net.simulation.run_for(1)
        publish(net, BEFORE)
        at = reader.node.machines[0].trackers.at(STREAM)  # type: ignore[attr-defined]
        tracker = net.simulation.nodes[at]
        tracker.crash()
        net.simulation.run_for(10)
        if back:
            tracker.start()
            net.simulation.run_for(10)
        look_for_keys(net, reader)
        assert reader.texts() == BEFORE
        net.simulation.check_quiet()


def test_a_reader_of_history_is_introduced_without_being_in_the_overlay(
    tmp_path: Path, seed: int
) -> None:
    with network(seed, tmp_path) as (net, _):
        publish(net, BEFORE)
        outsider = net.members["outsider"]
        outsider.node.crash()
        net.grant("outsider")
        net.simulation.run_for(5)
        outsider.node.start()  # and joins nothing
        net.simulation.run_for(1)
        outsider.read(0)
        net.simulation.run_for(3)
        assert len(outsider.messages) == len(BEFORE)
        look_for_keys(net, outsider)
        assert outsider.texts() == BEFORE
