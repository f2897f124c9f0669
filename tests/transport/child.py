"""A node in a process of its own, which can be killed: echoes, and says where it listens.

python -m tests.transport.child [descriptors that it may have]
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Sequence

from shoal.transport.port import Frame, Link
from shoal.transport.websocket import WebSocketTransport
from tests.transport.recorder import Recorder
from tests.transport.stage import credentials


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
