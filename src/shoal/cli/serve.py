"""`shoal tracker` and `shoal node`: run one node until it is told to stop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    asyncio.run(_serve(network, []))


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

    asyncio.run(_serve(load_network_file(config), stream or []))


async def _serve(network: NetworkFile, streams: list[str]) -> None:
    import signal

    from shoal.gateway import Gateway
    from shoal.node import Node

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    async with Node.open(network) as running:
        gateway = Gateway(running.host, running.tracker) if network.gateway else None
        if gateway is not None and network.gateway is not None:
            print(f"# gateway {await gateway.open(network.gateway.listen)}", flush=True)
        if running.tracker is not None:
            print("[[trackers]]")
            print(f'id = "0x{running.id.hex()}"')
            print(f"addresses = {list(running.addresses)}".replace("'", '"'), flush=True)
        else:
            print(f"node 0x{running.id.hex()} at {', '.join(running.addresses)}", flush=True)
        for id in streams:
            await running.join(id)
        await stop.wait()
        if gateway is not None:
            await gateway.close()
