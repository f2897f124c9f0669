"""`shoal stream create|edit|grant|revoke|delete`: streams and permissions in the registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.commands.registry import opened_registry, stream_of
from shoal.cli.terminal.process import Config, run_until_stopped

if TYPE_CHECKING:
    from shoal.base.ids import NodeId
    from shoal.identity import PublicKey
    from shoal.kernel.access import Permission

EVERYBODY_WORD = "everybody"
NONE_WORD = "none"
PEER_ID_FRONT = "16Uiu2HA"  # of every secp256k1 key

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
    list[str],
    typer.Argument(
        metavar="0x...|16Uiu2HA...|everybody",
        help="Whose, by address or peer id; any number up to 64.",
    ),
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
        list[str] | None,
        typer.Option(
            metavar="0x...", help="Who keeps it; up to 16.", show_default="the network file's"
        ),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Everybody may subscribe.")] = False,
) -> None:
    """Make a stream in the registry, and print its id. Until something is granted, it is yours
    alone.

    Example: shoal stream create /vehicles --partitions 4 --metadata '{"unit": "km/h"}'
    """
    run_until_stopped(
        _create(path, config, metadata, partitions, degree, tracker or [], storage or [], public)
    )


def edit(
    id: Id,
    config: Config = Path("shoal.toml"),
    metadata: Annotated[str | None, typer.Option(help="What it is about.")] = None,
    partitions: Annotated[int | None, typer.Option(min=1, max=100, help="How many.")] = None,
    degree: Annotated[
        int | None, typer.Option(min=0, max=64, help="Neighbours per node; 0: the tracker's own.")
    ] = None,
    tracker: Annotated[
        list[str] | None, typer.Option(metavar="0x...|none", help="All of them, in order.")
    ] = None,
    storage: Annotated[
        list[str] | None, typer.Option(metavar="0x...|none", help="All who keep it.")
    ] = None,
) -> None:
    """Change what was decided for a stream. What is not named stays as it is.

    Example: shoal stream edit /vehicles --partitions 8
    """
    changes: dict[str, object] = {}
    if metadata is not None:
        changes["metadata"] = metadata
    if partitions is not None:
        changes["partitions"] = partitions
    if degree is not None:
        changes["degree"] = degree or None
    for field, texts in (("trackers", tracker), ("storage_nodes", storage)):
        if texts is not None:
            changes[field] = _nodes(texts)
    run_until_stopped(_edit(id, config, changes))


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
    """Allow somebody something. What they may do already stays as it is. A peer id holds the public
    key: it is made known, so that publishers can wrap the keys of a stream that is not everybody's
    for a reader that they have never met.

    Example: shoal stream grant /vehicles publish 0x7e5f4552091a69125d5dfcb7b8c2659029395bdf
    """
    from shoal.base.units import parse_time
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
    public: bool,
) -> None:
    from shoal.base.errors import UsageError
    from shoal.base.ids import StreamId, parse_node_id
    from shoal.config.network_file import load_network_file
    from shoal.config.sections import ANY_STREAM
    from shoal.kernel.access import Permission
    from shoal.registry.port import EVERYBODY, StreamTerms

    if not path.startswith("/"):
        raise UsageError(f"{path!r}: write /PATH: a stream is made by its owner, which is this key")
    if not storage:
        storage = list(load_network_file(config).stream_settings(StreamId(ANY_STREAM)).storage)
    nodes = [tuple(parse_node_id(text) for text in texts) for texts in (trackers, storage)]
    terms = StreamTerms(metadata, partitions, degree, *nodes)
    async with opened_registry(config) as opened:
        stream = await opened.create(path, terms)
        if public:
            await opened.grant(stream, [EVERYBODY], Permission.SUBSCRIBE)
        print(stream)


async def _edit(id: str, config: Path, changes: dict[str, object]) -> None:
    from msgspec.structs import replace

    from shoal.base.errors import UsageError

    if not changes:
        raise UsageError("nothing to change: name what is to be different, as --partitions 8")
    async with opened_registry(config) as opened:
        stream = stream_of(id, opened)
        await opened.edit(stream, replace(await opened.stream(stream), **changes))


async def _grant(id: str, kinds: str, whom: list[str], config: Path, ends_s: int) -> None:
    from shoal.registry.contract_registry import put_public_key

    parsed_kinds, parsed_whom = _kinds(kinds), [_somebody(text) for text in whom]
    async with opened_registry(config) as opened:
        for key in filter(None, map(_public_key, whom)):
            await put_public_key(opened, key)
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
    from shoal.kernel.access import Permission

    found = Permission(0)
    for word in text.split(","):
        kind = Permission.__members__.get(word.upper())
        if kind is None or word != word.lower():
            known = ", ".join(Permission.__members__).lower()
            raise UsageError(f"{word!r} is no permission: write one of {known}")
        found |= kind
    return found


def _nodes(texts: list[str]) -> tuple[NodeId, ...]:
    from shoal.base.ids import parse_node_id

    return () if texts == [NONE_WORD] else tuple(parse_node_id(text) for text in texts)


def _somebody(text: str) -> NodeId:
    from shoal.base.ids import parse_node_id
    from shoal.registry.port import EVERYBODY

    if text == EVERYBODY_WORD:
        return EVERYBODY
    key = _public_key(text)
    return parse_node_id(text) if key is None else key.address


def _public_key(text: str) -> PublicKey | None:
    """The key inside a peer id; None if it is none."""
    from shoal.identity import PublicKey, parse_peer_id

    return PublicKey.from_peer_id(parse_peer_id(text)) if text.startswith(PEER_ID_FRONT) else None
