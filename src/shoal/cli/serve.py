"""`shoal tracker` and `shoal node`: run one node until it is told to stop."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shoal.gateway.history import HistoryQuery, ReadLines
    from shoal.node import Node
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
    """Run a node from a network file: it forwards the streams it is given, and takes part in
    durable topics and in search if the file says so.

    Example: shoal node --config shoal.toml --stream 0x7e5f4552091a69125d5dfcb7b8c2659029395bdf/x
    """
    from shoal.node.network_file import load_network_file

    run_until_stopped(_serve(load_network_file(config), stream or []))


def storage(
    config: Config = Path("shoal.toml"),
    listen: Listen = None,
    key: Key = None,
    passphrase: Passphrase = None,
    gateway: Gateway = None,
    folder: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where messages are kept; made if new.")
    ] = None,
) -> None:
    """Run a storage node: it keeps the streams that name it, and resends them.

    Prints the [[storage_nodes]] entry for the network files of its trackers and nodes. A stream
    names it as storage = ["0x..."] under [[streams]], so it needs a key to be the same each time.

    Example: shoal storage --key storage.key --folder store --listen ws://127.0.0.1:7710
    """
    from msgspec.structs import replace

    from shoal.node.network_file import (
        GatewaySection,
        NodeSection,
        StorageSection,
        load_network_file,
    )

    network = load_network_file(config)
    section, node = network.storage or StorageSection(), network.node
    # Paths on the command line begin where it is given.
    path = node.key if key is None else str(Path(key).absolute())
    source = node.passphrase if passphrase is None else passphrase
    node = NodeSection(path, source, tuple(listen) if listen else node.listen, node.certificate)
    if folder is not None:
        section = replace(section, folder=str(Path(folder).absolute()))
    serving = network.gateway if gateway is None else GatewaySection(gateway)
    network = replace(network, node=node, storage=section, gateway=serving)
    run_until_stopped(_serve(network, []))


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
    from shoal.kernel.contact import Contact
    from shoal.node import Node

    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(Node.open(network))
        if network.gateway is not None:
            stored = running.storage
            disk, keeps = (None, None) if stored is None else (stored.disk, stored.keeps)
            lines = reader_of(running) if network.trackers_of(Contact(running.id)) else None
            gateway = Gateway(
                running.host,
                running.tracker,
                lines=lines,
                disk=disk,
                keeps=keeps,
                outbox=running.outbox,
            )
            stack.push_async_callback(gateway.close)
            print(f"# gateway {await gateway.open(network.gateway.listen)}", flush=True)
        if running.tracker is not None:
            _print_entry("trackers", running)
        if running.storage is not None:
            _print_entry("storage_nodes", running)
            if not running.storage.streams:
                print(
                    f'no stream is kept here yet: write storage = ["0x{running.id.hex()}"] '
                    "under [[streams]] in the network file",
                    file=sys.stderr,
                )
        if network.dht is not None:
            _print_entry("dht.bootstrap", running)
        searching = network.search is not None and not network.search.client
        if searching:
            _print_entry("search.bootstrap", running)
        others_need = (running.tracker, running.storage, network.dht)
        if not searching and all(part is None for part in others_need):
            print(f"node 0x{running.id.hex()} at {', '.join(running.addresses)}", flush=True)
        for id in streams:
            await running.join(id)
        await asyncio.Event().wait()  # until a signal


def _print_entry(section: str, running: Node) -> None:
    """What the network files of others must say to find this node."""
    print(f"[[{section}]]")
    print(f'id = "0x{running.id.hex()}"')
    print(f"addresses = {json.dumps(running.addresses)}", flush=True)


def reader_of(running: Node) -> ReadLines:
    """How the gateway of a node reads history."""
    from shoal.node import Last

    async def lines(query: HistoryQuery) -> AsyncIterator[bytes]:
        opened = await running.open_stream(query.stream)
        start = Last(query.last) if query.last is not None else query.begin or "earliest"
        messages = opened.read(
            start, query.end, publisher=query.publisher, partitions=query.partition
        )
        async for message in messages:
            yield message.as_json() + b"\n"

    return lines
