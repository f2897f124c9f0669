"""`shoal key`: make and look at keystores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.gateway.api_keys import KeyFile
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
    from shoal.config.network_file import read_passphrase
    from shoal.identity import PrivateKey, SystemEntropy, create_keystore

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
    from shoal.config.network_file import read_passphrase
    from shoal.identity import open_keystore

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


# `shoal gateway key`: who may use a gateway.


gateway = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look after a gateway.\n\nExample: shoal gateway key new dashboard --scope read",
)
gateway_key = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="API keys: who may use a gateway.\n\nExample: shoal gateway key list",
)
gateway.add_typer(gateway_key, name="key")

Config = Annotated[
    Path, typer.Option(metavar="FILE", help="The network file, whose [gateway] names the keys.")
]
SHOAL_TOML = Path("shoal.toml")


@gateway_key.command("new")
def new_gateway_key(
    name: Annotated[str, typer.Argument(help="Who or what it is for.")],
    scope: Annotated[
        list[str],
        typer.Option(metavar="read|publish|lease|admin", help="What it may do; any number."),
    ],
    stream: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Streams, and CIDs of topics, that it is for; * is any text. All unless given.",
        ),
    ] = None,
    config: Config = SHOAL_TOML,
) -> None:
    """Make a key, and print it: it is shown only now.

    A gateway that runs takes it within a second.

    Example: shoal gateway key new dashboard --scope read --stream '0x7e5f*/city/*'
    """
    from typing import cast, get_args

    from shoal.base.errors import UsageError
    from shoal.gateway.api_keys import EVERYTHING
    from shoal.gateway.route_table import Scope
    from shoal.identity import SystemEntropy

    for one in scope:
        if one not in get_args(Scope):
            raise UsageError(f"--scope {one}: give one of {', '.join(get_args(Scope))}")
    scopes = [cast(Scope, one) for one in dict.fromkeys(scope)]
    print(_file(config).add(name, scopes, stream or [EVERYTHING], SystemEntropy()))


@gateway_key.command("list")
def list_keys(config: Config = SHOAL_TOML) -> None:
    """Show the keys that hold, never the keys themselves.

    Example: shoal gateway key list
    """
    for one in _file(config).read():
        scopes, streams = ",".join(one.scopes), " ".join(one.streams)
        print(f"{one.id}  {one.created:%Y-%m-%d}  {scopes}  {one.name}  {streams}")


@gateway_key.command()
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="As `shoal gateway key list` shows it.")],
    config: Config = SHOAL_TOML,
) -> None:
    """Have a key not hold any more.

    A gateway that runs refuses it within a second.

    Example: shoal gateway key revoke 1f2e3d4c
    """
    gone = _file(config).revoke(id)
    print(f"{gone.id} ({gone.name}) is revoked")


def _file(config: Path) -> KeyFile:
    from shoal.base.errors import ConfigError
    from shoal.config.network_file import load_network_file
    from shoal.gateway.api_keys import KeyFile

    network = load_network_file(config)
    if network.gateway is None or network.gateway.keys is None:
        raise ConfigError(
            f'{config} names no file of keys: write keys = "gateway.keys" under [gateway]'
        )
    return KeyFile(network.path(network.gateway.keys))
