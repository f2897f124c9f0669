"""`shoal serve`: run one node until it is told to stop, with the roles that a network file and
flags give it."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.terminal.process import (
    DEFAULT_CONFIG,
    allow_all_files,
    log_to_stderr,
    run_until_stopped,
)

if TYPE_CHECKING:
    from shoal.config.network_file import NetworkFile
    from shoal.explorer import ExplorerRoutes
    from shoal.node import Node


def serve(
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The network file.", show_default="shoal.toml"),
    ] = None,
    tracker: Annotated[bool, typer.Option("--tracker", help="Be a tracker.")] = False,
    degree: Annotated[
        int | None,
        typer.Option(min=3, max=64, help="Neighbours per node, of a tracker.", show_default="4"),
    ] = None,
    storage: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep streams there; made if new.", show_default=False),
    ] = None,
    stream: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="A stream to help carry; any number.")
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="Where peers reach it, as in ws://127.0.0.1:7700."),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keystore; without one the id is new with every start."),
    ] = None,
    passphrase: Annotated[
        str | None, typer.Option(metavar="env:NAME|file:PATH", help="Where its passphrase is.")
    ] = None,
    gateway: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve HTTP there: the gateway.")
    ] = None,
) -> None:
    """Run one node. Its roles are those that the network file names and those of the flags:
    tracker, storage node, part of the DHT, part of search, or none, and then it carries the streams
    that it is given. Prints the entries that the network files of others need to find it.

    A storage node needs a key, to be the same with each start: streams name it.

    Example: shoal serve --tracker --listen ws://127.0.0.1:7700 --gateway 127.0.0.1:7780
    """
    from msgspec.structs import replace

    from shoal.config.network_file import NetworkFile, load_network_file
    from shoal.config.sections import GatewaySection, StorageSection, TrackerSection

    if config is None and (tracker or storage is not None) and not DEFAULT_CONFIG.exists():
        network = NetworkFile()
    else:
        network = load_network_file(config or DEFAULT_CONFIG)

    # Paths on the command line begin where it is given, those in a file where that is.
    def with_flags(network: NetworkFile) -> NetworkFile:
        node = replace(
            network.node,
            key=network.node.key if key is None else str(key.absolute()),
            passphrase=network.node.passphrase if passphrase is None else _absolute(passphrase),
            listen=tuple(listen) if listen else network.node.listen,
        )
        changes: dict[str, Any] = {"node": node}
        if tracker or degree is not None:
            section = network.tracker or TrackerSection()
            changes["tracker"] = replace(section, degree=degree or section.degree)
        if storage is not None:
            kept = network.storage or StorageSection()
            changes["storage"] = replace(kept, folder=str(storage.absolute()))
        if gateway is not None:
            changes["gateway"] = replace(network.gateway or GatewaySection(), listen=gateway)
        return replace(network, **changes)

    def read_again() -> NetworkFile:
        return with_flags(load_network_file(config or DEFAULT_CONFIG))

    allow_all_files()
    log_to_stderr()
    run_until_stopped(_serve(with_flags(network), stream or [], read_again))


def _absolute(source: str) -> str:
    kind, _, path = source.partition(":")
    return f"file:{Path(path).absolute()}" if kind == "file" else source


async def _serve(
    network: NetworkFile, streams: list[str], read_again: Callable[[], NetworkFile]
) -> None:
    from shoal.node import Node

    async with AsyncExitStack() as stack:
        hung_up = _hangups(stack)
        running = await stack.enter_async_context(Node.open(network))
        _reload_on_hangup(running, read_again, hung_up, stack)
        address = await _open_doors(running, stack)
        if address is not None:
            print(f"# gateway {address}", flush=True)
        if running.tracker is not None:
            _print_entry("trackers", running)
            if address is not None:
                print(f'gateway = "{address}"', flush=True)
        if running.storage is not None:
            _print_entry("storage_nodes", running)
            if not running.storage.streams and not _is_named(running):
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


def _hangups(stack: AsyncExitStack) -> asyncio.Event:
    """Set at each SIGHUP, from before the node is opened until it is closed: one that comes in
    between must not end the process."""
    import signal

    loop, hung_up = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, hung_up.set)
    stack.callback(loop.remove_signal_handler, signal.SIGHUP)
    return hung_up


def _reload_on_hangup(
    running: Node,
    read_again: Callable[[], NetworkFile],
    wanted: asyncio.Event,
    stack: AsyncExitStack,
) -> None:
    """SIGHUP has the network file read again."""
    from shoal.base.errors import ShoalError

    log = logging.getLogger("shoal.node")

    async def reload() -> None:
        while True:
            await wanted.wait()
            wanted.clear()
            try:
                found = await running.reload(read_again())
            except ShoalError as error:
                log.error("the network file is not taken, and nothing is changed: %s", error)
                continue
            except Exception:  # a bug: the next SIGHUP must not be without effect or a word
                log.exception("the network file could not be taken")
                continue
            taken = ", ".join(found.taken) or "nothing new"
            restart = f"; needs a restart: {', '.join(found.restart)}" if found.restart else ""
            log.info("the network file was read again; taken: %s%s", taken, restart)

    task = asyncio.get_running_loop().create_task(reload())
    stack.callback(task.cancel)


async def _open_doors(running: Node, stack: AsyncExitStack) -> str | None:
    """The gateway's address, if there is one. What serves HTTP is not loaded for nothing."""
    network = running.network
    if network.gateway is None and network.mqtt is None:
        return None
    from shoal.gateway.server import open_doors

    shown = network.gateway is not None and network.gateway.explorer
    results = network.path("results")
    extras = [open_explorer([running], results, stack)] if shown else []
    return await open_doors(running, stack, extras)


def open_explorer(nodes: Sequence[Node], results: Path, stack: AsyncExitStack) -> ExplorerRoutes:
    """The explorer of nodes of this process, for their gateway, until the stack ends. Runs of the
    lab are in the folder of results, if there are any."""
    from shoal.explorer import ExplorerRoutes, SeenNode

    seen = [
        SeenNode(
            node.host,
            node.network.node.region,
            node.network.node.location,
            None if node.network.search is None else node.search,
        )
        for node in nodes
    ]
    explorer = ExplorerRoutes(seen, results)
    stack.callback(explorer.close)
    return explorer


def _is_named(running: Node) -> bool:
    """Whether its network file has it keep streams, of which nobody has made one yet."""
    from shoal.base.ids import show_node_id

    return any(show_node_id(running.id) in settings.storage for settings in running.network.streams)


def _print_entry(section: str, running: Node) -> None:
    """What the network files of others must say to find this node."""
    print(f"[[{section}]]")
    print(f'id = "0x{running.id.hex()}"')
    print(f"addresses = {json.dumps(running.addresses)}", flush=True)
