"""Content on its way in and out, whatever its publisher made of it."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.identity.message_body import BINARY, JSON, TEXT
from shoal.node import Gap, Message
from shoal.node.streams.message import decode_content, encode_content

ID = MessageId(StreamId("s/x"), 2, 1_700_000_000_123, 7, NodeId(bytes(20)), "c")

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values | st.binary())
def test_content_comes_back_as_it_was(content: Any) -> None:
    content_type, data = encode_content(content)
    assert decode_content(content_type, data) == content
    if isinstance(content, str):
        assert content_type == TEXT
    elif isinstance(content, bytes):
        assert (content_type, data) == (BINARY, content)
    else:
        assert content_type == JSON


@pytest.mark.parametrize(
    ("content_type", "data"),
    [
        (JSON, b"{"),
        (JSON, b""),
        (JSON, b'"\\ud800"'),
        (JSON, b"1e999"),
        (JSON, b"[" * 100_000 + b"]" * 100_000),
        (TEXT, b"\xff"),
        (77, b"of a later version"),
    ],
)
def test_content_that_is_not_what_it_claims_comes_as_bytes(content_type: int, data: bytes) -> None:
    assert decode_content(content_type, data) == data


@given(st.integers(0, 255), st.binary(max_size=200))
def test_no_content_stops_a_reader(content_type: int, data: bytes) -> None:
    message = Message(ID, decode_content(content_type, data), 1, 0)
    json.loads(message.as_json())


@pytest.mark.parametrize("depth", range(400, 1100, 5))
def test_no_depth_stops_a_printer(depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    line = Message(ID, decode_content(JSON, nested), 1, 0).as_json()
    assert line.startswith(b"{")
    assert b"\n" not in line


def test_a_message_is_one_line_of_json() -> None:
    message = Message(ID, {"a": "line\nbreak"}, 3, 0, Gap(4, "slow-consumer"))
    line = message.as_json()
    assert b"\n" not in line
    assert json.loads(line) == {
        "stream": "s/x",
        "partition": 2,
        "publisher": "0x" + "00" * 20,
        "timestamp_ms": 1_700_000_000_123,
        "sequence": 7,
        "chain": "c",
        "content": {"a": "line\nbreak"},
        "gap_before": {"count": 4, "reason": "slow-consumer"},
    }
    raw = Message(ID, b"\x00\xff", 1, 0).as_json()
    assert json.loads(raw)["content"] == base64.b64encode(b"\x00\xff").decode()
    assert message.timestamp.isoformat() == "2023-11-14T22:13:20.123000+00:00"
