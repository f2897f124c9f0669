"""`shoal search` and `shoal watch`: documents of the network, those that are there and those that
come."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.terminal.lines import printable
from shoal.cli.terminal.process import run_until_stopped
from shoal.cli.terminal.progress import waiting

if TYPE_CHECKING:
    from shoal.node import FoundDocument, Gap, Node

Query = Annotated[
    str,
    typer.Argument(
        metavar="QUERY", help="As in: title:air pm25:<10 -test. See docs/search-queries.md."
    ),
]
Config = Annotated[Path, typer.Option(metavar="FILE", help="The network file; it needs [search].")]
Json = Annotated[bool, typer.Option("--json", help="Lines of JSON.")]


def search(
    query: Query,
    config: Config = Path("shoal.toml"),
    confidence: Annotated[
        float, typer.Option(help="How sure to be that all were found: 0 to 1.")
    ] = 0.99,
    limit: Annotated[
        int | None, typer.Option(min=1, help="So many documents at most.", show_default=False)
    ] = None,
    within: Annotated[float, typer.Option(metavar="SECONDS", help="No longer than this.")] = 10.0,
    as_json: Json = False,
) -> None:
    """Print documents that match, as they are found; to stderr, how many nodes were asked.

    Example: shoal search 'title:air pm25:<10' --limit 10
    """
    run_until_stopped(_search(query, config, confidence, limit, within, as_json))


def watch(
    query: Query,
    config: Config = Path("shoal.toml"),
    count: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many documents.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Print documents that match, as they are put from now on.

    Example: shoal watch 'vehicle.speed:>25' --json
    """
    run_until_stopped(_watch(query, config, count, as_json))


async def _search(
    query: str,
    config: Path,
    confidence: float,
    limit: int | None,
    within: float,
    as_json: bool,
) -> None:
    async with joined_node(config) as node:
        count = 0
        async with node.search(query, confidence=confidence, limit=limit, within=within) as found:
            async for hit in found:
                print(hit.as_json().decode() if as_json else shown(hit), flush=True)
                count += 1
        print(
            f"{count:,} document{'s' * (count != 1)}; {found.asked} nodes of about"
            f" {found.nodes:.0f} asked, confidence {found.confidence:.4f},"
            f" about {found.cost} messages",
            file=sys.stderr,
        )


async def _watch(query: str, config: Path, count: int | None, as_json: bool) -> None:
    async with joined_node(config) as node, node.watch(query) as events:
        print(f"watching for {query}", file=sys.stderr)
        seen = 0
        async for event in events:
            if event.gap_before is not None and not as_json:
                print(gap_line(event.gap_before), file=sys.stderr)
            print(event.as_json().decode() if as_json else shown(event), flush=True)
            seen += 1
            if seen == count:
                return


@asynccontextmanager
async def joined_node(config: Path) -> AsyncIterator[Node]:
    """A node of the search network; says so if it takes long to be taken in."""
    from shoal.node import Node

    async with Node.open(config) as node:
        async with waiting("to be taken into the search network"):
            await node.measure.size()
        yield node


def gap_line(gap: Gap) -> str:
    """What a watch may have missed, for people."""
    if gap.count is not None:
        return f"{gap.count} documents came too fast"
    return "documents may be missing here: nodes that had the query are gone"


def shown(found: FoundDocument) -> str:
    """One line for people."""
    import msgspec

    line = f"{found.address} {msgspec.json.encode(found.content).decode()}"
    return printable(line.replace("\n", "\\n"))


# `shoal doc`: put documents into the search network, get and delete them.


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

    from shoal.node.search.documents import split_address

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
