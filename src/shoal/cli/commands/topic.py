"""`shoal topic`: durable topics from the command line; and what their bytes say."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.terminal.lines import stdin_lines
from shoal.cli.terminal.process import run_until_stopped
from shoal.cli.terminal.progress import NowAndThen, waiting

if TYPE_CHECKING:
    from shoal.base.ids import Contact
    from shoal.identity.topics.cid import Cid as ContentId
    from shoal.identity.topics.descriptors import (
        Descriptor,
        EventDescriptor,
        PeerList,
        Signatures,
        TopicDescriptor,
    )
    from shoal.node import Event, PublishedEvent
    from shoal.protocols.topics.messages import Message

# `shoal topic decode`: look inside the bytes of topics, events and messages that carry them.


SHOWN_CHARS = 40  # of wrong input, in an error

Fields = dict[str, Any]


def decode(
    hex: Annotated[
        str, typer.Argument(metavar="HEX", help="The bytes in hex digits; - reads them from stdin.")
    ],
    rpc: Annotated[
        bool,
        typer.Option(
            "--rpc", help="The bytes are a wire message, with its length in front or without."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One object: kind, cid, fields, canonical_hex.")
    ] = False,
) -> None:
    """Show what bytes are: kind, CID, fields, signatures, and the canonical encoding.

    Example: shoal topic decode --rpc --json - < message.hex
    """
    import msgspec

    raw = _bytes(sys.stdin.buffer.read().decode("latin-1") if hex == "-" else hex)
    found = _rpc(raw) if rpc else _block(raw)
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        print("\n".join(_lines(found)))


def _bytes(text: str) -> bytes:
    from shoal.base.errors import UsageError

    digits = "".join(text.split()).removeprefix("0x").removeprefix("0X")
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        odd = ", and an even number of them" if len(digits) % 2 else ""
        raise UsageError(f"{_short(digits)} is not hex: write digits 0 to 9, a to f{odd}") from None
    if not raw:
        raise UsageError("no bytes: write them in hex, or - and give them on stdin")
    return raw


def _block(raw: bytes) -> Fields:
    from shoal.base.errors import RemoteError, UsageError
    from shoal.identity.topics.descriptor_codec import decode_descriptor

    try:
        return _described(decode_descriptor(raw))
    except RemoteError as error:
        raise UsageError(
            f"{_short(raw.hex())} is no canonical topic or event: {error};"
            " a wire message needs --rpc"
        ) from None


def _rpc(raw: bytes) -> Fields:
    from shoal.base.errors import RemoteError, UsageError
    from shoal.protocols.topics.wire import decode_rpc, encode_rpc, strip_length

    # An RPC begins with 0a, the tag of its messages; as a length that would be ten bytes, and no
    # message is that short: the first byte tells.
    try:
        messages = decode_rpc(raw if raw[0] == 0x0A else strip_length(raw))
    except RemoteError as error:
        raise UsageError(
            f"{_short(raw.hex())} is no wire message: {error}; a topic or event alone goes"
            " without --rpc"
        ) from None
    shown = [_message(message) for message in messages]
    carried = [message["cid"] for message in shown if "cid" in message]
    return {
        "kind": "rpc",
        "cid": carried[0] if len(carried) == 1 else None,
        "fields": {"msgs": shown},
        "canonical_hex": encode_rpc(messages).hex(),
    }


def _message(message: Message) -> Fields:
    """One message: its op, its metadata, and what it carries."""
    from shoal.identity.topics.cid import show_cid
    from shoal.protocols.topics import messages
    from shoal.protocols.topics.wire import OPS

    stamp = message.stamp
    shown: Fields = {
        "op": OPS[type(message)].name,
        "metadata": _metadata(stamp.created_ms, stamp.protocol_version, None),
    }
    match message:
        case messages.NewTopic(carried) | messages.PublishEvent(carried):
            return shown | _described(carried)
        case messages.RequestToPublish(carried):
            return shown | _described(carried) | {"parent": _link(message.parent)}
    shown["topicId"] = show_cid(message.topic)
    match message:
        case messages.JoinTopic():
            return shown | {"addresses": list(message.addresses)}
        case messages.LeaveTopic():
            return shown
        case messages.Heads(_, events):
            return shown | {"heads": _cids(events)}
        case messages.Redirect(_, contacts):
            return shown | {"contacts": _contacts(contacts)}
        case messages.PublishAnswer():
            answer = {"core": show_cid(message.core), "event": _link(message.event)}
            return shown | {**answer, "reason": message.reason}
        case messages.Path(_, path):
            return shown | {"path": _contacts(path)}
        case messages.Want(_, events):
            known = {"known": _cids(message.known), "behind": message.behind}
            return shown | {"events": _cids(events)} | known
        case messages.Lacks(_, events):
            return shown | {"events": _cids(events)}
        case messages.Digest(_, floor_ms, spans):
            listed = [{"begin_ms": begin, "sum": f"{sum:016x}"} for begin, sum in spans]
            return shown | {"floor_ms": floor_ms, "spans": listed}


def _cids(cids: Iterable[ContentId]) -> list[str]:
    from shoal.identity.topics.cid import show_cid

    return [show_cid(cid) for cid in cids]


def _contacts(contacts: Iterable[Contact]) -> list[Fields]:
    from shoal.base.ids import show_node_id

    return [
        {"node": show_node_id(contact.node), "addresses": list(contact.addresses)}
        for contact in contacts
    ]


def _described(descriptor: Descriptor) -> Fields:
    from shoal.identity.topics.cid import cid_of, show_cid
    from shoal.identity.topics.descriptor_codec import encode_descriptor
    from shoal.identity.topics.descriptors import TopicDescriptor
    from shoal.identity.topics.event_signatures import signatures_hold

    block = encode_descriptor(descriptor)
    if isinstance(descriptor, TopicDescriptor):
        kind, fields = "topic", _topic(descriptor)
    else:
        kind, fields = "event", _event(descriptor)
    verdict = "valid" if signatures_hold(descriptor) else "invalid"
    return {
        "kind": kind,
        "cid": show_cid(cid_of(block)),
        "signatures": "none" if descriptor.metadata.signatures is None else verdict,
        "fields": fields,
        "canonical_hex": block.hex(),
    }


def _topic(topic: TopicDescriptor) -> Fields:
    """The fields of a topic, by the names that the thesis gives them."""
    metadata = topic.metadata
    return {
        "name": topic.name,
        "author": _peer(topic.author),
        "parent": _link(topic.parent),
        "#": {name: _link(cid) for name, cid in topic.sub_topics},
        "metadata": {
            **_metadata(metadata.created_ms, metadata.protocol_version, metadata.signatures),
            "allowedPublishers": _peers(metadata.allowed_publishers),
            "requestToPublish": _peers(metadata.request_to_publish),
            "eventLinking": metadata.event_linking.name,
        },
    }


def _event(event: EventDescriptor) -> Fields:
    """The fields of an event; its payload in hex."""
    metadata = event.metadata
    return {
        "topic": _link(event.topic),
        "author": _peer(event.author),
        "publisher": None if event.publisher is None else _peer(event.publisher),
        "parent": _link(event.parent),
        "payload": event.payload.hex(),
        "metadata": _metadata(metadata.created_ms, metadata.protocol_version, metadata.signatures),
    }


def _metadata(created_ms: int, version: str, signatures: Signatures | None) -> Fields:
    from shoal.identity.topics.descriptors import show_moment

    shown: Fields = {"created": show_moment(created_ms), "protocolVersion": version}
    if signatures is not None:
        signed = {"author": signatures.author.hex()}
        if signatures.publisher is not None:
            signed["publisher"] = signatures.publisher.hex()
        shown["signatures"] = signed
    return shown


def _peers(peers: PeerList) -> Fields:
    return {"enabled": peers.enabled, "peers": [_peer(peer) for peer in peers.peers]}


def _peer(peer: bytes) -> str:
    from shoal.identity import peer_id

    return peer_id.encode(peer)


def _link(cid: ContentId | None) -> str | None:
    from shoal.identity.topics.cid import show_cid

    return None if cid is None else show_cid(cid)


def _lines(value: Any, indent: str = "") -> Iterator[str]:
    """Names and values, one to a line; what is inside something stands further right."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value, 1)
    for name, item in pairs:
        shown = _safe(str(name))
        if isinstance(item, dict | list) and item:
            yield f"{indent}{shown}:"
            yield from _lines(item, indent + "  ")
        else:
            yield f"{indent}{shown}: {_shown_topic_decode(item)}"


def _shown_topic_decode(item: Any) -> str:
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, int):
        return str(item)
    return _safe(item) if isinstance(item, str) and item else "none"


def _safe(text: str) -> str:
    # Whoever made the bytes chose the text: it must not steer the terminal.
    return text if text.isprintable() else ascii(text)


def _short(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "...")


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
    from shoal.base.units import show_time

    text = event.payload.decode(errors="backslashreplace")
    return f"{show_time(event.created)} {event.cid} {text if text.isprintable() else ascii(text)}"
