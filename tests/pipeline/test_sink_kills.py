"""Exactly once: drivers die with their JVMs at the worst moments, the publishing node dies, an old
driver goes on beside its successor, and a far subscriber gets every row once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from shoal.identity import PrivateKey, ScryptCost, SeededEntropy, create_keystore
from tests.node.network import free_port, run
from tests.node.outbox import STREAM, TOKEN, town_of
from tests.node.storage import StorageTown
from tests.pipeline.sink_driver import AFTER_PUBLISH, AFTER_STAGE, IN_SEAL, ZOMBIE

pytestmark = pytest.mark.spark

BATCHES, ROWS = 5, 2_000
PATIENCE_S = 300.0  # sessions start slowly on a busy machine
ROOT = Path(__file__).parents[2]


class Stage:
    """Everything that a driver needs, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.town: StorageTown = town_of(folder, "one")
        self.gateway = f"127.0.0.1:{free_port()}"
        lines = folder / "lines"
        lines.mkdir()
        for batch in range(BATCHES):
            rows = [f"row {batch * ROWS + n}" for n in range(ROWS)]
            (lines / f"{batch}.txt").write_text("\n".join(rows) + "\n")
            os.utime(lines / f"{batch}.txt", (1_000 + batch, 1_000 + batch))  # in this order
        (folder / "token").write_text(TOKEN)
        self._write_network_file()

    def _write_network_file(self) -> None:
        network = self.town.network()
        (tracker,) = network.trackers
        (keeper,) = network.storage_nodes
        key = PrivateKey.generate(SeededEntropy("publisher"))
        cost = ScryptCost(n=2, r=1, p=1)
        create_keystore(self.folder / "node.key", key, "p", SeededEntropy("k"), cost=cost)
        (self.folder / "passphrase").write_text("p")
        (self.folder / "shoal.toml").write_text(f"""
[node]
key = "node.key"
passphrase = "file:passphrase"
[[trackers]]
id = "{tracker.id}"
addresses = {json.dumps(tracker.addresses)}
[[storage_nodes]]
id = "{keeper.id}"
addresses = {json.dumps(keeper.addresses)}
[[streams]]
id = "{STREAM}"
storage = ["{keeper.id}"]
[outbox]
token = "file:token"
[gateway]
listen = "{self.gateway}"
""")

    async def publisher(self) -> Process:
        """The publishing node, as a process."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "shoal.cli", "node", "--config", str(self.folder / "shoal.toml")),
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while b"gateway" not in await process.stdout.readline():
                assert process.returncode is None
        return process

    async def driver(self, point: str | None = None, batch: int = -1) -> Process:
        """A driver that begins where the one before it ended."""
        plan = {
            "lines": str(self.folder / "lines"),
            "checkpoint": str(self.folder / "checkpoint"),
            "folder": str(self.folder),
            "options": {
                "outbox": f"http://{self.gateway}",
                "stream": STREAM,
                "token": f"file:{self.folder / 'token'}",
            },
            "point": point,
            "batch": batch,
        }
        path = self.folder / f"plan-{point}.json"
        path.write_text(json.dumps(plan))
        script = Path(__file__).with_name("sink_driver.py")
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        return await asyncio.create_subprocess_exec(
            *(sys.executable, str(script), str(path)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
        )


async def ended(driver: Process) -> tuple[int, str]:
    """How a driver ended, and what it said."""
    async with asyncio.timeout(PATIENCE_S):
        out, err = await driver.communicate()
    assert driver.returncode is not None
    return driver.returncode, (out + err).decode()


async def until_exists(path: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not path.exists():
            await asyncio.sleep(0.05)


def test_every_row_arrives_once_whoever_dies_and_whenever(tmp_path: Path) -> None:
    expected = [f"row {n}" for n in range(BATCHES * ROWS)]

    async def main() -> None:
        stage = Stage(tmp_path)
        arrived: list[Any] = []
        processes: list[Process] = []

        async def listen(messages: Any) -> None:
            async for message in messages:
                assert message.gap_before is None
                arrived.append(message.content)

        async def started(process: Any) -> Process:
            processes.append(await process)
            return processes[-1]

        async with AsyncExitStack() as stack:
            stack.callback(_kill_all, processes)
            await stack.enter_async_context(stage.town.open("tracker"))
            await stack.enter_async_context(stage.town.open("one"))
            far = await stack.enter_async_context(stage.town.open())
            stream = await far.open_stream(STREAM)
            messages = await stack.enter_async_context(stream.subscribe(queue_max=20_000))
            listening = asyncio.ensure_future(listen(messages))
            node = await started(stage.publisher())
            for point, batch in ((AFTER_STAGE, 0), (IN_SEAL, 1), (AFTER_PUBLISH, 2)):
                code, said = await ended(await started(stage.driver(point, batch)))
                assert code == -signal.SIGKILL, said
            zombie = await started(stage.driver(ZOMBIE, 3))
            await until_exists(tmp_path / "stands")
            successor = await started(stage.driver())
            async with asyncio.timeout(PATIENCE_S):
                while len(arrived) <= 3 * ROWS:  # it publishes what the zombie was about to
                    await asyncio.sleep(0.02)
            node.kill()  # in the middle of it
            await node.wait()
            await started(stage.publisher())
            code, said = await ended(successor)
            assert code == 0, said
            (tmp_path / "go").touch()
            code, said = await ended(zombie)
            assert code != 0
            assert "another driver has taken it over" in said
            async with asyncio.timeout(PATIENCE_S):
                while len(arrived) < len(expected):
                    await asyncio.sleep(0.05)
            await asyncio.sleep(1)  # nothing more comes
            assert Counter(arrived) == Counter(expected)
            kept = [message.content async for message in stream.read()]
            assert Counter(kept) == Counter(expected), "and storage has each of them once"
            listening.cancel()

    run(main())


def _kill_all(processes: list[Process]) -> None:
    for process in processes:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)  # a driver has a JVM
