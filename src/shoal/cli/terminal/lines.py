"""Lines of stdin, for commands that publish them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread

READ_BYTES = 64 * 1024


async def stdin_lines() -> AsyncIterator[bytes]:
    """The lines of stdin, read when they are asked for.

    A terminal may say nothing for ever, and the process must be able to end all the same. So a
    daemon thread reads, past Python's own sys.stdin, whose lock it would take to the grave.
    """
    loop = asyncio.get_running_loop()
    asked: SimpleQueue[asyncio.Future[bytes]] = SimpleQueue()
    Thread(target=_read, args=(loop, asked), daemon=True).start()
    rest = b""
    while True:
        answer: asyncio.Future[bytes] = loop.create_future()
        asked.put(answer)
        chunk = await answer
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


def _read(loop: asyncio.AbstractEventLoop, asked: SimpleQueue[asyncio.Future[bytes]]) -> None:
    def tell(answer: asyncio.Future[bytes], chunk: bytes) -> None:
        if not answer.done():
            answer.set_result(chunk)

    with suppress(RuntimeError):  # the loop is closed: nobody waits for it any more
        while True:
            answer, chunk = asked.get(), b""
            with suppress(OSError):  # a terminal that is gone has nothing more to say
                chunk = os.read(sys.stdin.fileno(), READ_BYTES)
            loop.call_soon_threadsafe(tell, answer, chunk)


def printable(text: str) -> str:
    """Whoever wrote it chose the text: it must not steer the terminal. JSON stays JSON."""
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
