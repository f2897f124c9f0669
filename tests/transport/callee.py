"""A node in a process of its own, which is called through its stdin and stdout: it echoes.

python -m tests.transport.callee
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Sequence

from shoal.base.ids import NodeId
from shoal.transport.port import Frame, Link
from shoal.transport.webrtc import WebRTCTransport
from shoal.transport.webrtc_signals import Receive
from tests.transport.recorder import Recorder
from tests.transport.stage import credentials

ADDRESS_OF_CHILD = credentials("callee").key.address
_LENGTH = struct.Struct(">I")


class StdioPlace:
    """The signalling port over two pipes, with one other at their end."""

    def __init__(self, reads: int, writes: int, peer: NodeId = ADDRESS_OF_CHILD) -> None:
        self.receive: Receive = lambda peer, signal: None
        self._reads, self._writes, self._peer = reads, writes, peer
        self._read = b""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(reads, False)
        self._loop.add_reader(reads, self._readable)

    def send(self, peer: NodeId, signal: bytes) -> bool:
        os.write(self._writes, _LENGTH.pack(len(signal)) + signal)
        return True

    def close(self) -> None:
        self._loop.remove_reader(self._reads)

    def _readable(self) -> None:
        data = os.read(self._reads, 65536)
        if not data:
            self.close()
        self._read += data
        while len(self._read) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._read)
            if len(self._read) < _LENGTH.size + size:
                return
            signal = self._read[_LENGTH.size : _LENGTH.size + size]
            self._read = self._read[_LENGTH.size + size :]
            self.receive(self._peer, signal)


class Echo(Recorder):
    def frames_received(self, link: Link, frames: Sequence[Frame]) -> None:
        for protocol, payload in frames:
            link.send(protocol, payload)


async def main() -> None:
    place = StdioPlace(0, 1, credentials("a").key.address)
    transport = WebRTCTransport(credentials("callee"), Echo(), signalling=place, loopback=True)
    await transport.listen("webrtc:")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
