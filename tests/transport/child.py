"""A node in a process of its own, which can be killed: echoes, and says where it listens.

python -m tests.transport.child [descriptors that it may have]
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from shoal.transport.port import Frame, Link
from shoal.transport.websocket import WebSocketTransport
from tests.transport.recorder import Recorder
from tests.transport.stage import credentials

CHILD = credentials("child").key.address


@asynccontextmanager
async def child(*arguments: str) -> AsyncIterator[tuple[subprocess.Popen[str], str]]:
    """A node in another process, and its address."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.transport.child", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        try:
            assert process.stdout is not None
            yield process, (await asyncio.to_thread(process.stdout.readline)).strip()
        finally:
            process.kill()


class Echo(Recorder):
    def frames_received(self, link: Link, frames: Sequence[Frame]) -> None:
        for protocol, payload in frames:
            link.send(protocol, payload)


async def main() -> None:
    transport = WebSocketTransport(credentials("child"), Echo())
    door = await transport.listen("ws://127.0.0.1:0")
    if len(sys.argv) > 1:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), most))
    print(door.address, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
