"""`shoal stream`: publish from stdin, subscribe to stdout."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Annotated, Any

import typer

from shoal.cli.serve import run_until_stopped

READ_BYTES = 64 * 1024

stream = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Publish and subscribe.\n\nExample: echo hello | shoal stream publish /greetings",
)

Id = Annotated[
    str, typer.Argument(metavar="ID", help="0xOWNER/path, or /path for a stream of this key.")
]
Config = Annotated[Path, typer.Option(metavar="FILE", help="The network file.")]


@stream.command()
def publish(
    id: Id,
    config: Config = Path("shoal.toml"),
    text: Annotated[
        bool, typer.Option("--text", help="Lines are text, even if they look like JSON.")
    ] = False,
) -> None:
    """Publish each line of stdin as one message: JSON if it is, text otherwise.

    Example: echo '{"speed": 8.3}' | shoal stream publish /vehicles
    """
    run_until_stopped(_publish(id, config, text))


@stream.command()
def subscribe(
    id: Id,
    config: Config = Path("shoal.toml"),
    count: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many messages.", show_default=False)
    ] = None,
) -> None:
    """Print each message as one line of JSON: id, publisher, timestamp, content.

    Example: shoal stream subscribe 0x7e5f4552091a69125d5dfcb7b8c2659029395bdf/vehicles --count 10
    """
    run_until_stopped(_subscribe(id, config, count))


async def _publish(id: str, config: Path, text: bool) -> None:
    from shoal.node import Node

    async with Node.open(config) as node:
        opened = await node.open_stream(id)
        print(f"publishing to {opened.id}", file=sys.stderr)
        async for line in _lines():
            await opened.publish(_content(line, text))


async def _subscribe(id: str, config: Path, count: int | None) -> None:
    from shoal.node import Node

    async with Node.open(config) as node:
        opened = await node.open_stream(id)
        async with opened.subscribe() as messages:
            print(f"subscribed to {opened.id}", file=sys.stderr)
            seen = 0
            async for message in messages:
                print(message.as_json().decode(), flush=True)
                seen += 1
                if seen == count:
                    return


def _content(line: bytes, text: bool) -> Any:
    """JSON if it is, else text, else bytes."""
    import msgspec

    if not text:
        with suppress(msgspec.DecodeError, RecursionError):
            return msgspec.json.decode(line)
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line


async def _lines() -> AsyncIterator[bytes]:
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
