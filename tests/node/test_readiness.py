"""Whether a node says that it can work only if it can."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from shoal.base.ids import StreamId
from shoal.config.network_file import tracker_contact
from shoal.config.sections import (
    DhtSection,
    NodeSection,
    PeerEntry,
    SearchSection,
    StorageSection,
    TrackerSection,
)
from shoal.identity import PrivateKey, SeededEntropy
from shoal.node import NetworkFile, Node
from shoal.node.role_checks import NodeReadiness
from shoal.protocols.streams.commands import JoinStream
from shoal.runtime.readiness import (
    BEGIN_LOOKS,
    REASON_CHARS_MAX,
    REASONS_MAX,
    ReadinessChecks,
)
from tests.gateway.client import open_gateway
from tests.node.network import Town, free_port, in_town, network_of, run
from tests.transport.recorder import until

STRANGER = PrivateKey.generate(SeededEntropy("stranger")).address


def nobody() -> PeerEntry:
    """One who does not run."""
    return tracker_contact(STRANGER, [f"ws://127.0.0.1:{free_port()}"])


@pytest.mark.parametrize(
    ("role", "network"),
    [
        ("streams", NetworkFile(trackers=(nobody(),))),
        ("dht", NetworkFile(dht=DhtSection(bootstrap=(nobody(),)))),
        ("search", NetworkFile(search=SearchSection(bootstrap=(nobody(),)))),
    ],
)
def test_a_role_that_reaches_nobody_is_not_ready(role: str, network: NetworkFile) -> None:
    async def main() -> None:
        async with Node.open(network) as node, open_gateway(node) as client:
            await until(lambda: "onnect" in str(node.readiness.problems))  # the dial has failed
            answer = await client.get("/ready", 503)
            (found,) = [one for one in answer["roles"] if one["role"] == role]
            assert not found["ready"]
            assert f"0x{STRANGER.hex()}" in found["reasons"][0]
            metrics = client.gateway.metrics.text().decode()
            assert f'shoal_role_ready{{role="{role}"}} 0.0' in metrics
            assert "shoal_ready 0.0" in metrics
            await client.get("/health")

    run(main())


def test_a_tracker_with_another_key_than_the_file_says_is_none() -> None:
    async def scenario(town: Town) -> None:
        entry = tracker_contact(STRANGER, list(town.tracker.addresses))
        async with Node.open(NetworkFile(trackers=(entry,))) as node:
            await until(lambda: f"0x{STRANGER.hex()}: ws" in str(node.readiness.problems))
            assert not node.readiness.ready
        async with Node.open(network_of(town.tracker)) as node:
            await until(lambda: node.readiness.ready)

    in_town(scenario)


def test_a_tracker_that_is_lost_is_noticed_also_by_a_node_without_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.node.role_checks.PROBE_S", 0.1)

    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        await until(lambda: node.readiness.ready)
        await town.tracker.close()
        await until(lambda: not node.readiness.ready)

    in_town(scenario)


def test_all_roles_of_one_node_alone_work(tmp_path: Path) -> None:
    network = NetworkFile(
        tracker=TrackerSection(),
        storage=StorageSection(),
        dht=DhtSection(),
        search=SearchSection(),
        folder=str(tmp_path),
    )

    async def main() -> None:
        async with Node.open(network) as node:
            await until(lambda: node.readiness.ready)
            roles = {one.role for one in node.readiness.roles}
            assert roles == {"tracker", "streams", "storage", "dht", "search", "clock"}
        deaf = NetworkFile(node=NodeSection(listen=()), tracker=TrackerSection())
        async with Node.open(deaf) as node:
            assert "nobody can reach this tracker" in node.readiness.problems[0]

    run(main())


def test_the_answer_is_short_however_many_streams_have_no_tracker() -> None:
    async def main() -> None:
        async with Node.open(NetworkFile(trackers=(nobody(),))) as node:
            for number in range(2_300):
                stream = StreamId(f"0x{'ab' * 20}/{'long' * 20}/{number}")
                node.host.command(node._memberships.machine, JoinStream(stream))
            await until(lambda: "2300 of 2300 streams" in str(node.readiness.problems))
            assert len(msgspec.json.encode(node.readiness)) < 2_000

    run(main())


def test_reasons_are_bounded_and_a_check_that_fails_is_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    checks, found = ReadinessChecks(), [None, "x" * 10_000]

    def fails() -> str | None:
        raise OSError("no such folder")

    for _ in range(REASONS_MAX):
        checks.add("storage", lambda: found[1])
    checks.add("storage", fails)
    checks.add("clock", fails)
    storage, clock = checks.look().roles
    assert [len(reason) for reason in storage.reasons] == [REASON_CHARS_MAX] * REASONS_MAX
    assert "no such folder" in clock.reasons[0]
    checks.remove("clock", fails)
    assert [one.role for one in checks.look().roles] == ["storage"]
    for number in range(63):
        checks.add(f"role {number}", fails)
    with pytest.raises(ValueError, match="64 roles have checks"):
        checks.add("one more", fails)


def test_the_log_tells_of_changes_that_last(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shoal.node")
    checks, state = ReadinessChecks(), [""]
    checks.add("streams", lambda: state[0] or None)
    for state[0] in ("", "lost", "", "lost", "lost", "lost", "", "lost", "", ""):
        checks.log_changes("0x12")
    assert [record.getMessage() for record in caplog.records] == [
        "0x12: streams not ready: lost",
        "0x12: streams ready again",
    ]


def test_a_role_that_begins_has_some_time_for_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shoal.node")
    checks, state = ReadinessChecks(), ["alone"]
    checks.add("search", lambda: state[0] or None)
    for _ in range(BEGIN_LOOKS - 1):
        checks.log_changes("0x12")
    state[0] = ""
    for _ in range(3):
        checks.log_changes("0x12")
    assert not caplog.records
    checks.add("dht", lambda: "nobody answers")
    for _ in range(BEGIN_LOOKS + 3):
        checks.log_changes("0x12")
    assert [record.getMessage() for record in caplog.records] == [
        "0x12: dht not ready: nobody answers"
    ]


def test_the_log_tells_when_storage_is_behind_and_when_it_has_caught_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "shoal.node")
    behind = {StreamId("a"): True, StreamId("b"): True}
    sync = SimpleNamespace(is_behind=lambda stream, now_ns: behind[stream])
    role: Any = SimpleNamespace(streams=behind, sync=sync)
    host: Any = SimpleNamespace(now_ns=lambda: 0)
    readiness = NodeReadiness(host)
    for state in (True, True, False, False):
        behind[StreamId("b")] = behind[StreamId("a")] = state
        readiness._look_at_storage(role, "0x12")
    assert [record.getMessage() for record in caplog.records] == [
        "0x12: storage is behind in 2 streams, and catches up",
        "0x12: storage has caught up",
    ]


def test_a_tracker_that_another_part_was_linked_with_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first dial came too early; storage has met it since, and let the link go."""
    monkeypatch.setattr("shoal.node.role_checks.LOOK_S", 0.01)

    async def main() -> None:
        contact = nobody().contact()
        host: Any = SimpleNamespace(
            node=PrivateKey.generate(SeededEntropy("me")).address,
            connections={},
            dial=lambda to: None,
            is_dialling=lambda node: False,
            dial_problem=lambda node: None,
            readiness=ReadinessChecks(),
        )
        ring = SimpleNamespace(trackers={contact.node: contact})
        machine: Any = SimpleNamespace(streams=(), trackers=SimpleNamespace(ring=ring))
        readiness = NodeReadiness(host)
        readiness.streams(machine)
        await asyncio.sleep(0.05)
        assert not host.readiness.look().ready
        host.connections[contact.node] = object()
        await asyncio.sleep(0.05)
        host.connections.clear()
        assert host.readiness.look().ready
        await readiness.close()

    run(main())
