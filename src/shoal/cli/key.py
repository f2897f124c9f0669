"""`shoal key`: make and look at keystores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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


@key.command()
def new(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The keystore to write.")],
    passphrase: Passphrase = None,
) -> None:
    """Make a key and keep it in a keystore that only you can read.

    Example: shoal key new node.key
    """
    from shoal.identity import PrivateKey, SystemEntropy, create_keystore, show_peer_id
    from shoal.node.network_file import read_passphrase

    secret = _ask(confirm=True) if passphrase is None else read_passphrase(passphrase, Path())
    private = PrivateKey.generate(SystemEntropy())
    create_keystore(path, private, secret, SystemEntropy())
    print(f"address 0x{private.address.hex()}")
    print(f"peer id {show_peer_id(private.public.peer_id)}")


@key.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A keystore.")],
    passphrase: Passphrase = None,
) -> None:
    """Open a keystore and show whose key is in it; never the key itself.

    Example: shoal key show node.key
    """
    from shoal.identity import open_keystore, show_peer_id
    from shoal.node.network_file import read_passphrase

    secret = _ask(confirm=False) if passphrase is None else read_passphrase(passphrase, Path())
    private = open_keystore(path, secret)
    print(f"address 0x{private.address.hex()}")
    print(f"peer id {show_peer_id(private.public.peer_id)}")


def _ask(*, confirm: bool) -> str:
    answer: str = typer.prompt("passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
    return answer
