"""Frames in messages: any frames survive, no other message does."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import MalformedMessage, OversizedMessage
from shoal.transport.framing import (
    BATCH_BYTES_MAX,
    FRAME_HEADER_BYTES,
    HEAD_ROOM_BYTES,
    MAC_BYTES,
    ForgedMessage,
    FrameReader,
    FrameWriter,
    message_bytes_max,
)
from shoal.transport.port import Frame

GOLDEN = Path(__file__).parents[1] / "golden" / "link-framing-v1.json"

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
LIMIT = 200_000

frames = st.tuples(st.integers(0, 255), st.binary(max_size=400))
keys = st.sampled_from([KEY, None])


def messages_of(writer: FrameWriter) -> list[bytes]:
    """Everything that a writer has to say, without the room in front."""
    made = []
    while (message := writer.next_message()) is not None:
        made.append(bytes(message[HEAD_ROOM_BYTES:]))
    assert writer.queued_bytes == 0
    return made


def written(batches: list[list[Frame]], key: bytes | None = KEY) -> list[bytes]:
    """One flush after each batch."""
    writer, made = FrameWriter(key), []
    for batch in batches:
        for protocol, payload in batch:
            writer.add(protocol, payload)
        made += messages_of(writer)
    return made


@given(st.lists(st.lists(frames, max_size=8), max_size=8), keys)
def test_frames_come_out_as_they_went_in(batches: list[list[Frame]], key: bytes | None) -> None:
    messages = written(batches, key)
    assert len(messages) == sum(bool(batch) for batch in batches)  # one message per flush
    reader = FrameReader(key, LIMIT)
    assert [reader.read(message) for message in messages] == [batch for batch in batches if batch]


@given(st.lists(st.tuples(st.integers(0, 255), st.integers(0, 40_000)), max_size=30), keys)
def test_a_batch_above_the_bound_is_split(shapes: list[tuple[int, int]], key: bytes | None) -> None:
    batch = [(protocol, bytes([protocol]) * size) for protocol, size in shapes]
    messages = written([batch], key)
    overhead = MAC_BYTES if key else 0
    assert all(len(message) <= overhead + BATCH_BYTES_MAX for message in messages)
    if len(messages) > 1:  # not more than needed: two neighbours would not have fitted into one
        for one, two in zip(messages, islice(messages, 1, None), strict=False):
            assert len(one) + len(two) > BATCH_BYTES_MAX
    reader = FrameReader(key, LIMIT)
    assert [frame for message in messages for frame in reader.read(message)] == batch


def test_a_long_payload_goes_alone() -> None:
    batch = [(1, b"a"), (2, bytes(LIMIT)), (3, b"b")]
    messages = written([batch])
    assert [len(message) for message in messages] == [
        MAC_BYTES + FRAME_HEADER_BYTES + size for size in (1, LIMIT, 1)
    ]
    reader = FrameReader(KEY, LIMIT)
    assert [frame for message in messages for frame in reader.read(message)] == batch
    assert max(map(len, messages)) <= message_bytes_max(LIMIT)


def test_the_queue_is_counted_as_it_will_be_sent() -> None:
    writer = FrameWriter(KEY)
    assert writer.next_message() is None
    for _ in range(300):
        writer.add(1, bytes(300))
    assert writer.queued_bytes == 300 * (300 + FRAME_HEADER_BYTES)
    first = writer.next_message()
    assert first is not None
    sent = len(first) - HEAD_ROOM_BYTES - MAC_BYTES
    assert writer.queued_bytes == 300 * (300 + FRAME_HEADER_BYTES) - sent
    while writer.next_message() is not None:
        pass
    assert writer.queued_bytes == 0


@given(st.lists(frames, max_size=8), st.integers(0, 8))
def test_what_is_in_no_message_yet_can_be_read(batch: list[Frame], messages: int) -> None:
    writer, reader = FrameWriter(KEY), FrameReader(KEY, LIMIT)
    for protocol, payload in batch:
        writer.add(protocol, payload)
    left: list[Frame] = []
    for _ in range(messages):
        message = writer.next_message()
        if message is not None:
            left += reader.read(bytes(message[HEAD_ROOM_BYTES:]))
    assert left + writer.frames() == batch


@given(st.lists(frames, min_size=1, max_size=4), st.data())
def test_a_changed_byte_is_noticed_wherever_it_is(batch: list[Frame], data: st.DataObject) -> None:
    (message,) = written([batch])
    position = data.draw(st.integers(0, len(message) - 1))
    changed = bytearray(message)
    changed[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ForgedMessage):
        FrameReader(KEY, LIMIT).read(bytes(changed))


@given(st.lists(frames, min_size=1, max_size=4), st.data())
def test_a_message_cut_short_or_made_longer_is_noticed(
    batch: list[Frame], data: st.DataObject
) -> None:
    (message,) = written([batch])
    cut = message[: data.draw(st.integers(0, len(message) - 1))]
    with pytest.raises(ForgedMessage):
        FrameReader(KEY, LIMIT).read(cut)
    with pytest.raises(ForgedMessage):
        FrameReader(KEY, LIMIT).read(message + data.draw(st.binary(min_size=1, max_size=20)))


@given(st.permutations(range(4)), st.integers(1, 4))
def test_messages_left_out_repeated_or_moved_are_noticed(order: list[int], count: int) -> None:
    messages = written([[(1, b"same")]] * 4)
    assert len(set(messages)) == 4  # the counter tells them apart
    reader = FrameReader(KEY, LIMIT)
    for expected, index in enumerate(order[:count]):
        if index == expected:
            assert reader.read(messages[index]) == [(1, b"same")]
            with pytest.raises(ForgedMessage):
                reader.read(messages[index])
        else:
            with pytest.raises(ForgedMessage):
                reader.read(messages[index])
            break


def test_another_key_does_not_fit() -> None:
    (message,) = written([[(1, b"x")]], OTHER_KEY)
    with pytest.raises(ForgedMessage):
        FrameReader(KEY, LIMIT).read(message)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read_and_nothing_worse(message: bytes) -> None:
    with pytest.raises(ForgedMessage):
        FrameReader(KEY, LIMIT).read(message)
    try:
        read = FrameReader(None, 100).read(message)
    except (MalformedMessage, OversizedMessage):
        return
    assert b"".join(written([read], None)) == message


def test_limits_hold_for_messages_and_for_payloads() -> None:
    reader = FrameReader(None, 100)
    with pytest.raises(OversizedMessage, match="message"):
        reader.read(bytes(message_bytes_max(100) + 1))
    (message,) = written([[(1, bytes(101))]], None)
    with pytest.raises(OversizedMessage, match="payload"):
        reader.read(message)
    # Many small payloads in one long message would cost the reader far more than the writer.
    long = FrameReader(None, LIMIT)
    with pytest.raises(MalformedMessage, match="one payload"):
        long.read(b"\x01\x00\x00\x00\x00" * (BATCH_BYTES_MAX // 5 + 1))
    # A length that lies is refused by what it says, not by what is there.
    with pytest.raises(OversizedMessage, match="payload"):
        reader.read(b"\x01\xff\xff\xff\xff")
    for malformed in (b"\x01", b"\x01\x00\x00\x00", b"\x01\x00\x00\x00\x05abcd"):
        with pytest.raises(MalformedMessage):
            reader.read(malformed)


def test_the_bytes_of_version_1_stay_what_they_are() -> None:
    golden = json.loads(GOLDEN.read_text())
    batches = [
        [(frame["protocol"], bytes.fromhex(frame["payload"])) for frame in batch]
        for batch in golden["batches"]
    ]
    for key, name in [(bytes.fromhex(golden["key"]), "with_mac"), (None, "under_tls")]:
        assert [message.hex() for message in written(batches, key)] == golden[name]
        reader = FrameReader(key, LIMIT)
        assert [reader.read(bytes.fromhex(message)) for message in golden[name]] == batches
