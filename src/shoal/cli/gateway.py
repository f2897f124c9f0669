"""`shoal gateway key`: who may use a gateway."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.gateway.keys import KeyFile

gateway = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look after a gateway.\n\nExample: shoal gateway key new dashboard --scope read",
)
key = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="API keys: who may use a gateway.\n\nExample: shoal gateway key list",
)
gateway.add_typer(key, name="key")

Config = Annotated[
    Path, typer.Option(metavar="FILE", help="The network file, whose [gateway] names the keys.")
]
SHOAL_TOML = Path("shoal.toml")


@key.command()
def new(
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
    from shoal.gateway.keys import EVERYTHING
    from shoal.gateway.routes import Scope
    from shoal.identity import SystemEntropy

    for one in scope:
        if one not in get_args(Scope):
            raise UsageError(f"--scope {one}: give one of {', '.join(get_args(Scope))}")
    scopes = [cast(Scope, one) for one in dict.fromkeys(scope)]
    print(_file(config).add(name, scopes, stream or [EVERYTHING], SystemEntropy()))


@key.command("list")
def list_keys(config: Config = SHOAL_TOML) -> None:
    """Show the keys that hold, never the keys themselves.

    Example: shoal gateway key list
    """
    for one in _file(config).read():
        scopes, streams = ",".join(one.scopes), " ".join(one.streams)
        print(f"{one.id}  {one.created:%Y-%m-%d}  {scopes}  {one.name}  {streams}")


@key.command()
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
    from shoal.gateway.keys import KeyFile
    from shoal.node.network_file import load_network_file

    network = load_network_file(config)
    if network.gateway is None or network.gateway.keys is None:
        raise ConfigError(
            f'{config} names no file of keys: write keys = "gateway.keys" under [gateway]'
        )
    return KeyFile(network.path(network.gateway.keys))
