"""`shoal stream create|grant|revoke|delete`: streams and permissions in the registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.registry import opened_registry, stream_of
from shoal.cli.serve import Config, run_until_stopped

if TYPE_CHECKING:
    from shoal.base.ids import NodeId
    from shoal.registry.port import Permission

EVERYBODY_WORD = "everybody"

Id = Annotated[
    str, typer.Argument(metavar="ID", help="0xOWNER/path, or /path for a stream of this key.")
]
Kinds = Annotated[
    str,
    typer.Argument(
        metavar="KIND,...", help="Of edit, delete, publish, subscribe, grant; commas between."
    ),
]
Whom = Annotated[
    list[str], typer.Argument(metavar="0x...|everybody", help="Whose; any number up to 64.")
]


def create(
    path: Annotated[str, typer.Argument(metavar="/PATH", help="A stream of this key.")],
    config: Config = Path("shoal.toml"),
    metadata: Annotated[str, typer.Option(help="What it is about, by custom as JSON.")] = "",
    partitions: Annotated[int, typer.Option(min=1, max=100, help="How many.")] = 1,
    degree: Annotated[
        int | None,
        typer.Option(min=3, max=64, help="Neighbours per node.", show_default="the tracker's own"),
    ] = None,
    tracker: Annotated[
        list[str] | None,
        typer.Option(metavar="0x...", help="In order of preference; any number up to 16."),
    ] = None,
    storage: Annotated[
        list[str] | None, typer.Option(metavar="0x...", help="Who keeps it; up to 16.")
    ] = None,
) -> None:
    """Make a stream in the registry, and print its id. Until something is granted, it is yours
    alone.

    Example: shoal stream create /vehicles --partitions 4 --metadata '{"unit": "km/h"}'
    """
    run_until_stopped(
        _create(path, config, metadata, partitions, degree, tracker or [], storage or [])
    )


def grant(
    id: Id,
    kinds: Kinds,
    whom: Whom,
    config: Config = Path("shoal.toml"),
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="When it ends: milliseconds since 1970, or a date and time with its zone.",
            show_default="never",
        ),
    ] = None,
) -> None:
    """Allow somebody something. What they may do already stays as it is.

    Example: shoal stream grant /vehicles publish 0x7e5f4552091a69125d5dfcb7b8c2659029395bdf
    """
    from shoal.base.times import parse_time
    from shoal.registry.port import FOREVER

    ends_s = FOREVER if until is None else int(parse_time("--until", until).timestamp())
    run_until_stopped(_grant(id, kinds, whom, config, ends_s))


def revoke(id: Id, kinds: Kinds, whom: Whom, config: Config = Path("shoal.toml")) -> None:
    """Allow somebody something no longer.

    Example: shoal stream revoke /vehicles publish 0x7e5f4552091a69125d5dfcb7b8c2659029395bdf
    """
    run_until_stopped(_revoke(id, kinds, whom, config))


def delete(id: Id, config: Config = Path("shoal.toml")) -> None:
    """End a stream, and everything that anybody may do with it.

    Example: shoal stream delete /vehicles
    """
    run_until_stopped(_delete(id, config))


async def _create(
    path: str,
    config: Path,
    metadata: str,
    partitions: int,
    degree: int | None,
    trackers: list[str],
    storage: list[str],
) -> None:
    from shoal.base.errors import UsageError
    from shoal.base.ids import parse_node_id
    from shoal.registry.port import StreamTerms

    if not path.startswith("/"):
        raise UsageError(f"{path!r}: write /PATH: a stream is made by its owner, which is this key")
    nodes = [tuple(parse_node_id(text) for text in texts) for texts in (trackers, storage)]
    terms = StreamTerms(metadata, partitions, degree, *nodes)
    async with opened_registry(config) as opened:
        print(await opened.create(path, terms))


async def _grant(id: str, kinds: str, whom: list[str], config: Path, ends_s: int) -> None:
    parsed_kinds, parsed_whom = _kinds(kinds), [_somebody(text) for text in whom]
    async with opened_registry(config) as opened:
        await opened.grant(stream_of(id, opened), parsed_whom, parsed_kinds, ends_s)


async def _revoke(id: str, kinds: str, whom: list[str], config: Path) -> None:
    parsed_kinds, parsed_whom = _kinds(kinds), [_somebody(text) for text in whom]
    async with opened_registry(config) as opened:
        await opened.revoke(stream_of(id, opened), parsed_whom, parsed_kinds)


async def _delete(id: str, config: Path) -> None:
    async with opened_registry(config) as opened:
        await opened.delete(stream_of(id, opened))


def _kinds(text: str) -> Permission:
    from shoal.base.errors import UsageError
    from shoal.registry.port import Permission

    found = Permission(0)
    for word in text.split(","):
        kind = Permission.__members__.get(word.upper())
        if kind is None or word != word.lower():
            known = ", ".join(Permission.__members__).lower()
            raise UsageError(f"{word!r} is no permission: write one of {known}")
        found |= kind
    return found


def _somebody(text: str) -> NodeId:
    from shoal.base.ids import parse_node_id
    from shoal.registry.port import EVERYBODY

    return EVERYBODY if text == EVERYBODY_WORD else parse_node_id(text)
