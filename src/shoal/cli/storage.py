"""`shoal storage`: look after the store of a storage node."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.storage.store import Store

storage = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look after the store of a storage node.\n\nExample: shoal storage new-log store",
)

Config = Annotated[
    Path, typer.Option(metavar="FILE", help="The network file, whose [storage] names the store.")
]
Folder = Annotated[
    Path | None,
    typer.Argument(metavar="[FOLDER]", help="The store.", show_default="that of the network file"),
]
SHOAL_TOML = Path("shoal.toml")


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


def _folder(folder: Path | None, config: Path) -> Path:
    from shoal.base.errors import UsageError
    from shoal.node.network_file import load_network_file

    if folder is None:
        network = load_network_file(config)
        if network.storage is None:
            raise UsageError(f"{config} has no [storage]: name the folder of a store")
        folder = network.path(network.storage.folder)
    return folder


def _open(folder: Path) -> Store:
    """The store in a folder, of which this process is the owner; never a new one."""
    from shoal.base.errors import NotFound, UsageError
    from shoal.identity import SystemEntropy
    from shoal.storage.errors import StoreInUse
    from shoal.storage.folder import data_file
    from shoal.storage.store import Store

    if not data_file(folder).exists():
        raise NotFound(f"there is no store in {folder}: name the folder of one")
    try:
        return Store(folder, SystemEntropy())
    except StoreInUse as error:
        raise UsageError(f"{error}; stop the node first, and start it again afterwards") from None
