"""Trackers, storage nodes and members are killed under load; whoever stays gets everything.

Three trackers, two storage nodes and 24 nodes, a process each; three streams, one of them with
eight publishers. A tracker, a storage node and a third of the nodes are killed with SIGKILL, some
of them come back. Every subscriber that stayed ends with every message, in order, exactly once;
what those who were killed had published, all have or nobody has; late joiners get the history that
they ask for.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tests.node.network import free_port
from tests.system.processes import PATIENCE_S, Running
from tests.system.survival_parts import Part, address_of

COMMAND = (sys.executable, "-m", "tests.system.survivor")
ROOT = Path(__file__).parents[2]

TRACKERS = ("tracker 0", "tracker 1", "tracker 2")
STORAGE = ("storage 0", "storage 1")
NODES = tuple(f"node {number}" for number in range(24))
VICTIMS = NODES[16:]  # a third
RETURNING = VICTIMS[:4]
OWNER = address_of("node 0")
CROWDED, STEADY, QUIET = (f"{OWNER}/{name}" for name in ("crowded", "steady", "quiet"))
STREAMS = (CROWDED, STEADY, QUIET)
PUBLISHERS = {
    **{name: [CROWDED] for name in NODES[:6]},
    **{name: [CROWDED] for name in VICTIMS[-2:]},
    NODES[6]: [STEADY],
    NODES[7]: [QUIET],
}
RATES = {NODES[6]: 20.0, NODES[7]: 1.0}

Line = tuple[str, str, str, int, int, bool]  # stream, publisher, chain, timestamp, sequence, gap
Name = tuple[str, str, str, int, int]


class Cast:
    """All processes, by name."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.running: dict[str, Running] = {}
        self._stack = stack
        self._starts: dict[str, int] = defaultdict(int)
        ports = _free_ports(len(TRACKERS) + len(STORAGE))
        self._ports = dict(zip(TRACKERS + STORAGE, ports, strict=True))

    def network(self, name: str) -> dict[str, Any]:
        """The network file of a process."""
        network: dict[str, Any] = {
            "trackers": [self._entry(tracker) for tracker in TRACKERS],
            "storage_nodes": [self._entry(storage) for storage in STORAGE],
            "streams": [
                {"id": stream, "storage": [address_of(name) for name in STORAGE]}
                for stream in STREAMS
            ],
        }
        if name in self._ports:
            network["node"] = {"listen": [f"ws://127.0.0.1:{self._ports[name]}"]}
        if name in TRACKERS:
            network["tracker"] = {}
        if name in STORAGE:
            network["storage"] = {"folder": str(self.folder / name.replace(" ", "-"))}
        return network

    def start(self, *names: str, starts: dict[str, str] | None = None) -> None:
        """Start processes side by side, and wait until they are in their streams."""
        for name in names:
            self._starts[name] += 1
            member = name not in self._ports
            part = Part(
                name=name,
                network=self.network(name),
                folder=str(self.folder),
                journal=f"{name.replace(' ', '-')}-{self._starts[name]}",
                subscribe=starts or (dict.fromkeys(STREAMS, "latest") if member else {}),
                publish=PUBLISHERS.get(name, []),
                rate_per_s=RATES.get(name, 5.0),
            )
            process = Running(folder=ROOT, command=COMMAND)
            self.running[name] = self._stack.enter_context(process)
            process.say(msgspec.json.encode(part).decode() + "\n")
        for name in names:
            self._wait_for(name, "ready")

    def tell(self, word: str, *names: str) -> None:
        for name in names:
            self.running[name].say(word + "\n")
        for name in names:
            self._wait_for(name, word)

    def kill(self, *names: str) -> None:
        for name in names:
            self.running[name].process.send_signal(signal.SIGKILL)
        for name in names:
            assert self.running.pop(name).end() == -signal.SIGKILL

    def stop(self) -> None:
        for process in self.running.values():
            process.say("stop\n")
        for name, process in self.running.items():
            assert process.end() == 0, f"{name}: {process.err}"

    def received(self, name: str) -> list[Line]:
        return list(self._lines(f"received-{name.replace(' ', '-')}-{self._starts[name]}"))

    def published(self, name: str) -> list[Name]:
        """In all its incarnations."""
        found = []
        for number in range(1, self._starts[name] + 1):
            lines = self._lines(f"published-{name.replace(' ', '-')}-{number}")
            found += [line[:5] for line in lines]
        return found

    def _lines(self, journal: str) -> Iterator[Line]:
        path = self.folder / f"{journal}.jsonl"
        for line in path.read_bytes().splitlines() if path.exists() else ():
            stream, publisher, chain, timestamp_ms, sequence, gap = msgspec.json.decode(line)
            yield stream, publisher, chain, timestamp_ms, sequence, gap

    def _wait_for(self, name: str, word: str) -> None:
        process = self.running[name]
        try:
            process.wait_for(lambda: word in process.out)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None

    def _entry(self, name: str) -> dict[str, Any]:
        return {"id": address_of(name), "addresses": [f"ws://127.0.0.1:{self._ports[name]}"]}


def test_whoever_stays_gets_everything(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    stayers = [name for name in NODES if name not in VICTIMS]
    with ExitStack() as stack:
        cast = Cast(tmp_path, stack)
        cast.start(*TRACKERS)
        cast.start(*STORAGE)
        cast.start(*NODES)
        cast.tell("publish", *PUBLISHERS)
        time.sleep(1)
        dead_tracker, dead_storage = rng.choice(TRACKERS), rng.choice(STORAGE)
        cast.kill(dead_tracker)
        time.sleep(1)
        cast.kill(dead_storage)
        time.sleep(1)
        cast.kill(*VICTIMS)
        time.sleep(1)
        cast.start(dead_tracker, dead_storage, *RETURNING)
        time.sleep(1)
        cast.tell("hush", *[name for name in PUBLISHERS if name in stayers])

        alive = [line for name in stayers for line in cast.published(name)]
        _wait(lambda: all(set(alive) <= _names(cast.received(name)) for name in stayers))
        _wait(lambda: len({frozenset(_names(cast.received(name))) for name in stayers}) == 1)
        late = ("late 0", "late 1")
        cast.start(late[0], starts=dict.fromkeys(STREAMS, "earliest"))
        cast.start(late[1], starts=dict.fromkeys(STREAMS, "last 30"))
        everything = _names(cast.received(stayers[0]))
        assert len(everything) > 300
        _wait(lambda: _names(cast.received(late[0])) >= everything)
        _wait(lambda: all(_count(cast.received(late[1]), id) >= 30 for id in (CROWDED, STEADY)))
        cast.stop()

    killed = {line for name in VICTIMS for line in cast.published(name)}
    for name in [*stayers, late[0]]:
        received = cast.received(name)
        _check(name, received)
        assert set(alive) <= _names(received) <= set(alive) | _published_by(received, VICTIMS)
        assert _names(received) == everything, name
    assert killed & everything, "those who were killed had published"
    _check(late[1], cast.received(late[1]))
    for id in (CROWDED, STEADY):
        last = sorted((line for line in everything if line[0] == id), key=lambda line: line[3:])
        asked_for = {line for line in cast.received(late[1]) if line[0] == id}
        assert {line[:5] for line in asked_for} == set(last[-30:])


def _check(name: str, received: list[Line]) -> None:
    """Once, in order, and without a gap."""
    assert len(_names(received)) == len(received), f"{name} got something twice"
    assert not [line for line in received if line[5]], f"{name} was told of a gap"
    chains: dict[tuple[str, str, str], list[tuple[int, int]]] = defaultdict(list)
    for stream, publisher, chain, timestamp_ms, sequence, _ in received:
        chains[stream, publisher, chain].append((timestamp_ms, sequence))
    for chain_name, positions in chains.items():
        assert positions == sorted(positions), f"{name}: {chain_name} is out of order"


def _names(lines: list[Line]) -> set[Name]:
    return {line[:5] for line in lines}


def _published_by(lines: list[Line], names: tuple[str, ...]) -> set[Name]:
    addresses = {address_of(name).removeprefix("0x") for name in names}
    return {line[:5] for line in lines if line[1] in addresses}


def _count(lines: list[Line], stream: str) -> int:
    return sum(line[0] == stream for line in lines)


def _wait(condition: Any) -> None:
    """For what the journals tell."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)
