"""The processes that a demo starts: each is told things and says things line by line, and is gone
when the demo is."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from shoal.base.errors import ShoalError
from shoal.cli.terminal.process import allow_all_files
from shoal_city.demo.messages import (
    Figures,
    FromChild,
    Open,
    Ready,
    SparkFigures,
    StationFigures,
    Stop,
)

LINE_BYTES_MAX = 1 << 20
STOP_S = 60.0
COMPLAINT_LINES = 20  # the last ones


class Child:
    """One process and what it said last."""

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, complaints: Path | None
    ) -> None:
        self.name = name
        self.process = process
        self._complaints = complaints
        self.ready = False
        self.opened: Open | None = None
        self.figures: Figures | None = None
        self.station: StationFigures | None = None
        self.spark: SparkFigures | None = None
        self.reports = 0
        self._reading = asyncio.create_task(self._read())

    def tell(self, message: msgspec.Struct) -> None:
        """One line to its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(message) + b"\n")

    def check(self) -> None:
        """ShoalError if it has ended, or makes no sense."""
        if self.process.returncode is not None:
            self._fail()
        if self._reading.done() and (problem := self._reading.exception()) is not None:
            raise ShoalError(f"{self.name} makes no sense: {problem}")

    async def stop(self) -> None:
        """Let it say its last figures and end."""
        self.tell(Stop())
        try:
            async with asyncio.timeout(STOP_S):
                await self.process.wait()
        except TimeoutError:
            raise ShoalError(f"{self.name} did not end within {STOP_S:.0f} s") from None
        await self._reading
        if self.process.returncode:
            self._fail()

    async def end(self) -> None:
        """At once, if it still runs, with all that it started: Spark's Java writes files."""
        with suppress(ProcessLookupError):
            if self.process.returncode is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    def _fail(self) -> None:
        if self._complaints is not None:
            lines = self._complaints.read_text(errors="replace").splitlines()
            said = [line for line in lines if not line.startswith("\tat ")]  # Java's stack
            print("\n".join(said[-COMPLAINT_LINES:]), file=sys.stderr)
        raise ShoalError(
            f"{self.name} ended with code {self.process.returncode} before its time; "
            "what it said is above"
        )

    async def _read(self) -> None:
        assert self.process.stdout is not None
        decoder = msgspec.json.Decoder(FromChild)
        while line := await self.process.stdout.readline():
            said = decoder.decode(line)
            if isinstance(said, Ready):
                self.ready = True
            elif isinstance(said, Open):
                self.opened, self.ready = said, True
            elif isinstance(said, StationFigures):
                self.station = said
            elif isinstance(said, SparkFigures):
                self.spark = said
            else:
                self.figures = said
            self.reports += 1


async def start_child(
    name: str,
    module: str,
    work: msgspec.Struct,
    stack: AsyncExitStack,
    complaints: Path | None = None,
) -> Child:
    """Start `python -m MODULE` and tell it its work; it ends with the stack. What it says on stderr
    goes into the file of complaints, if there is one, and is shown if it fails."""
    stderr = None if complaints is None else stack.enter_context(complaints.open("w"))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        limit=LINE_BYTES_MAX,
        start_new_session=True,  # Ctrl-C is for us: we stop them, in good order
    )
    child = Child(name, process, complaints)
    stack.push_async_callback(child.end)
    child.tell(work)
    return child


# How a process of the demo talks to the one that started it: JSON over stdin and stdout.


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


# Ports that must be known before something listens on them.


# Linux gives outgoing connections ports from 32,768 on.
FIRST, COUNT = 15_000, 17_000
# Each process walks through the ports from a place of its own and gives none twice before it has
# been round: a port may be free only because its owner is about to listen again.
_walk = itertools.count((os.getpid() * 7_919) % COUNT)


def free_port() -> int:
    """A port that is free now and that no outgoing connection takes meanwhile."""
    for step in itertools.islice(_walk, COUNT):
        port = FIRST + step % COUNT
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no port is free from {FIRST} to {FIRST + COUNT - 1}: end what holds them")
