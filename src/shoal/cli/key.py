"""`shoal key`: make and look at keystores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.identity import PrivateKey

key = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make and look at keys.\n\nExample: shoal key new node.key",
)

Passphrase = Annotated[
    str | None,
    typer.Option(
        metavar="env:NAME|file:PATH",
        help="Where the passphrase is; asked for on the terminal otherwise.",
    ),
]

Json = Annotated[bool, typer.Option("--json", help="One line of JSON.")]


@key.command()
def new(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The keystore to write.")],
    passphrase: Passphrase = None,
    as_json: Json = False,
) -> None:
    """Make a key and keep it in a keystore that only you can read.

    Example: shoal key new node.key
    """
    from shoal.identity import PrivateKey, SystemEntropy, create_keystore
    from shoal.node.network_file import read_passphrase

    secret = _ask(confirm=True) if passphrase is None else read_passphrase(passphrase, Path())
    private = PrivateKey.generate(SystemEntropy())
    create_keystore(path, private, secret, SystemEntropy())
    _show(private, as_json)


@key.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A keystore.")],
    passphrase: Passphrase = None,
    as_json: Json = False,
) -> None:
    """Open a keystore and show whose key is in it; never the key itself.

    Example: shoal key show node.key
    """
    from shoal.identity import open_keystore
    from shoal.node.network_file import read_passphrase

    secret = _ask(confirm=False) if passphrase is None else read_passphrase(passphrase, Path())
    _show(open_keystore(path, secret), as_json)


def _show(key: PrivateKey, as_json: bool) -> None:
    from shoal.base.ids import show_node_id
    from shoal.identity import show_peer_id

    address, peer_id = show_node_id(key.address), show_peer_id(key.public.peer_id)
    if as_json:
        print(json.dumps({"address": address, "peer_id": peer_id}))
    else:
        print(f"address {address}")
        print(f"peer id {peer_id}")


def _ask(*, confirm: bool) -> str:
    answer: str = typer.prompt("passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
    return answer
