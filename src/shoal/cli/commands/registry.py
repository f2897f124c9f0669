"""`shoal registry`: make one, look at it, and keep its lists of nodes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.terminal.process import Config, run_until_stopped

if TYPE_CHECKING:
    from shoal.base.ids import NodeId, StreamId
    from shoal.config.network_file import NetworkFile
    from shoal.identity import PrivateKey
    from shoal.registry.config import RegistrySection
    from shoal.registry.contract_registry import ContractRegistry
    from shoal.registry.port import Directory

registry = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Which streams there are, who may do what, and where nodes are found.\n\n"
    "Example: shoal registry deploy --config shoal.toml",
)


class Role(StrEnum):
    """What a listed node is."""

    tracker = "tracker"
    storage = "storage"


Node = Annotated[str, typer.Argument(metavar="0xID", help="The node's id.")]
Listed = Annotated[Role, typer.Argument(metavar="tracker|storage", help="What the node is.")]


@registry.command()
def deploy(config: Config = Path("shoal.toml")) -> None:
    """Make the registry that [registry] of the network file describes. The key of [node] becomes
    the admin of its lists of nodes.

    Example: shoal registry deploy --config shoal.toml
    """
    run_until_stopped(_deploy(config))


@registry.command()
def show(
    stream: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A stream, to show what it is.")
    ] = None,
    config: Config = Path("shoal.toml"),
    address: Annotated[
        list[str] | None,
        typer.Option(
            metavar="0x...", help="Whose permissions to show; may be given more than once."
        ),
    ] = None,
) -> None:
    """Show the registry, or one stream of it and who may do what with it until when.

    Example: shoal registry show /vehicles --address 0x7e5f4552091a69125d5dfcb7b8c2659029395bdf
    """
    run_until_stopped(_show(config, stream, address or []))


@registry.command()
def put(
    role: Listed,
    node: Node,
    addresses: Annotated[
        list[str], typer.Argument(metavar="ADDRESS...", help="Where it is reached.")
    ],
    config: Config = Path("shoal.toml"),
) -> None:
    """List a tracker or a storage node, or change where it is reached.

    Example: shoal registry put tracker 0x7e5f4552091a69125d5dfcb7b8c2659029395bdf ws://10.0.0.7:7700
    """
    run_until_stopped(_put(config, role, node, addresses))


@registry.command()
def remove(role: Listed, node: Node, config: Config = Path("shoal.toml")) -> None:
    """Take a tracker or a storage node off the list.

    Example: shoal registry remove tracker 0x7e5f4552091a69125d5dfcb7b8c2659029395bdf
    """
    run_until_stopped(_remove(config, role, node))


@registry.command("hand-over")
def hand_over(role: Listed, admin: Node, config: Config = Path("shoal.toml")) -> None:
    """Let somebody else list trackers, or storage nodes, from now on. Only they can give it back.

    Example: shoal registry hand-over tracker 0x7e5f4552091a69125d5dfcb7b8c2659029395bdf
    """
    run_until_stopped(_hand_over(config, role, admin))


@asynccontextmanager
async def opened_registry(config: Path) -> AsyncIterator[ContractRegistry]:
    """The registry of a network file, with its key if it names one."""
    from shoal.config.network_file import load_network_file
    from shoal.registry.opening import open_registry

    network = load_network_file(config)
    section = _section(network)
    opened = await open_registry(section, Path(network.folder), await _key(network))
    try:
        if section.depth:
            # Whoever changes something waits that long.
            print(
                f"a change counts when {section.depth} blocks follow it (finality_blocks)",
                file=sys.stderr,
            )
        yield opened
    finally:
        await opened.close()


def stream_of(text: str, opened: ContractRegistry) -> StreamId:
    """A stream as people write it: /path is of the own key."""
    from shoal.base.ids import parse_stream_id, show_node_id

    if text.startswith("/"):
        text = show_node_id(opened.signer().address) + text
    return parse_stream_id(text)


async def _deploy(config: Path) -> None:
    from shoal.base.errors import ConfigError
    from shoal.base.ids import show_node_id
    from shoal.config.network_file import load_network_file
    from shoal.identity import SystemEntropy
    from shoal.registry.opening import deploy_registry

    network = load_network_file(config)
    section, key = _section(network), await _key(network)
    if key is None:
        raise ConfigError("node.key: a registry has an admin: make a key with `shoal key new`")
    print("three contracts are made, one after the other", file=sys.stderr)
    contract = await deploy_registry(section, Path(network.folder), key, SystemEntropy())
    if section.folder is not None:
        print(f"registry in {network.path(section.folder)}", file=sys.stderr)
    else:
        print("add to [registry]:", file=sys.stderr)
    print(f'contract = "{show_node_id(contract)}"')


async def _show(config: Path, stream: str | None, addresses: list[str]) -> None:
    from shoal.base.ids import parse_node_id, show_node_id
    from shoal.registry.port import Directory

    whom = [parse_node_id(text) for text in addresses]
    async with opened_registry(config) as opened:
        if stream is not None:
            await _show_stream(opened, stream_of(stream, opened), whom)
            return
        print(f"chain {opened.chain.chain_id} at {opened.chain.where}")
        print(f"contract {show_node_id(opened.contract)}")
        print(f"block {opened.seen.number}")
        for directory in Directory:
            admin = show_node_id(await opened.admin(directory))
            print(f"{directory.value.replace('_', ' ')}, listed by {admin}:")
            for contact in await opened.nodes(directory):
                print(f"  {show_node_id(contact.node)} {' '.join(contact.addresses)}")


async def _show_stream(opened: ContractRegistry, stream: StreamId, whom: list[NodeId]) -> None:
    from shoal.base.ids import show_node_id
    from shoal.cli.terminal.lines import printable
    from shoal.registry.port import EVERYBODY

    terms = await opened.stream(stream)
    print(printable(stream))
    if terms.metadata:
        print(f"metadata {printable(terms.metadata)}")
    print(f"partitions {terms.partitions}")
    print(f"degree {terms.degree or 'of the tracker'}")
    for name, nodes in (("tracker", terms.trackers), ("storage node", terms.storage_nodes)):
        for node in nodes:
            print(f"{name} {show_node_id(node)}")
    for who in (EVERYBODY, *whom):
        name = "everybody" if who == EVERYBODY else show_node_id(who)
        permissions = await opened.permissions(stream, who)
        print(f"{name} may {_said(permissions.expiries_s)}")


def _said(expiries_s: tuple[int, ...]) -> str:
    import time
    from datetime import UTC, datetime

    from shoal.kernel.access import Permission
    from shoal.registry.port import FOREVER

    said = []
    for kind, end_s in zip(Permission, expiries_s, strict=True):
        if end_s > time.time():
            assert kind.name is not None  # they all have one
            name = kind.name.lower()
            if end_s == FOREVER:
                said.append(name)
            else:
                until = datetime.fromtimestamp(end_s, UTC)
                said.append(f"{name} until {until.isoformat().replace('+00:00', 'Z')}")
    return ", ".join(said) or "do nothing"


async def _put(config: Path, role: Role, node: str, addresses: list[str]) -> None:
    from shoal.config.sections import PeerEntry

    contact = PeerEntry(node, tuple(addresses)).contact()
    async with opened_registry(config) as opened:
        await opened.put_node(_directory(role), contact)


async def _remove(config: Path, role: Role, node: str) -> None:
    from shoal.base.ids import parse_node_id

    parsed = parse_node_id(node)
    async with opened_registry(config) as opened:
        await opened.remove_node(_directory(role), parsed)


async def _hand_over(config: Path, role: Role, admin: str) -> None:
    from shoal.base.ids import parse_node_id

    parsed = parse_node_id(admin)
    async with opened_registry(config) as opened:
        await opened.hand_over(_directory(role), parsed)


def _directory(role: Role) -> Directory:
    from shoal.registry.port import Directory

    return Directory.TRACKERS if role is Role.tracker else Directory.STORAGE_NODES


def _section(network: NetworkFile) -> RegistrySection:
    from shoal.base.errors import ConfigError

    if network.registry is None:
        raise ConfigError(
            'registry: the network file names none: add [registry] with folder = "registry"'
        )
    return network.registry


async def _key(network: NetworkFile) -> PrivateKey | None:
    """A key that is new each time would own what nobody can ever change again."""
    from shoal.identity import SystemEntropy
    from shoal.node.keys.key_lock import key_of

    return None if network.node.key is None else await key_of(network, SystemEntropy())
