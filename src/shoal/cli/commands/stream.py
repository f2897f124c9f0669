"""`shoal stream`: publish from stdin, subscribe and resend to stdout; see stream_admin.py for what
goes to the registry."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.error
import urllib.request
from contextlib import AsyncExitStack, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.commands.stream_admin import Id, create, delete, edit, grant, revoke
from shoal.cli.terminal.lines import stdin_lines
from shoal.cli.terminal.process import API_KEY, Config, run_until_stopped
from shoal.cli.terminal.progress import NowAndThen, waiting

if TYPE_CHECKING:
    from datetime import datetime

    from shoal.base.ids import StreamId
    from shoal.config.network_file import NetworkFile
    from shoal.node import Message
    from shoal.node.streams.history import Start

# `shoal stream topology|estimate`: what the tracker of a stream knows of its overlay. Trackers
# tell it over their gateways, whose addresses the network file has.


ANSWER_S = 30.0  # all pairs of 2,000 nodes take a second, one after the other

Gateway = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help=f"The gateway of the stream's tracker; an API key for it is taken from ${API_KEY}.",
        show_default="as [[trackers]] says",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One line of JSON.")]


def topology(
    id: Id, config: Config = Path("shoal.toml"), gateway: Gateway = None, as_json: Json = False
) -> None:
    """Print the overlay of a stream: a line for each link, with its round trip, and to stderr how
    many nodes there are.

    Example: shoal stream topology /vehicles
    """
    found = _ask(id, config, gateway, "topology")
    if as_json:
        print(json.dumps(found))
        return
    for link in found["links"]:
        rtt_us = link["rtt_us"]
        measured = "not measured yet" if rtt_us is None else f"{rtt_us / 1000:.1f} ms"
        print(f"{link['a']} {link['b']} {measured}")
    members, links = len(found["members"]), len(found["links"])
    typer.echo(f"{members} nodes, {links} links, degree {found['degree']}", err=True)


def estimate(
    id: Id, config: Config = Path("shoal.toml"), gateway: Gateway = None, as_json: Json = False
) -> None:
    """Print how long a message will take from any node of a stream to any other, as its links were
    measured.

    Example: shoal stream estimate /vehicles --json
    """
    found = _ask(id, config, gateway, "estimate")
    if as_json:
        print(json.dumps(found))
        return
    if found["mean_ms"] is None:
        print(f"nothing is measured yet: {found['nodes']} nodes, {found['links']} links")
        return
    low, mean, high = (found[name] for name in ("min_ms", "mean_ms", "max_ms"))
    print(f"mean {mean:.1f} ms, from {low:.1f} to {high:.1f} ms between two nodes")
    measured = f"{found['measured_links']} of {found['links']} links measured"
    typer.echo(f"{found['nodes']} nodes, {measured}", err=True)


def _ask(id: str, config: Path, gateway: str | None, what: str) -> Any:
    from shoal.base.errors import NotFound, ShoalError
    from shoal.config.network_file import load_network_file

    network = load_network_file(config)
    stream = _whole(id, network)
    problems = []
    for url in [gateway] if gateway is not None else _gateways(network, stream):
        request = urllib.request.Request(f"{url.rstrip('/')}/streams/{stream}/{what}")
        if API_KEY in os.environ:
            request.add_header("Authorization", f"Bearer {os.environ[API_KEY]}")
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise ShoalError(f"{url}: {_said(error)}") from error
            problems.append(_said(error))
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            problems.append(f"{url} does not answer ({reason}): is it running?")
    raise NotFound(problems[0])


def _gateways(network: NetworkFile, stream: StreamId) -> list[str]:
    """Those of the trackers, in the order in which nodes go to them."""
    from shoal.base.errors import ConfigError
    from shoal.protocols.streams.member.tracker_selection import TrackerRing

    contacts = tuple(entry.contact() for entry in network.trackers)
    known = {entry.contact().node: entry.gateway for entry in network.trackers}
    ring = TrackerRing(contacts, network.pinned_trackers).order(stream) if contacts else ()
    found = [known[contact.node] for contact in ring]
    named = [url for url in found if url is not None]
    if not named:
        raise ConfigError(
            "trackers.gateway: the network file names none: add it to [[trackers]], as in gateway ="
            ' "http://127.0.0.1:7780", or give --gateway'
        )
    return named


def _whole(id: str, network: NetworkFile) -> StreamId:
    """A stream as people write it: /path is of the own key."""
    from shoal.base.errors import UsageError
    from shoal.base.ids import parse_stream_id, show_node_id
    from shoal.identity import SystemEntropy
    from shoal.node.keys.key_lock import key_of

    if id.startswith("/"):
        if network.node.key is None:
            raise UsageError(
                f"stream {id!r}: whose? write 0xOWNER{id}, or name a key under [node] of the"
                " network file"
            )
        key = asyncio.run(key_of(network, SystemEntropy()))
        id = show_node_id(key.address) + id
    return parse_stream_id(id)


def _said(error: urllib.error.HTTPError) -> str:
    """What a gateway says is wrong, or else the status."""
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"


FOR_TRACKER = "for the tracker to let us in"
DIGITS_MAX = 19  # of what any number here can be

stream = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Publish and subscribe; say who may.\n\n"
    "Example: echo hello | shoal stream publish /greetings",
)
for command in (create, edit, grant, revoke, delete, topology, estimate):
    stream.command()(command)


@stream.command()
def publish(
    id: Id,
    config: Config = Path("shoal.toml"),
    text: Annotated[
        bool, typer.Option("--text", help="Lines are text, even if they look like JSON.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(help="All lines go to the partition of this key.", show_default=False),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(help="All lines go to this partition.", show_default=False)
    ] = None,
    durable: Annotated[
        bool, typer.Option("--durable", help="Wait until a storage node has each line on disk.")
    ] = False,
) -> None:
    """Publish each line of stdin as one message: JSON if it is, text otherwise.

    Example: echo '{"speed": 8.3}' | shoal stream publish /vehicles
    """
    run_until_stopped(_publish(id, config, text, key, partition, durable))


@stream.command()
def subscribe(
    id: Id,
    config: Config = Path("shoal.toml"),
    count: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many messages.", show_default=False)
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(help="Only this partition; may be given more than once.", show_default=False),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            metavar="latest|earliest|last:N|TIME|OFFSET",
            help="History to print first, if storage nodes keep the stream.",
        ),
    ] = "latest",
    offsets: Annotated[
        bool, typer.Option("--offsets", help="Print each message's offset, to --start after it.")
    ] = False,
    unordered: Annotated[
        bool, typer.Option("--unordered", help="As messages come: none waits for one before it.")
    ] = False,
) -> None:
    """Print each message as one line of JSON: id, publisher, timestamp, content.

    Example: shoal stream subscribe 0x7e5f4552091a69125d5dfcb7b8c2659029395bdf/vehicles --count 10
    """
    from shoal.base.errors import UsageError

    if unordered and (start != "latest" or offsets):
        raise UsageError("--unordered is of live messages: give it without --start and --offsets")
    ordered = not unordered
    run_until_stopped(_subscribe(id, config, count, partition or None, start, offsets, ordered))


@stream.command()
def resend(
    id: Id,
    config: Config = Path("shoal.toml"),
    last: Annotated[
        int | None, typer.Option(min=1, help="The newest so many.", show_default=False)
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="From here on, included.", show_default=False),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="TIME", help="Up to here, included.", show_default=False),
    ] = None,
    publisher: Annotated[
        str | None, typer.Option(metavar="0x...", help="Only of this one.", show_default=False)
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(help="Only this partition; may be given more than once.", show_default=False),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Lines of JSON, as subscribe prints them.")
    ] = False,
) -> None:
    """Print what storage nodes keep of a stream, oldest first: time, publisher, content.

    Ends with exit code 1 if a storage node that does not answer may have more, and names it.

    TIME is milliseconds since 1970, or a date and time with its zone.

    Example: shoal stream resend /vehicles --from 2026-01-31T12:00:00Z --to 2026-01-31T13:00:00Z
    """
    from shoal.base.errors import UsageError
    from shoal.base.units import check_order, parse_time

    if last is not None and (begin is not None or end is not None):
        raise UsageError("--last and --from or --to: give one or the other")
    from_ = None if begin is None else parse_time("--from", begin)
    to = None if end is None else parse_time("--to", end)
    check_order("--from", from_, "--to", to)
    run_until_stopped(_resend(id, config, last, from_, to, publisher, partition or None, as_json))


async def _publish(
    id: str, config: Path, text: bool, key: str | None, partition: int | None, durable: bool
) -> None:
    from shoal.node import Node

    async with Node.open(config) as node:
        opened = await node.open_stream(id)
        if key is not None or partition is not None:
            node.partitions.choose(opened.id, key, partition)  # what is wrong is told at once
        print(f"publishing to {opened.id}", file=sys.stderr)
        joined = False
        async for line in stdin_lines():
            content = _content(line, text)
            async with nullcontext() if joined else waiting(FOR_TRACKER):
                await opened.publish(content, key=key, partition=partition, durable=durable)
            joined = True


async def _subscribe(
    id: str,
    config: Path,
    count: int | None,
    partitions: list[int] | None,
    start: str,
    offsets: bool,
    ordered: bool,
) -> None:
    from shoal.node import Node

    async with Node.open(config) as node:
        opened = await node.open_stream(id)
        async with AsyncExitStack() as stack:
            async with waiting(FOR_TRACKER):
                messages = await stack.enter_async_context(
                    opened.subscribe(_start(start), partitions=partitions, ordered=ordered)
                )
            print(f"subscribed to {opened.id}", file=sys.stderr)
            seen, told = 0, False
            async for message in messages:
                if messages.problem is not None and not told:
                    told = True
                    print(messages.problem, file=sys.stderr)
                print(message.as_json(offset=offsets).decode(), flush=True)
                seen += 1
                if seen == count:
                    return


def _start(text: str) -> Start:
    """Where a subscription begins, as the command line says it."""
    from shoal.base.errors import UsageError
    from shoal.base.units import parse_time
    from shoal.node import Last

    if text in ("latest", "earliest") or text.startswith("{"):
        return text
    kind, _, count = text.partition(":")
    if kind == "last":
        digits = count.isascii() and count.isdecimal() and len(count) <= DIGITS_MAX
        if not digits or not int(count):
            raise UsageError(f"--start {text[:30]!r}: write last:100")
        return Last(int(count))
    try:
        return parse_time("--start", text)
    except UsageError as error:
        raise UsageError(f"{error}; or latest, earliest, last:100, an offset") from None


async def _resend(
    id: str,
    config: Path,
    last: int | None,
    begin: datetime | None,
    end: datetime | None,
    publisher: str | None,
    partitions: list[int] | None,
    as_json: bool,
) -> None:
    from shoal.node import Last, Node

    async with Node.open(config) as node:
        opened = await node.open_stream(id)
        start = Last(last) if last is not None else begin or "earliest"
        count, gaps, progress = 0, 0, NowAndThen()
        read = opened.read(start, end, publisher=publisher, partitions=partitions)
        async for message in read:
            if message.gap_before is not None:
                gaps += 1
                if not as_json:  # there it is in the line
                    sys.stdout.flush()
                    print(f"messages of {message.publisher[:10]} are missing here", file=sys.stderr)
            print(message.as_json().decode() if as_json else _shown(message))
            count += 1
            if progress.due:
                print(f"message {count:,}, at {message.timestamp:%F %T}", file=sys.stderr)
        sys.stdout.flush()
        holes = f", with {gaps:,} gap{'s' * (gaps != 1)}" if gaps else ""
        print(f"{count:,} message{'s' * (count != 1)} of {opened.id}{holes}", file=sys.stderr)
        read.raise_if_incomplete()


def _shown(message: Message) -> str:
    """One line for people."""
    import msgspec

    from shoal.base.units import show_time

    content = message.content
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    when = show_time(message.timestamp)
    if message.undecryptable is not None:
        text = f"(encrypted, and cannot be opened here: {message.undecryptable})"
    return f"{when} {message.publisher[:10]} {text}"


def _content(line: bytes, text: bool) -> Any:
    """JSON if it is, else text, else bytes."""
    import msgspec

    if not text:
        with suppress(msgspec.DecodeError, RecursionError):
            return msgspec.json.decode(line)
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line
