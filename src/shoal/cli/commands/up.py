"""`shoal up`: a whole network on this machine, in one process, that goes on where it was."""

from __future__ import annotations

import asyncio
import shutil
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.commands.serve import open_explorer
from shoal.cli.terminal.process import allow_all_files, log_to_stderr, run_until_stopped

if TYPE_CHECKING:
    from shoal.base.ids import StreamId
    from shoal.cli.commands.up_folder import UpFolder
    from shoal.node import Node

LOOK_S = 0.5  # between two looks at which streams there are to carry
CARRIED_MAX = 256  # streams that the other nodes carry: enough to look at


def up(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Where the network is kept; made if new.")
    ] = Path(),
    nodes: Annotated[
        int, typer.Option(min=0, max=64, help="More nodes, which carry what others publish.")
    ] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="Say where everything is as one line of JSON.")
    ] = False,
) -> None:
    """Run a network on this machine: tracker, storage node, registry, durable topics, search,
    gateway and explorer in one process, and a few nodes that carry streams.

    The first start makes keys, a registry and the network file shoal.toml, with which other
    commands find the network; the next one goes on with what is there. Ctrl-C ends it.

    Example: shoal up
    """
    allow_all_files()
    log_to_stderr()
    run_until_stopped(_up(folder, nodes, as_json))


async def _up(folder: Path, nodes: int, as_json: bool) -> None:
    from shoal.cli.commands.up_folder import UpFolder, relay_of
    from shoal.gateway.server import open_doors
    from shoal.node import Node

    kept = UpFolder(folder)
    is_new = kept.is_new
    async with AsyncExitStack() as stack:
        network = await kept.open()
        stack.callback(kept.close)
        first = await stack.enter_async_context(Node.open(network))
        relays = [
            await stack.enter_async_context(Node.open(relay_of(network, first.id)))
            for _ in range(nodes)
        ]
        explorer = open_explorer([first, *relays], folder / "results", stack)
        gateway = await open_doors(first, stack, [explorer])
        assert gateway is not None
        _tell(kept, first, gateway, nodes, is_new, as_json)
        await _carry(first, relays)


async def _carry(first: Node, relays: list[Node]) -> None:
    """Have every stream that somebody is in kept, and carried by the other nodes, until the end."""
    from shoal.base.errors import ShoalError

    assert first.tracker is not None
    assert first.storage is not None
    seen: dict[StreamId, None] = {}

    async def join(relay: Node, stream: StreamId) -> None:
        with suppress(ShoalError):  # private, or over already
            await relay.join(stream)

    async with asyncio.TaskGroup() as tasks:
        while True:
            for stream in [stream for stream in seen if stream not in first.tracker.streams]:
                del seen[stream]  # somebody may come again, and be let in
            for stream in list(first.tracker.streams):
                if stream not in seen and len(seen) < CARRIED_MAX:
                    seen[stream] = None
                    first.storage.keep(stream)
                    for relay in relays:
                        tasks.create_task(join(relay, stream))
            await asyncio.sleep(LOOK_S)


def _tell(
    kept: UpFolder, first: Node, gateway: str, nodes: int, is_new: bool, as_json: bool
) -> None:
    import msgspec

    from shoal.base.ids import show_node_id
    from shoal.cli.commands.up_folder import GREETINGS

    you = show_node_id(kept.key("you.key").address)
    registry = first.network.registry is not None
    explorer = f"{gateway}/explorer/"
    if as_json:
        line = {
            "node": show_node_id(first.id),
            "address": first.addresses[0],
            "gateway": gateway,
            "explorer": explorer,
            "registry": registry,
            "nodes": nodes + 1,
            "you": you,
            "network_file": str(kept.yours),
        }
        print(msgspec.json.encode(line).decode(), flush=True)
        return
    shoal = _command()
    streams = "tracker, storage, topics, search" + (", registry" if registry else "")
    print(
        f"""\
{"A new network" if is_new else "The network"} of {kept.data} is up:
  {streams}: {first.addresses[0]}
  gateway   {gateway}
  explorer  {explorer}
  {nodes} more nodes carry what is published
You are {you}; commands find the network by {kept.yours}.

Try in another terminal{"" if kept.folder == Path() else f", in {kept.folder}"}:
  {shoal} stream subscribe {GREETINGS}
  echo hello | {shoal} stream publish {GREETINGS}
  {shoal} stream resend {GREETINGS}
Ctrl-C ends it; `{shoal} up` goes on from there.""",
        flush=True,
    )
    if not registry:
        print(
            "There is no registry, so everybody may do everything: an embedded one needs Python"
            f" 3.11 or 3.12, this is {sys.version_info.major}.{sys.version_info.minor}.",
            file=sys.stderr,
        )


def _command() -> str:
    """How this program is called from here."""
    if shutil.which("shoal") is not None:
        return "shoal"
    called = Path(sys.argv[0]).absolute()
    environment = called.parent.parent
    if environment.name == ".venv" and (environment.parent / "run").is_file():
        called = environment.parent / "run"  # a clone
    here = Path.cwd()
    return f"./{called.relative_to(here)}" if called.is_relative_to(here) else str(called)
