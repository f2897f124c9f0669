"""Somebody on the path: forwards bytes, listens in, and changes them at will."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

Alter = Callable[[bytes], bytes]


class Proxy:
    """A TCP proxy in front of an address; with TLS it ends the one side and begins the other."""

    def __init__(self) -> None:
        self.from_dialler = bytearray()
        self.from_acceptor = bytearray()
        self.alter_from_dialler: Alter = bytes
        self.alter_from_acceptor: Alter = bytes
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def open(
        self,
        target: str,
        serving: ssl.SSLContext | None = None,
        dialling: ssl.SSLContext | None = None,
    ) -> str:
        """The address at which the target now seems to be."""
        url = urlsplit(target)
        self._target = (url.hostname, url.port, dialling)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=serving)
        port = self._server.sockets[0].getsockname()[1]
        return f"{url.scheme}://127.0.0.1:{port}"

    async def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        host, port, tls = self._target
        there_reader, there_writer = await asyncio.open_connection(host, port, ssl=tls)
        self._writers += (writer, there_writer)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._forward(reader, there_writer, dialler=True))
            group.create_task(self._forward(there_reader, writer, dialler=False))
        self._tasks.discard(task)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, dialler: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                heard = self.from_dialler if dialler else self.from_acceptor
                heard += data
                alter = self.alter_from_dialler if dialler else self.alter_from_acceptor
                writer.write(alter(data))
                await writer.drain()
        writer.transport.abort()
