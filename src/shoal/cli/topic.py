"""`shoal topic`: durable topics from the command line; and what their bytes say."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.lines import stdin_lines
from shoal.cli.serve import run_until_stopped
from shoal.cli.topic_decode import decode
from shoal.cli.waiting import NowAndThen, waiting

if TYPE_CHECKING:
    from shoal.node import Event, PublishedEvent

UNDER_WAY_MAX = 64  # events that nobody else may keep yet

topic = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Durable topics: create, publish, subscribe, read; and look inside their bytes.\n\n"
    "Example: shoal topic create news --config shoal.toml",
)
topic.command()(decode)

Cid = Annotated[str, typer.Argument(metavar="CID", help="The topic, zdpu...")]
Config = Annotated[Path, typer.Option(metavar="FILE", help="The network file; it needs [dht].")]
Json = Annotated[bool, typer.Option("--json", help="Lines of JSON.")]
Replicas = Annotated[
    int, typer.Option(min=0, max=20, help="Wait until so many other nodes keep it; 0: do not wait.")
]


@topic.command()
def create(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="For people; any number may have it.")
    ],
    config: Config = Path("shoal.toml"),
    anyone: Annotated[
        bool, typer.Option("--anyone", help="Anyone may publish; otherwise only this key.")
    ] = False,
    publisher: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PEER", help="Who may publish, by peer id; may be given more than once."
        ),
    ] = None,
    no_requests: Annotated[
        bool, typer.Option("--no-requests", help="Others cannot ask to have something published.")
    ] = False,
    custom: Annotated[
        bool, typer.Option("--custom", help="Publishers choose which event theirs follows.")
    ] = False,
    public: Annotated[
        bool, typer.Option("--public", help="Search finds it by its name; otherwise only its CID.")
    ] = False,
    replicas: Replicas = 1,
    as_json: Json = False,
) -> None:
    """Make a topic of this key, and print its CID, by which everybody finds it.

    Example: shoal topic create news --anyone
    """
    from shoal.base.errors import UsageError

    if anyone and publisher:
        raise UsageError("--anyone and --publisher: give one or the other")
    peers = publisher or None
    made = _create(name, config, anyone, peers, no_requests, custom, public, replicas, as_json)
    run_until_stopped(made)


@topic.command()
def publish(
    cid: Cid,
    config: Config = Path("shoal.toml"),
    replicas: Replicas = 1,
    as_json: Json = False,
) -> None:
    """Publish each line of stdin as one event, and print its CID.

    Example: echo hello | shoal topic publish zdpuAmyVF5ZGPQ1MnvCA1BxrDH9J65AsSXLHWZKeNCC5yxyv7
    """
    run_until_stopped(_publish(cid, config, replicas, as_json))


@topic.command()
def subscribe(
    cid: Cid,
    config: Config = Path("shoal.toml"),
    start: Annotated[
        str,
        typer.Option(
            metavar="latest|earliest|EVENT", help="Where to begin: after this event, by its CID."
        ),
    ] = "latest",
    follow: Annotated[
        bool, typer.Option("--follow", help="Events of new versions of the topic as well.")
    ] = False,
    count: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many events.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Print events as they come, each after the one that it follows.

    Example: shoal topic subscribe zdpuAmyVF5ZGPQ1MnvCA1BxrDH9J65AsSXLHWZKeNCC5yxyv7 --json
    """
    run_until_stopped(_subscribe(cid, config, start, follow, count, as_json))


@topic.command()
def read(
    cid: Cid,
    config: Config = Path("shoal.toml"),
    end: Annotated[
        str | None,
        typer.Option(metavar="EVENT", help="Begin at this one, by its CID.", show_default=False),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="So many events at most.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the past of a topic along the links of its events: the newest first.

    Example: shoal topic read zdpuAmyVF5ZGPQ1MnvCA1BxrDH9J65AsSXLHWZKeNCC5yxyv7 --limit 100
    """
    run_until_stopped(_read(cid, config, end, limit, as_json))


async def _create(
    name: str,
    config: Path,
    anyone: bool,
    publishers: list[str] | None,
    no_requests: bool,
    custom: bool,
    public: bool,
    replicas: int,
    as_json: bool,
) -> None:
    import msgspec

    from shoal.node import ANYONE, CUSTOM, LAST_SEEN, NOBODY, Node

    async with Node.open(config) as node:
        made = await node.create_topic(
            name,
            publishers=ANYONE if anyone else publishers,
            requests=NOBODY if no_requests else ANYONE,
            linking=CUSTOM if custom else LAST_SEEN,
            public=public,
        )
        line = {"cid": made.cid, "name": made.name, "author": made.author}
        print(msgspec.json.encode(line).decode() if as_json else made.cid, flush=True)
        if replicas:
            await made.stored(replicas)
        if public:
            await made.announce()  # it may take longer than the rest, and ends with this process


async def _publish(cid: str, config: Path, replicas: int, as_json: bool) -> None:
    from shoal.node import Node

    async with Node.open(config) as node:
        async with waiting("for somebody who knows the topic"):
            opened = await node.topic(cid)
        print(f"publishing to {opened.cid} ({opened.name})", file=sys.stderr)
        under_way: deque[PublishedEvent] = deque()
        async for line in stdin_lines():
            event = await opened.publish(line)
            print(event.as_json().decode() if as_json else event.cid, flush=True)
            if replicas:
                under_way.append(event)
            if len(under_way) > UNDER_WAY_MAX:
                await under_way.popleft().stored(replicas)
        for event in under_way:
            await event.stored(replicas)


async def _subscribe(
    cid: str, config: Path, start: str, follow: bool, count: int | None, as_json: bool
) -> None:
    from shoal.node import Node

    async with Node.open(config) as node:
        async with waiting("for somebody who knows the topic"):
            opened = await node.topic(cid)
        async with opened.subscribe(start, follow=follow) as events:
            print(f"subscribed to {opened.cid} ({opened.name})", file=sys.stderr)
            seen = 0
            async for event in events:
                print(event.as_json().decode() if as_json else _shown(event), flush=True)
                seen += 1
                if seen == count:
                    return


async def _read(cid: str, config: Path, end: str | None, limit: int | None, as_json: bool) -> None:
    from shoal.node import Node

    async with Node.open(config) as node:
        async with waiting("for somebody who knows the topic"):
            opened = await node.topic(cid)
        count, progress = 0, NowAndThen()
        async for event in opened.read(end, limit=limit):
            print(event.as_json().decode() if as_json else _shown(event))
            count += 1
            if progress.due:
                print(f"{count:,} events, at {event.created:%F %T}", file=sys.stderr)
        sys.stdout.flush()
        print(f"{count:,} events of {opened.cid}", file=sys.stderr)


def _shown(event: Event) -> str:
    """One line for people. Whoever wrote it chose the text: it must not steer the terminal."""
    from shoal.base.times import show_time

    text = event.payload.decode(errors="backslashreplace")
    return f"{show_time(event.created)} {event.cid} {text if text.isprintable() else ascii(text)}"
