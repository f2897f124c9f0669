"""`shoal storage`: look after the store of a storage node."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.terminal.progress import ProgressLine

if TYPE_CHECKING:
    from shoal.config.network_file import NetworkFile
    from shoal.storage.message_store.integrity import Checked
    from shoal.storage.message_store.store import Store

storage = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look after the store of a storage node.\n\nExample: shoal storage verify",
)

Config = Annotated[
    Path, typer.Option(metavar="FILE", help="The network file, whose [storage] names the store.")
]
Folder = Annotated[
    Path | None,
    typer.Argument(metavar="[FOLDER]", help="The store.", show_default="that of the network file"),
]
SHOAL_TOML = Path("shoal.toml")


Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]

LOOK_S = 0.5  # a look goes over all streams
STUCK_S = 90.0  # without a row: a peer that is away is dialled again every 5 to 10 s


@storage.command()
def verify(folder: Folder = None, config: Config = SHOAL_TOML, as_json: Json = False) -> None:
    """Read every row of a store, and check every signature. The node may run; if it does not, every
    page of the file is checked, too. Ends with 1 if anything is damaged.

    Example: shoal storage verify --json
    """
    from shoal.base.errors import UsageError
    from shoal.identity import SystemEntropy
    from shoal.storage.errors import StoreInUse
    from shoal.storage.lmdb_file import FolderLock, verify_pages
    from shoal.storage.message_store.integrity import check_store
    from shoal.storage.message_store.store import Store

    folder = _store_in(_folder(folder, config))
    try:
        lock = FolderLock(folder)
    except StoreInUse:
        pages = "not checked: a node is using the file"
    else:
        try:
            verify_pages(folder)
        finally:
            lock.release()
        pages = "all as they should be"
    try:
        with Store(folder, SystemEntropy(), readonly=True) as store:
            with ProgressLine(f"{folder}") as line:
                checked = check_store(store, line.update)
            log = store.log
    except PermissionError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}") from error
    _tell(folder, str(log), checked, pages, as_json)
    if not checked.is_whole:
        raise typer.Exit(1)


@storage.command()
def repair(config: Config = SHOAL_TOML, as_json: Json = False) -> None:
    """Put a store right: first what needs no other node, then rows are fetched from the stream's
    other storage nodes, which have copies of the log. Stop the node first; this runs it without its
    doors until every row is there. Ends with 1 if some could not be had.

    Example: shoal storage repair
    """
    import asyncio

    asyncio.run(_repair(config, as_json))


async def _repair(config: Path, as_json: bool) -> None:
    from shoal.node import Node
    from shoal.storage.message_store.integrity import check_store

    folder = _folder(None, config)
    with _open(folder) as store:
        changed = store.put_right()
        with ProgressLine(f"{folder}") as line:
            checked = check_store(store, line.update)
        log = store.log
    missing = [row for row in checked.bad if row.own and row.log == log]
    if changed:
        print(f"{changed:,} rows were put right without others", file=sys.stderr)
    if missing:
        async with Node.open(_without_doors(_network(config))) as node:
            assert node.storage is not None
            damage = node.storage.store.damage
            for row in missing:
                node.storage.store.unread(row.stream, row.partition, row.seq)
            await _until_no_more(lambda: len(damage), "for copies of damaged rows", STUCK_S)
        with _open(folder) as store, ProgressLine(f"{folder}") as line:
            checked = check_store(store, line.update)
    _tell(folder, str(log), checked, "all as they should be", as_json)
    if not checked.is_whole:
        raise typer.Exit(1)


@storage.command()
def drain(config: Config = SHOAL_TOML, as_json: Json = False) -> None:
    """Hand everything over, so that this storage node may go: the other storage nodes of its
    streams copy what it has. Stop the node first; this runs it without its doors, and it keeps
    nothing new. Ends with 0 only when each row has a copy elsewhere; with 1 it says what has none.

    Example: shoal storage drain
    """
    import asyncio

    asyncio.run(_drain(config, as_json))


async def _drain(config: Path, as_json: bool) -> None:
    import msgspec
    from msgspec.structs import replace

    from shoal.base.errors import UsageError
    from shoal.base.ids import show_node_id
    from shoal.node import Node
    from shoal.storage.message_store.integrity import check_store

    network, folder = _network(config), _folder(None, config)
    with _open(folder) as store, ProgressLine(f"{folder}") as line:
        checked = check_store(store, line.update)
        rows = sum(
            head.last + 1 - head.first
            for stream, partition in store.places()
            for log, head in store.heads(stream, partition).items()
            if log == store.log
        )
    if not checked.is_whole:
        raise UsageError(
            f"{folder} has {checked.damaged + checked.unnamed} damaged rows, of which others would"
            " get no copy: run `shoal storage repair` first"
        )
    assert network.storage is not None  # whose folder it was
    draining = replace(network, storage=replace(network.storage, drain=True))
    async with Node.open(_without_doors(draining)) as node:
        role = node.storage
        assert role is not None
        left = role.uncopied()

        def uncopied() -> int:
            left.clear()
            left.update(role.uncopied())
            return sum(left.values())

        await _until_no_more(uncopied, "for other storage nodes to copy", STUCK_S, LOOK_S)
        others = {
            stream: [contact for contact in role.peers_of(stream) if contact.node != node.id]
            for stream, _ in left
        }
        streams = len({stream for stream, _ in role.store.places()})
        name = show_node_id(node.id)
    if as_json:
        lacking = [{"stream": s, "partition": p, "rows": count} for (s, p), count in left.items()]
        said = {
            "rows": rows,
            "uncopied": sum(left.values()),
            "streams": streams,
            "lacking": lacking,
        }
        print(msgspec.json.encode(said).decode())
    for (stream, partition), count in left.items():
        reason = "the other storage nodes are away, refuse, or have let go of them"
        if not others[stream]:
            reason = "no other storage node is named for it: add one to `storage` of the stream"
        print(
            f"{stream}, partition {partition}: {count:,} rows have no copy: {reason}",
            file=sys.stderr,
        )
    if left:
        raise typer.Exit(1)
    print(
        f"{rows:,} rows of {streams:,} streams are at other storage nodes: take {name} out of"
        " `storage` and [[storage_nodes]] in the network files, and out of the registry, before its"
        " folder goes",
        file=sys.stderr,
    )


async def _until_no_more(
    left: Callable[[], int], what: str, patience_s: float, look_s: float = 0.1
) -> int:
    """Wait until nothing is left, or nothing has changed for a while; what is left then."""
    import asyncio

    from shoal.cli.terminal.progress import waiting

    async with waiting(what):
        before, since_s = left(), time.monotonic()
        while before and time.monotonic() - since_s < patience_s:
            await asyncio.sleep(look_s)
            if (now := left()) != before:
                before, since_s = now, time.monotonic()
    return before


def _without_doors(network: NetworkFile) -> NetworkFile:
    """The same node, with whom nobody speaks but other nodes."""
    from msgspec.structs import replace

    return replace(network, gateway=None, mqtt=None, outbox=None)


def _tell(folder: Path, log: str, checked: Checked, pages: str, as_json: bool) -> None:
    import msgspec

    if as_json:
        rows = [{**msgspec.to_builtins(row), "log": str(row.log)} for row in checked.bad]
        found = {
            "store": str(folder),
            "log": log,
            "pages": pages,
            "rows": checked.rows,
            "damaged": checked.damaged,
            "unnamed": checked.unnamed,
            "lost": checked.lost,
            "bad": rows,
        }
        print(msgspec.json.encode(found).decode())
        return
    for row in checked.bad:
        print(
            f"log {row.log}, {row.stream}, partition {row.partition}, row {row.seq}: {row.problem}"
        )
    if checked.unnamed:
        print(f"{checked.unnamed:,} messages that no row names")
    lost = f", {checked.lost:,} lost by the nodes whose they are" if checked.lost else ""
    print(f"pages: {pages}", file=sys.stderr)
    print(f"{checked.rows:,} rows, {checked.damaged:,} damaged{lost}", file=sys.stderr)
    if not checked.is_whole:
        print("stop the node and run `shoal storage repair`", file=sys.stderr)


@storage.command("new-log")
def new_log(
    folder: Folder = None,
    config: Config = SHOAL_TOML,
    keep_old: Annotated[
        bool,
        typer.Option(
            "--keep-old",
            help="No node has run on this copy: readers of the old log may go on where they are.",
        ),
    ] = False,
) -> None:
    """Go on under a new log id: for a store that was copied back by other means than `shoal
    restore`, and would give known places of its log to other rows. Stop the node first.

    Without --keep-old nothing is served under the old id but what other storage nodes have of it.
    Readers of the old log wait for that; if nobody has it, they are told so, and miss nothing.

    Example: shoal storage new-log store
    """
    with _open(_folder(folder, config)) as store:
        old = store.log
        new = store.new_log(time.time_ns(), keep_old=keep_old)
    kept = "can be read as far as it is here" if keep_old else "is not known here any more"
    print(f"the store goes on under log {new}; log {old} {kept}")


def _network(config: Path) -> NetworkFile:
    """The network file of a storage node; in the folder of `shoal up`, that of its node."""
    from shoal.base.errors import UsageError
    from shoal.cli.commands.up_folder import UpFolder
    from shoal.config.network_file import load_network_file

    network, up = load_network_file(config), UpFolder(Path()).file
    if network.storage is None and config == SHOAL_TOML and up.exists():
        network = load_network_file(up)
    if network.storage is None:
        raise UsageError(f"{config} has no [storage]: name the network file of a storage node")
    return network


def _folder(folder: Path | None, config: Path) -> Path:
    """A store that is named, or that of a network file."""
    if folder is not None:
        return folder
    network = _network(config)
    assert network.storage is not None  # or there was an error
    return network.path(network.storage.folder)


def _store_in(folder: Path) -> Path:
    """The folder, if there is a store in it; none is ever made here."""
    from shoal.base.errors import NotFound
    from shoal.storage.lmdb_file import data_file

    if not data_file(folder).exists():
        raise NotFound(f"there is no store in {folder}: name the folder of one")
    return folder


def _open(folder: Path) -> Store:
    """The store in a folder, of which this process is the owner; never a new one."""
    from shoal.base.errors import UsageError
    from shoal.identity import SystemEntropy
    from shoal.storage.errors import StoreInUse
    from shoal.storage.message_store.store import Store

    try:
        return Store(_store_in(folder), SystemEntropy())
    except StoreInUse as error:
        raise UsageError(f"{error}; stop the node first, and start it again afterwards") from None
