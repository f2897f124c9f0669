"""System clocks of real processes are set wrong and right again, one role after the other.

    .venv/bin/python -m campaigns.clock_steps                   all roles and steps, ten minutes
    .venv/bin/python -m campaigns.clock_steps --role storage    one role
    .venv/bin/python -m campaigns.clock_steps --json            one object, for machines

A tracker, two storage nodes that keep one day, a publisher of durable messages, a node with an
outbox and a subscriber run as processes of their own, each with libfaketime and a timestamp file.
The clock of one of them is set by 10 minutes, back by as much, ahead by an hour and by 30 days, for
10 s each; its monotonic clock is not touched. Then this must hold:

- everything works within 60 s of the clock being right: a message that is published then is
  acknowledged and reaches the subscriber, and so does a batch that is sealed then
- every message and every row that was ever acknowledged is read from storage, once
- while the publisher's or the outbox's own clock was off by more than a minute, it published
  nothing, and said why
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from campaigns.kills import ROOT, Failure
from scripts.faketime import find_faketime
from shoal.base.errors import ClockWrong, ShoalError
from shoal.base.gateway_messages import Fingerprint
from shoal.base.ids import StreamId, show_node_id
from shoal.config.network_file import NetworkFile
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.message_body import JSON
from shoal.node.node import Node
from shoal.storage.outbox_file import Attempt, ChunkPlace
from shoal_lab.testbed.child_process import free_port

MODULE = "campaigns.clock_steps"
ROLES = ("publisher", "subscriber", "tracker", "storage", "outbox")
STEPS_S = (600, -600, 3600, 30 * 86_400)
LASTS_S = 10.0
RIGHT_S = 60.0
START_S = 60.0
TOKEN = "a token for nobody but this campaign"
PUBLISH_S, SEAL_S = 0.25, 0.5
SERVERS = ("tracker", "storage", "storage two")
NAMES = (*SERVERS, "publisher", "outbox", "subscriber")


# The processes


def address(name: str) -> str:
    return show_node_id(PrivateKey.generate(SeededEntropy(name)).address)


STREAM = StreamId(f"{address('publisher')}/steps")
SEALED = StreamId(f"{address('outbox')}/steps")


def network_of(name: str, ports: dict[str, int], folder: Path) -> dict[str, Any]:
    """The network file of a process."""

    def entry(server: str) -> dict[str, Any]:
        return {"id": address(server), "addresses": [f"ws://127.0.0.1:{ports[server]}"]}

    keepers = SERVERS[1:]
    network: dict[str, Any] = {
        "folder": str(folder),
        "trackers": [entry("tracker")],
        "storage_nodes": [entry(keeper) for keeper in keepers],
        "streams": [
            {"id": stream, "storage": [address(keeper) for keeper in keepers]}
            for stream in (STREAM, SEALED)
        ],
    }
    if name in ports:
        network["node"] = {"listen": [f"ws://127.0.0.1:{ports[name]}"]}
    if name == "tracker":
        network["tracker"] = {}
    if name in keepers:
        network["storage"] = {"folder": name.replace(" ", "-"), "days_max": 1}
    if name == "outbox":
        (folder / "token").write_text(TOKEN + "\n")
        network |= {"outbox": {"token": "file:token"}, "gateway": {}}
    return network


def say(*words: object) -> None:
    print(*words, flush=True)


async def live(name: str, network: NetworkFile) -> None:
    """One process, until its stdin ends."""
    async with Node.open(network, entropy=SeededEntropy(name)) as node:
        works: list[asyncio.Task[None]] = []
        if name == "publisher":
            works.append(asyncio.create_task(publish(node)))
        elif name == "outbox":
            works.append(asyncio.create_task(seal(node)))
        elif name == "subscriber":
            works += [asyncio.create_task(hear(node, stream)) for stream in (STREAM, SEALED)]
        say("ready")
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)


async def publish(node: Node) -> None:
    stream = await node.open_stream(STREAM)
    number = 0
    while True:
        number += 1
        try:
            async with asyncio.timeout(20):
                await stream.publish(number, durable=True)
            say("ok", number)
        except ClockWrong:
            say("refused", number)
        except (ShoalError, TimeoutError) as error:
            say("failed", number, type(error).__name__, str(error)[:80].replace("\n", " "))
        await asyncio.sleep(PUBLISH_S)


async def seal(node: Node) -> None:
    role = node.outbox
    assert role is not None
    batch, epoch = 0, await role.take_epoch("q", "r", SEALED, once=False)
    while True:
        rows = [(JSON, None, None, str(batch).encode())]
        try:
            await role.stage(SEALED, ChunkPlace("q", epoch, batch, 0, 0, 0), rows)
            await role.seal("q", epoch, batch, [Attempt(0, 0, 1)], Fingerprint(batch, "d"))
            say("sealed", batch)
            batch += 1
        except ClockWrong:
            say("refused", batch)
        except ShoalError as error:
            say("failed", batch, type(error).__name__, str(error)[:80].replace("\n", " "))
        await asyncio.sleep(SEAL_S)


async def hear(node: Node, id: StreamId) -> None:
    stream = await node.open_stream(id)
    what = "got" if id == STREAM else "row"
    async with stream.subscribe() as messages:
        async for message in messages:
            say(what, message.content)


# What is done to them


class Process:
    """One of them, with a clock of its own, and what it has said."""

    def __init__(self, name: str, ports: dict[str, int], folder: Path, preload: str) -> None:
        self.name = name
        self.said: list[list[str]] = []
        self._clock = folder / f"clock-{name.replace(' ', '-')}"
        self._errors = (folder / f"{name}.err").open("w")
        self.set(0)
        network = msgspec.json.encode(network_of(name, ports, folder)).decode()
        self.process = subprocess.Popen(
            [preload, sys.executable, "-m", MODULE, "--victim", name, network],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={
                **os.environ,
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "FAKETIME_DONT_RESET": "1",
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            },
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._errors.close()

    def set(self, ahead_s: int) -> None:
        """From now on its system clock is ahead of ours by so much."""
        new = self._clock.with_suffix(".new")
        new.write_text(f"{ahead_s:+d}\n")
        new.replace(self._clock)

    def has_said(self, word: str) -> bool:
        return [word] in self.said

    def numbers(self, *words: str) -> list[int]:
        """What it has said so far, after some of these words."""
        return [int(line[1]) for line in list(self.said) if line[0] in words]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.split())


def wait_for(what: str, condition: Callable[[], object], patience_s: float) -> float:
    """How long it took."""
    begin_s = time.monotonic()
    while not condition():
        if time.monotonic() - begin_s > patience_s:
            raise Failure(f"not within {patience_s:g} s: {what}")
        time.sleep(0.05)
    return time.monotonic() - begin_s


def run(
    folder: Path,
    steps: Sequence[tuple[str, int]],
    *,
    lasts_s: float = LASTS_S,
    show: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """All of them; Failure says what did not hold."""
    preload = find_faketime()
    if preload is None:
        raise Failure("libfaketime is missing: run python -m scripts.faketime")
    ports = {name: free_port() for name in SERVERS}
    longest_s = 0.0
    with ExitStack() as stack:
        parts: dict[str, Process] = {}
        for name in NAMES:
            part = parts[name] = stack.enter_context(Process(name, ports, folder, preload))
            wait_for(f"{name} is ready", partial(part.has_said, "ready"), START_S)
        works_again(parts, START_S)
        for role, step_s in steps:
            show(f"{role} {step_s:+d} s")
            victim = parts[role]
            before = len(victim.said)
            victim.set(step_s)
            time.sleep(lasts_s)
            during = victim.said[before:]
            victim.set(0)
            check_refusals(role, during)
            took_s = works_again(parts, RIGHT_S)
            show(f"{role} {step_s:+d} s: works again after {took_s:.1f} s")
            longest_s = max(longest_s, took_s)
        acknowledged = set(parts["publisher"].numbers("ok"))
        sealed = set(parts["outbox"].numbers("sealed"))
        rows = parts["subscriber"]
        since = {number for number in sealed if number > min(rows.numbers("row"))}
        wait_for("the subscriber has every row", lambda: since <= set(rows.numbers("row")), 30)
        network = msgspec.convert(network_of("reader", ports, folder), NetworkFile)
        kept = asyncio.run(read(network))
        refused = sum(line[0] == "refused" for part in parts.values() for line in part.said)
        failed = [
            " ".join(line) for part in parts.values() for line in part.said if line[0] == "failed"
        ]
    for what, wanted, found in (
        ("messages", acknowledged, kept[STREAM]),
        ("rows", sealed, kept[SEALED]),
    ):
        if not wanted <= set(found):
            raise Failure(f"acknowledged {what} are missing: {sorted(wanted - set(found))[:10]}")
        if len(found) != len(set(found)):
            raise Failure(f"some {what} are there twice")
    live = set(parts["subscriber"].numbers("got"))
    missed = {number for number in acknowledged - live if number > min(live)}  # since it came
    return {
        "steps": len(steps),
        "acknowledged": len(acknowledged),
        "sealed": len(sealed),
        "refused": refused,
        "failed": len(failed),
        "missed live": len(missed),
        "slowest return (s)": round(longest_s, 1),
    }


def works_again(parts: dict[str, Process], patience_s: float) -> float:
    """What is published and sealed from now on is acknowledged, and reaches the subscriber."""
    publisher, outbox, subscriber = (parts[n] for n in ("publisher", "outbox", "subscriber"))
    ok, sealed = len(publisher.numbers("ok")), len(outbox.numbers("sealed"))

    def message_came() -> bool:
        return bool(set(publisher.numbers("ok")[ok + 2 :]) & set(subscriber.numbers("got")))

    def row_came() -> bool:
        return bool(set(outbox.numbers("sealed")[sealed + 2 :]) & set(subscriber.numbers("row")))

    took_s = wait_for("a message is acknowledged and comes", message_came, patience_s)
    return took_s + wait_for("a row is sealed and comes", row_came, patience_s - took_s)


def check_refusals(role: str, during: list[list[str]]) -> None:
    """Nothing is published with a wrong time."""
    if role in ("publisher", "outbox"):
        done = [line for line in during[2:] if line[0] in ("ok", "sealed")]
        if done or not any(line[0] == "refused" for line in during):
            raise Failure(f"the {role} went on with a wrong clock: {during[:6]}")


async def read(network: NetworkFile) -> dict[StreamId, list[int]]:
    """Everything that storage has."""
    found: dict[StreamId, list[int]] = {}
    async with Node.open(network, entropy=SeededEntropy("reader")) as node:
        for id in (STREAM, SEALED):
            stream = await node.open_stream(id)
            found[id] = [int(message.content) async for message in stream.read()]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}",
        description="System clocks of real processes are set wrong and right again.",
        epilog=f"example: .venv/bin/python -m {MODULE} --role outbox",
    )
    parser.add_argument("--role", choices=ROLES, help="only this one")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--victim", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.victim:
        name, network = options.victim
        decoded = msgspec.json.decode(network, type=NetworkFile)
        asyncio.run(live(name, decoded))
        return
    roles = ROLES if options.role is None else (options.role,)
    steps = [(role, step_s) for role in roles for step_s in STEPS_S]
    with tempfile.TemporaryDirectory(prefix="shoal-clocks-") as folder:
        try:
            result = run(Path(folder), steps, show=lambda text: print(text, file=sys.stderr))
        except Failure as failure:
            sys.exit(str(failure))
    if options.json:
        print(msgspec.json.encode(result).decode())
        return
    for name, value in result.items():
        print(f"{name:<22}{value}")


if __name__ == "__main__":
    main()
