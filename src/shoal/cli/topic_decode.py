"""`shoal topic decode`: look inside the bytes of topics, events and messages that carry them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shoal.identity.topics.cid import Cid
    from shoal.identity.topics.descriptors import (
        Descriptor,
        EventDescriptor,
        PeerList,
        Signatures,
        TopicDescriptor,
    )
    from shoal.kernel.contact import Contact
    from shoal.protocols.topics.messages import Message

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
    from shoal.identity.topics.canonical import decode_descriptor

    try:
        return _described(decode_descriptor(raw))
    except RemoteError as error:
        raise UsageError(
            f"{_short(raw.hex())} is no canonical topic or event: {error};"
            " a wire message needs --rpc"
        ) from None


def _rpc(raw: bytes) -> Fields:
    from shoal.base.errors import RemoteError, UsageError
    from shoal.protocols.topics.rpc import decode_rpc, encode_rpc, strip_length

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
    from shoal.protocols.topics.rpc import OPS

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


def _cids(cids: Iterable[Cid]) -> list[str]:
    from shoal.identity.topics.cid import show_cid

    return [show_cid(cid) for cid in cids]


def _contacts(contacts: Iterable[Contact]) -> list[Fields]:
    from shoal.base.ids import show_node_id

    return [
        {"node": show_node_id(contact.node), "addresses": list(contact.addresses)}
        for contact in contacts
    ]


def _described(descriptor: Descriptor) -> Fields:
    from shoal.identity.topics.canonical import encode_descriptor
    from shoal.identity.topics.cid import cid_of, show_cid
    from shoal.identity.topics.descriptors import TopicDescriptor
    from shoal.identity.topics.signing import signatures_hold

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
    from shoal.identity.topics.dates import show_moment

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
    from shoal.identity import base58

    return base58.encode(peer)


def _link(cid: Cid | None) -> str | None:
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
            yield f"{indent}{shown}: {_shown(item)}"


def _shown(item: Any) -> str:
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
