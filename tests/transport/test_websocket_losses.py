"""Peers that crash, hang and are reset, a node without descriptors, and nothing left of it all."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from shoal.base.units import MS_NS
from shoal.transport.port import DialFailed, Link, TransportLimits
from tests.transport.child import CHILD, child
from tests.transport.recorder import PATIENCE_S, until
from tests.transport.stage import Actor, Stage, on

# Peers that crash


@on("ws", "ws-uvloop")
async def test_the_crash_of_a_peer_is_noticed(stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    other, _ = await a.dial(b)
    async with child() as (process, address):
        link = await a.transport.dial(address, CHILD)
        link.send(1, b"echo")
        await until(lambda: a.told.frames)
        process.kill()
        await until(lambda: a.told.losses)
        assert a.told.losses == [(link, "lost")]
        await asyncio.to_thread(process.wait)
        with pytest.raises(DialFailed, match="nobody"):
            await a.transport.dial(address, CHILD)
    other.send(1, b"fine")
    await until(lambda: b.told.frames)


@on("ws", "ws-uvloop")
async def test_a_peer_that_hangs_is_given_up(stage: Stage) -> None:
    limits = TransportLimits(idle_ping_ns=100 * MS_NS, idle_timeout_ns=1000 * MS_NS)
    a = await stage.actor("a", limits=limits)
    async with child() as (process, address):
        await a.transport.dial(address, CHILD)
        await asyncio.sleep(1.5)
        assert a.told.losses == []
        process.send_signal(signal.SIGSTOP)
        await until(lambda: a.told.losses)
        assert a.told.reasons == ["idle"]


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_a_connection_that_is_reset_at_any_moment_harms_nobody_else(scheme: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.transport.resets", scheme],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=3 * PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


# Scarcity


@on("ws")
async def test_running_out_of_descriptors_turns_strangers_away(stage: Stage) -> None:
    a = await stage.actor("a")
    async with child("24") as (process, address):
        link = await a.transport.dial(address, CHILD)
        host, port = address.rpartition("/")[2].split(":")
        flood = [await asyncio.open_connection(host, int(port)) for _ in range(40)]
        link.send(1, b"still there")
        await until(lambda: a.told.frames)
        used_before = cpu_ticks(process.pid)
        await asyncio.sleep(0.5)
        assert cpu_ticks(process.pid) - used_before < 25  # of 50: it does not spin
        for _, writer in flood:
            writer.transport.abort()
        await dialled_at_last(a, address)
        assert a.told.losses == []


async def dialled_at_last(actor: Actor, address: str) -> None:
    """By a node that has just got its descriptors back, and may not know it yet."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await actor.transport.dial(address, CHILD)
            except DialFailed:
                await asyncio.sleep(0.01)
            else:
                return


def cpu_ticks(pid: int) -> int:
    """Hundredths of a second that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@on("ws", "wss-uvloop")
async def test_coming_and_going_leaves_nothing(stage: Stage) -> None:
    rng = Random(11)
    a, b = await stage.actor("a"), await stage.actor("b")
    a.told.keep_payloads = b.told.keep_payloads = False
    links: list[Link] = []
    for _ in range(200):
        match rng.randrange(5):
            case 0 | 1:
                links.append(await a.transport.dial(b.address, b.id))
            case 2 if links:
                links.pop(rng.randrange(len(links))).close("enough")
            case 3:
                wire = await stage.stranger(b.address)
                wire.send(rng.randbytes(rng.randrange(200)))
                wire.hang_up()
            case _:
                for link in links:
                    link.send(1, rng.randbytes(1000))
    for link in links:
        link.close("enough")
    await until(lambda: not a.transport._links and not b.transport._links)
    assert not a.transport._outcomes
    assert not b.transport._strangers
    assert len(b.told.losses) == len(b.told.links)
