"""`shoal search` and `shoal watch`: documents of the network, those that are there and those that
come."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.serve import run_until_stopped
from shoal.cli.waiting import waiting

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


def printable(text: str) -> str:
    """Whoever wrote it chose the text: it must not steer the terminal. JSON stays JSON."""
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
