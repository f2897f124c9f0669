"""How a process of the demo talks to the one that started it: JSON over stdin and stdout."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import msgspec

from shoal.cli.open_files import allow_all_files


async def read_stdin() -> asyncio.StreamReader:
    """Lines from whoever started us; they end when it is gone."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def say(message: msgspec.Struct, descriptor: int = 1) -> None:
    """One line to whoever started us."""
    data = msgspec.json.encode(message) + b"\n"
    with suppress(BrokenPipeError):  # nobody listens: stdin will say so, too
        while data:
            data = data[os.write(descriptor, data) :]


def run(main: Coroutine[Any, Any, None]) -> None:
    """The process, with files for all its links, on the fastest event loop there is."""
    allow_all_files()
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
