"""`shoal tracker` and `shoal node`: run one node until it is told to stop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shoal.node.network_file import NetworkFile

Listen = Annotated[
    list[str] | None,
    typer.Option(metavar="ADDRESS", help="Where peers reach it, as in ws://127.0.0.1:7700."),
]
Key = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Keystore; without one the id is new with every start."),
]
Passphrase = Annotated[
    str | None, typer.Option(metavar="env:NAME|file:PATH", help="Where its passphrase is.")
]
Gateway = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Serve health and metrics over HTTP there.")
]
Config = Annotated[Path, typer.Option(metavar="FILE", help="The network file.")]


def tracker(
    listen: Listen = None,
    key: Key = None,
    passphrase: Passphrase = None,
    gateway: Gateway = None,
    degree: Annotated[int, typer.Option(min=3, max=64, help="Neighbours per node.")] = 4,
) -> None:
    """Run a tracker. Prints the [[trackers]] entry for the network files of its nodes.

    Example: shoal tracker --listen ws://127.0.0.1:7700 --gateway 127.0.0.1:7780
    """
    from shoal.node.network_file import GatewaySection, NetworkFile, NodeSection, TrackerSection

    network = NetworkFile(
        node=NodeSection(key, passphrase, tuple(listen or ["ws://127.0.0.1:7700"])),
        tracker=TrackerSection(degree),
        gateway=None if gateway is None else GatewaySection(gateway),
    )
    run_until_stopped(_serve(network, []))


def node(
    config: Config = Path("shoal.toml"),
    stream: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="A stream to help carry; any number.")
    ] = None,
) -> None:
    """Run a node from a network file: it forwards the streams it is given.

    Example: shoal node --config shoal.toml --stream 0x7e5f4552091a69125d5dfcb7b8c2659029395bdf/x
    """
    from shoal.node.network_file import load_network_file

    run_until_stopped(_serve(load_network_file(config), stream or []))


def run_until_stopped(main: Coroutine[Any, Any, None]) -> None:
    """Run to the end, or until SIGINT or SIGTERM, which end it in good order."""
    import signal

    async def stoppable() -> None:
        task = asyncio.ensure_future(main)
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, task.cancel)
        with suppress(asyncio.CancelledError):
            await task

    try:
        import uvloop
    except ImportError:
        asyncio.run(stoppable())
    else:
        uvloop.run(stoppable())


async def _serve(network: NetworkFile, streams: list[str]) -> None:
    from shoal.gateway import Gateway
    from shoal.node import Node

    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(Node.open(network))
        if network.gateway is not None:
            gateway = Gateway(running.host, running.tracker)
            stack.push_async_callback(gateway.close)
            print(f"# gateway {await gateway.open(network.gateway.listen)}", flush=True)
        if running.tracker is not None:
            print("[[trackers]]")
            print(f'id = "0x{running.id.hex()}"')
            print(f"addresses = {json.dumps(running.addresses)}", flush=True)
        else:
            print(f"node 0x{running.id.hex()} at {', '.join(running.addresses)}", flush=True)
        for id in streams:
            await running.join(id)
        await asyncio.Event().wait()  # until a signal
