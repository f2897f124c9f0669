"""`shoal doc`: put documents into the search network, get and delete them."""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.search import Config, Json, joined_node, printable
from shoal.cli.serve import run_until_stopped

if TYPE_CHECKING:
    from shoal.node import Node

doc = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Documents that everybody finds: put, get, delete.\n\n"
    'Example: echo \'{"title": "Air quality, Kallio"}\' | shoal doc put kallio',
)


class Kind(StrEnum):
    """How long a document is kept, and by whom."""

    instant = "instant"
    fading = "fading"
    managed = "managed"
    durable = "durable"


Life = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="How long, as in 90s, 30m, 12h, 7d.",
        show_default=False,
    ),
]


@doc.command()
def put(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Of this key; one of the same name is replaced.")
    ],
    file: Annotated[
        str, typer.Argument(metavar="[FILE|-]", help="A JSON object; -: from stdin.")
    ] = "-",
    config: Config = Path("shoal.toml"),
    kind: Annotated[
        Kind,
        typer.Option(
            help="instant: for those who watch now; fading: until it expires; managed: as long as"
            " this command runs; durable: the network keeps it."
        ),
    ] = Kind.durable,
    life: Life = None,
    as_json: Json = False,
) -> None:
    """Put a document into the network, and print its address, 0xOWNER/NAME.

    Example: shoal doc put kallio air.json --life 7d
    """
    content = _read(file)
    seconds = None if life is None else _seconds(life)
    run_until_stopped(_put(name, content, config, kind, seconds, as_json))


@doc.command()
def get(
    address: Annotated[
        str, typer.Argument(metavar="NAME|0xOWNER/NAME", help="NAME alone: of this key.")
    ],
    config: Config = Path("shoal.toml"),
    within: Annotated[float, typer.Option(metavar="SECONDS", help="No longer than this.")] = 10.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="With owner, version and expiry.")
    ] = False,
) -> None:
    """Print the newest version of a document.

    Example: shoal doc get 0x7e5f4552091a69125d5dfcb7b8c2659029395bdf/kallio
    """
    run_until_stopped(_get(address, config, within, as_json))


@doc.command()
def delete(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of this key.")],
    config: Config = Path("shoal.toml"),
) -> None:
    """Have a document of this key not found any more, by anybody.

    Example: shoal doc delete kallio
    """
    run_until_stopped(_delete(name, config))


async def _put(
    name: str, content: dict[str, Any], config: Path, kind: Kind, life: float | None, as_json: bool
) -> None:
    import msgspec

    async with joined_node(config) as node:
        _warn_without_key(node)
        made = await node.put(content, kind=kind.value, name=name, life=life)
        line = {"address": made.address, "version": made.version, "nodes": made.nodes}
        print(msgspec.json.encode(line).decode() if as_json else made.address, flush=True)
        print(f"version {made.version}, on its way to {made.nodes} nodes", file=sys.stderr)
        if kind is Kind.managed:
            print("kept as long as this command runs: Ctrl-C ends it", file=sys.stderr)
            await asyncio.Event().wait()


async def _get(address: str, config: Path, within: float, as_json: bool) -> None:
    import msgspec

    from shoal.node.documents import split_address

    owner, name = split_address(address)
    async with joined_node(config) as node:
        found = await node.get(name, owner=owner, within=within)
        if as_json:
            print(found.as_json().decode(), flush=True)
        else:
            text = msgspec.json.format(msgspec.json.encode(found.content)).decode()
            print(printable(text), flush=True)


async def _delete(name: str, config: Path) -> None:
    async with joined_node(config) as node:
        made = await node.delete(name)
        print(f"{made.address} is deleted, as {made.nodes} nodes are told", file=sys.stderr)


def _read(file: str) -> dict[str, Any]:
    import msgspec

    from shoal.base.errors import NotFound, UsageError

    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except FileNotFoundError:
        raise NotFound(f"no file {file}: write one, or - for stdin") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}: name a file of JSON") from None
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        source = "stdin" if file == "-" else file
        raise UsageError(
            f'{source} is no JSON object ({error}): write one, as in {{"title": "Air"}}'
        ) from None


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _seconds(text: str) -> float:
    """12h, as seconds."""
    from shoal.base.errors import UsageError

    number, unit = text[:-1], text[-1:]
    try:
        value = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        raise UsageError(f"--life {text!r}: write a number and s, m, h or d, as in 12h") from None
    return value


def _warn_without_key(node: Node) -> None:
    if node.network.node.key is None:
        print(
            "this node has a new key with every start, so nobody can change or delete it later:"
            " name a keystore as key in [node]",
            file=sys.stderr,
        )
