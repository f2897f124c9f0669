"""`shoal topic decode`: bytes in, what they are out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from shoal.base.ids import Contact
from shoal.cli.app import app
from shoal.identity import show_peer_id
from shoal.identity.topics.cid import cid_of, show_cid
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import new_meta_topic
from shoal.identity.topics.event_signatures import publish_event, sign_event, sign_topic
from shoal.protocols.topics.messages import (
    Digest,
    Heads,
    JoinTopic,
    Lacks,
    NewTopic,
    Path,
    PublishAnswer,
    PublishEvent,
    Redirect,
    RequestToPublish,
    Stamp,
    Want,
)
from shoal.protocols.topics.wire import encode_rpc, varint
from tests.cli.test_app import ends
from tests.support.topics import (
    ALICE,
    BLOCKS,
    BOB,
    CREATED_MS,
    META_CID,
    RPCS,
    TOPIC_CID,
    event_of,
    flipped,
    peer,
)

ONE_TEXT = "QmNQa1FSTXNHmrjjfgUW3Px3Vkke4oKiFWdigWkYSux2Pi"
TWO_TEXT = "QmNUVJPjvXxb55spvBuoNKEvGWzoGzzmwLC8MAovVWhMiR"
STAMP = Stamp(CREATED_MS)


def decoded(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """What `shoal topic decode --json` prints."""
    assert ends("topic", "decode", "--json", *arguments) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return json.loads(printed.out)


@pytest.mark.parametrize("name", BLOCKS)
def test_the_originals_descriptors(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    vector = BLOCKS[name]
    found = decoded(capsys, vector["cbor"])
    assert found["kind"] == ("event" if name == "eventUnpublished" else "topic")
    assert found["cid"] == vector["cid"]
    assert found["canonical_hex"] == vector["cbor"]
    assert found["signatures"] == "none"


def test_the_fields_have_the_names_of_the_thesis(capsys: pytest.CaptureFixture[str]) -> None:
    assert decoded(capsys, BLOCKS["topic"]["cbor"])["fields"] == {
        "name": "t",
        "author": ONE_TEXT,
        "parent": None,
        "#": {"meta": BLOCKS["meta"]["cid"]},
        "metadata": {
            "created": "2020-01-02T03:04:05.678Z",
            "protocolVersion": "/pulsarcast/1.0.0",
            "allowedPublishers": {"enabled": True, "peers": [ONE_TEXT, TWO_TEXT]},
            "requestToPublish": {"enabled": True, "peers": [TWO_TEXT]},
            "eventLinking": "LAST_SEEN",
        },
    }
    assert decoded(capsys, BLOCKS["eventUnpublished"]["cbor"])["fields"] == {
        "topic": BLOCKS["topic"]["cid"],
        "author": TWO_TEXT,
        "publisher": None,
        "parent": None,
        "payload": b"hello".hex(),
        "metadata": {
            "created": "2020-01-02T03:04:07.000Z",
            "protocolVersion": "/pulsarcast/1.0.0",
        },
    }


@pytest.mark.parametrize("prefix", [False, True])
def test_the_originals_rpc(prefix: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def sent(name: str) -> str:
        raw = bytes.fromhex(RPCS[name])
        return (varint(len(raw)) + raw if prefix else raw).hex()

    join = decoded(capsys, "--rpc", sent("join"))
    assert (join["kind"], join["cid"], join["canonical_hex"]) == ("rpc", None, RPCS["join"])
    (message,) = join["fields"]["msgs"]
    assert (message["op"], message["topicId"]) == ("JOIN_TOPIC", BLOCKS["topic"]["cid"])
    assert message["metadata"]["created"] == "2020-01-02T03:04:09.000Z"

    publish = decoded(capsys, "--rpc", sent("publish"))
    (message,) = publish["fields"]["msgs"]
    assert publish["canonical_hex"] == RPCS["publish"]
    assert publish["cid"] == message["cid"]
    assert message["cid"] == show_cid(cid_of(bytes.fromhex(message["canonical_hex"])))
    assert (message["op"], message["kind"]) == ("PUBLISH_EVENT", "event")
    assert message["fields"]["payload"] == "00ff"
    assert message["fields"]["publisher"] == ONE_TEXT


def test_whether_signatures_hold_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    event = publish_event(sign_event(event_of(ALICE), ALICE), BOB, META_CID)
    block = encode_descriptor(event)
    good = decoded(capsys, block.hex())
    assert good["signatures"] == "valid"
    assert good["fields"]["author"] == show_peer_id(ALICE.public.peer_id)
    assert set(good["fields"]["metadata"]["signatures"]) == {"author", "publisher"}
    changed = flipped(block, block.index(b"hello") * 8)
    assert decoded(capsys, changed.hex())["signatures"] == "invalid"


def test_every_message_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    asked = sign_event(event_of(ALICE), ALICE)
    topic = sign_topic(new_meta_topic("news", peer(ALICE), CREATED_MS), ALICE)
    rpc = encode_rpc(
        [
            PublishEvent(publish_event(asked, ALICE, None), STAMP),
            NewTopic(topic, STAMP),
            RequestToPublish(asked, STAMP, META_CID),
            JoinTopic(TOPIC_CID, STAMP),
            Heads(TOPIC_CID, (META_CID,), STAMP),
            Redirect(TOPIC_CID, (), STAMP),
            PublishAnswer(TOPIC_CID, META_CID, None, STAMP, "over quota"),
            Path(TOPIC_CID, (Contact(ALICE.address, ("ws://127.0.0.1:1",)),), STAMP),
            Want(TOPIC_CID, (META_CID,), STAMP, behind=7),
            Lacks(TOPIC_CID, (META_CID,), STAMP),
            Digest(TOPIC_CID, 60_000, ((120_000, 255),), STAMP),
        ]
    ).hex()
    found = decoded(capsys, "--rpc", rpc)
    assert found["cid"] is None
    assert [message["op"] for message in found["fields"]["msgs"]] == [
        "PUBLISH_EVENT",
        "NEW_TOPIC",
        "REQUEST_TO_PUBLISH",
        "JOIN_TOPIC",
        "HEADS",
        "REDIRECT",
        "PUBLISH_ANSWER",
        "PATH",
        "WANT",
        "LACKS",
        "DIGEST",
    ]
    assert {message["topicId"] for message in found["fields"]["msgs"][3:]} == {show_cid(TOPIC_CID)}
    path, want, lacks, digest = found["fields"]["msgs"][-4:]
    assert path["path"][0]["addresses"] == ["ws://127.0.0.1:1"]
    assert want["events"] == lacks["events"] == [show_cid(META_CID)]
    assert digest["spans"] == [{"begin_ms": 120_000, "sum": "00000000000000ff"}]
    assert ends("topic", "decode", "--rpc", rpc) == 0
    shown = capsys.readouterr().out
    assert "op: REQUEST_TO_PUBLISH" in shown
    assert "reason: over quota" in shown
    assert "behind: 7" in shown
    assert "floor_ms: 60000" in shown
    assert shown.count("signatures: valid") == 3


def test_people_see_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("topic", "decode", BLOCKS["topic"]["cbor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["kind: topic", f"cid: {BLOCKS['topic']['cid']}", "signatures: none"]
    assert "    eventLinking: LAST_SEEN" in lines
    assert "  parent: none" in lines
    assert lines[-1] == f"canonical_hex: {BLOCKS['topic']['cbor']}"


def test_a_name_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    topic = new_meta_topic("\x1b[2J\nstraße", peer(ALICE), CREATED_MS)
    assert ends("topic", "decode", encode_descriptor(topic).hex()) == 0
    assert "  name: 'meta-\\x1b[2J\\nstra\\xdfe'" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("typed", ["0x{}", "0X{}", "{}\n", " {} \n"])
def test_bytes_come_from_stdin(typed: str) -> None:
    vector = BLOCKS["meta"]
    result = CliRunner().invoke(
        app, ["topic", "decode", "-", "--json"], input=typed.format(vector["cbor"].upper())
    )
    assert result.exit_code == 0
    assert json.loads(result.stdout)["cid"] == vector["cid"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["xyz0"], "'xyz0' is not hex: write digits 0 to 9, a to f\n"),
        (["abc"], "'abc' is not hex: write digits 0 to 9, a to f, and an even number of them\n"),
        ([""], "no bytes: write them in hex"),
        (["a5"], "'a5' is no canonical topic or event: cut off after 1 bytes"),
        (["ff" * 1000], "is no canonical topic or event"),
        ([RPCS["join"]], "a wire message needs --rpc"),
        (["--rpc", BLOCKS["topic"]["cbor"]], "a topic or event alone goes without --rpc"),
        (["--rpc", RPCS["join"][:-2]], "is no wire message"),
        (["--rpc", "59" + RPCS["join"][:-2]], "an RPC of 89 bytes is announced, 88 follow"),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends("topic", "decode", *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert complaint in printed.err
    assert printed.err.count("\n") == 1
    assert len(printed.err) < 400


def test_the_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends("topic", "decode", "--help") == 0
    assert "Example: shoal topic decode" in capsys.readouterr().out
