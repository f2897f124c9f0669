"""`shoal stream`: publish from stdin, subscribe and resend to stdout; see stream_admin.py for what
goes to the registry."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.lines import stdin_lines
from shoal.cli.serve import Config, run_until_stopped
from shoal.cli.stream_admin import Id, create, delete, edit, grant, revoke
from shoal.cli.stream_overlay import estimate, topology
from shoal.cli.waiting import NowAndThen, waiting

if TYPE_CHECKING:
    from datetime import datetime

    from shoal.node import Message
    from shoal.node.history import Start

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
    from shoal.base.times import check_order, parse_time

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
    from shoal.base.times import parse_time
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

    from shoal.base.times import show_time

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
