"""`shoal stream`: publish from stdin, subscribe to stdout."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

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
    asyncio.run(_publish(id, config, text))


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
    asyncio.run(_subscribe(id, config, count))


async def _publish(id: str, config: Path, text: bool) -> None:
    import msgspec

    from shoal.node import Node

    async with Node.open(config) as node:
        opened = await node.open_stream(id)
        print(f"publishing to {opened.id}", file=sys.stderr)
        while line := await asyncio.to_thread(sys.stdin.readline):
            content = line.rstrip("\n")
            try:
                await opened.publish(content if text else msgspec.json.decode(content))
            except msgspec.DecodeError:
                await opened.publish(content)


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
