"""Streams that are encrypted, in a network of fifteen nodes and under virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.base.ids import KEYS_PARTITION
from tests.support.key_network import KeyNetwork

NAMES = ["publisher", "late", "unknown", "revoked", *(f"reader {n}" for n in range(9))]
BEFORE = {f"before {n}" for n in range(6)}
AFTER = {f"after {n}" for n in range(6)}


@contextmanager
def network(seed: int, folder: Path) -> Iterator[KeyNetwork]:
    net = KeyNetwork(seed, folder, NAMES)
    try:
        net.start_storage()
        for name, member in net.members.items():
            if name != "publisher":
                net.grant(name)
            if name != "late":
                member.start(subscribe=name != "publisher")
        net.members["unknown"].known = False
        net.simulation.run_until_s(8)
        yield net
    finally:
        net.store.close()


def publish(net: KeyNetwork, texts: set[str]) -> None:
    for text in sorted(texts):
        net.members["publisher"].publish(text)
        net.simulation.run_for(0.1)
    net.simulation.run_for(2)


def test_keys_reach_who_may_read_and_nobody_else(tmp_path: Path, seed: int) -> None:
    with network(seed, tmp_path) as net:
        sim, everyone = net.simulation, net.members
        publish(net, BEFORE)
        for name in [*NAMES[4:], "revoked"]:
            assert everyone[name].texts() == BEFORE
        # One whose public key nobody knew has the messages, and asks its neighbours for the key.
        unknown = everyone["unknown"]
        assert len(unknown.messages) == len(BEFORE)
        assert unknown.texts() == set()
        unknown.find_missing()
        sim.run_for(3)
        assert unknown.texts() == BEFORE

        # Whoever may read no longer goes on to get all messages, and can read none of the new.
        net.revoke("revoked")
        sim.run_for(1)
        publish(net, AFTER)
        revoked = everyone["revoked"]
        assert len(revoked.messages) == len(BEFORE | AFTER)
        revoked.find_missing()
        sim.run_for(12)
        revoked.read(KEYS_PARTITION)
        sim.run_for(5)
        assert revoked.texts() == BEFORE
        for name in NAMES[4:]:
            assert everyone[name].texts() == BEFORE | AFTER

        # The publisher is gone. One that was permitted, and never there, reads all of it.
        everyone["publisher"].node.crash()
        sim.run_for(60)
        late = everyone["late"]
        late.start()
        sim.run_for(5)
        for partition in (KEYS_PARTITION, 0):
            late.read(partition)
        sim.run_for(5)
        assert late.texts() == BEFORE | AFTER
        sim.check_quiet()


def test_a_publisher_that_comes_back_seals_with_another_key(tmp_path: Path, seed: int) -> None:
    with network(seed, tmp_path) as net:
        publisher, reader = net.members["publisher"], net.members["reader 0"]
        publish(net, BEFORE)
        publisher.node.crash()
        net.simulation.run_for(10)
        publisher.start(subscribe=False)
        net.simulation.run_for(10)
        publish(net, AFTER)
        assert reader.texts() == BEFORE | AFTER
        keys_and_nonces = [message.content[:24] for message in reader.messages]
        assert len(set(keys_and_nonces)) == len(BEFORE | AFTER)
        assert len({both[:16] for both in keys_and_nonces}) == 2


def test_a_permission_that_ends_by_itself_takes_the_next_key_away(
    tmp_path: Path, seed: int
) -> None:
    with network(seed, tmp_path) as net:
        end_ns = net.simulation.scheduler.now_ns + 10 * 10**9
        net.grant("revoked", end_ns)
        publish(net, BEFORE)
        net.simulation.run_for(10)
        publish(net, AFTER)
        assert net.members["revoked"].texts() == BEFORE
        assert net.members["reader 1"].texts() == BEFORE | AFTER
