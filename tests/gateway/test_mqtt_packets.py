"""The bytes of MQTT, as its specifications give them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import RemoteError
from shoal.gateway.mqtt import session
from shoal.gateway.mqtt.bridge import content_of, payload_of
from shoal.gateway.mqtt.session import (
    ConnAck,
    Credentials,
    Disconnected,
    PingResp,
    PubAck,
    Publish,
    Reader,
    SubAck,
    TooLarge,
    Version,
    matches,
)

VERSIONS: tuple[Version, ...] = ("3.1.1", "5")


def decode(version: Version, raw: bytes) -> list[session.Packet]:
    return list(Reader(version).feed(raw))


def test_connect() -> None:
    old = session.connect("3.1.1", Credentials("me"), 30)
    assert old == bytes.fromhex("10 0e 0004 4d515454 04 00 001e 0002 6d65")
    new = session.connect("5", Credentials("me", "user", "pass"), 30)
    properties = "0d 11 00015180 21 0020 27 00100000"
    secrets = "0004 75736572 0004 70617373"
    assert new == bytes.fromhex(f"10 28 0004 4d515454 05 c0 001e {properties} 0002 6d65 {secrets}")


def test_subscribe_without_what_is_our_own() -> None:
    assert session.subscribe("3.1.1", 7, ["a/+"]) == bytes.fromhex("82 08 0007 0003 612f2b 01")
    assert session.subscribe("5", 7, ["a/+"]) == bytes.fromhex("82 09 0007 00 0003 612f2b 15")


@pytest.mark.parametrize("version", VERSIONS)
@given(
    topic=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    payload=st.binary(max_size=300),
    id=st.integers(1, 65_535) | st.none(),
    cut=st.integers(0, 400),
)
def test_a_message_is_read_as_it_was_written(
    version: Version, topic: str, payload: bytes, id: int | None, cut: int
) -> None:
    marks = (("shoal-stream", "x"),) if version == "5" else ()
    message = Publish(topic, payload, id, marks=marks)
    raw = session.publish(version, message)
    reader = Reader(version)
    found = [*reader.feed(raw[:cut]), *reader.feed(raw[cut:] + session.puback(9))]
    assert found == [message, PubAck(9)]


def test_what_brokers_say() -> None:
    assert decode("3.1.1", bytes.fromhex("2002 0100 d000")) == [ConnAck(True, 0), PingResp()]
    said = "20 09 00 00 06 21 0014 22 000a  e0 01 8b  90 05 0007 00 01 80"
    expected = [ConnAck(False, 0, 20), Disconnected(0x8B), SubAck(7, (1, 0x80))]
    assert decode("5", bytes.fromhex(said)) == expected
    assert decode("5", bytes.fromhex("40 03 0009 87")) == [PubAck(9, 0x87)]


@pytest.mark.parametrize("version", VERSIONS)
@given(raw=st.binary(max_size=40))
def test_nonsense_is_refused_and_nothing_worse(version: Version, raw: bytes) -> None:
    try:
        for packet in Reader(version).feed(raw):
            assert packet is not None
    except RemoteError:
        pass


@pytest.mark.parametrize(
    "raw", ["32 05 0003 61", "20 ffffffff7f", "30 ffffff7f", "34 05 0001 61 0001"]
)
def test_what_cannot_be_is_refused(raw: str) -> None:
    text = bytes.fromhex(raw)
    with pytest.raises(RemoteError):
        decode("5", text + bytes(8))


@pytest.mark.parametrize("chunk", [1000, 65_536, 10_000_000])
def test_a_message_that_is_too_large_is_passed_over_in_the_old_version(chunk: int) -> None:
    payload = bytes(session.PACKET_BYTES_MAX)
    large, next_one = Publish("a/b", payload, 7), Publish("a/b", b"x", 8)
    written = [session.publish("3.1.1", one) for one in (large, next_one)]
    raw, reader = b"".join(written), Reader("3.1.1")
    found: list[session.Packet] = []
    for begin in range(0, len(raw), chunk):
        found += reader.feed(raw[begin : begin + chunk])
        assert len(reader._bytes) <= 70_000
    assert found == [TooLarge("a/b", 7, len(payload) + 7), next_one]
    with pytest.raises(RemoteError):
        decode("5", session.publish("5", large))


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/+", "a/b", True),
        ("a/+", "a/b/c", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("+/b", "/b", True),
        ("#", "$SYS/load", False),
        ("a/b", "a", False),
    ],
)
def test_filters_stand_for_topics(pattern: str, topic: str, expected: bool) -> None:
    assert matches(pattern, topic) is expected


@pytest.mark.parametrize("payload", [b'{"a":1}', b"21.5", "Grüße".encode(), b"\xff\x00", b""])
def test_a_payload_comes_out_as_it_went_in(payload: bytes) -> None:
    assert payload_of(content_of(payload)) == payload
