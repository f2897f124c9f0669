"""A node's own messages: numbered without a gap, chained, signed, within the limits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import UsageError
from shoal.base.ids import PARTITIONS_MAX, STREAM_ID_CHARS_MAX, MessageId, StreamId
from shoal.base.units import MS_NS, S_NS
from shoal.identity.message_body import CONTENT_BYTES_MAX, Position, decode_body, split_signed
from shoal.protocols.streams.config import FRAME_BYTES_MAX
from shoal.protocols.streams.delivery.chain_table import DuplicateDetector
from shoal.protocols.streams.messages import Flood
from shoal.protocols.streams.signed_message import Publisher, VerifiedMessage, place
from shoal.protocols.streams.wire import StreamsCodec
from tests.support.streams import ME, NOW_MS, NOW_NS, OTHER_STREAM, STREAM, sign_as


@pytest.fixture
def publisher() -> Publisher:
    return Publisher(ME, "c1", sign_as(ME))


def make(
    publisher: Publisher, stream: StreamId = STREAM, partition: int = 0, now_ns: int = NOW_NS
) -> VerifiedMessage:
    return publisher.make(stream, partition, 0, b"{}", now_ns)


def test_the_first_message_has_none_before_it(publisher: Publisher) -> None:
    message = publisher.make(STREAM, 3, 2, b"content", NOW_NS)
    assert message.id == MessageId(STREAM, 3, NOW_MS, 0, ME, "c1")
    assert (message.previous, message.content_type, message.content) == (None, 2, b"content")


def test_what_it_says_is_what_it_signed(publisher: Publisher) -> None:
    message = publisher.make(STREAM, 3, 2, b"content", NOW_NS)
    signature, encoded = split_signed(message.signed)
    assert signature == sign_as(ME)(encoded)
    body = decode_body(message.signed)
    assert (body.id, body.previous) == (message.id, message.previous)
    assert (body.content_type, body.content) == (message.content_type, message.content)


def test_messages_of_one_millisecond_are_numbered(publisher: Publisher) -> None:
    first, second, third = make(publisher), make(publisher), make(publisher, now_ns=NOW_NS + MS_NS)
    assert (second.id.timestamp_ms, second.id.sequence) == (NOW_MS, 1)
    assert second.previous == Position(first.id.timestamp_ms, first.id.sequence)
    assert (third.id.timestamp_ms, third.id.sequence) == (NOW_MS + 1, 0)
    assert third.previous == Position(NOW_MS, 1)


def test_streams_and_partitions_have_chains_of_their_own(publisher: Publisher) -> None:
    make(publisher)
    assert make(publisher, partition=1).previous is None
    assert make(publisher, OTHER_STREAM).previous is None
    assert make(publisher).previous == Position(NOW_MS, 0)


@given(st.lists(st.integers(-5 * MS_NS, 5 * MS_NS), min_size=1, max_size=40))
def test_a_chain_has_one_range_however_the_clock_jumps(steps_ns: list[int]) -> None:
    publisher, detector = Publisher(ME, "c1", sign_as(ME)), DuplicateDetector(1)
    now_ns = NOW_NS
    for step_ns in steps_ns:
        now_ns += step_ns
        message = make(publisher, now_ns=now_ns)
        here = place(message)
        assert here.before < here.number
        assert detector.mark(here.before, here.number)
    assert len(detector.ranges) == 1


@pytest.mark.parametrize(
    ("use", "names"),
    [
        (lambda p: p.make(STREAM, -1, 0, b"", NOW_NS), "partition -1"),
        (lambda p: p.make(STREAM, PARTITIONS_MAX, 0, b"", NOW_NS), "partition 100"),
        (lambda p: p.make(STREAM, 0, 0, bytes(CONTENT_BYTES_MAX + 1), NOW_NS), "524289 bytes"),
        (lambda p: p.make(STREAM, 0, -1, b"", NOW_NS), "content type -1"),
        (lambda p: p.make(STREAM, 0, 256, b"", NOW_NS), "content type 256"),
    ],
)
def test_what_others_would_refuse_is_not_made_and_leaves_no_gap(
    publisher: Publisher, use: Callable[[Publisher], object], names: str
) -> None:
    with pytest.raises(UsageError, match=names):
        use(publisher)
    assert make(publisher).previous is None


def test_the_largest_message_fits_a_frame() -> None:
    # The widest characters, the longest names, and a hop header that has grown to its full size.
    wide = "\U0001f41f"
    publisher = Publisher(ME, wide * 32, sign_as(ME))
    stream = StreamId(wide * STREAM_ID_CHARS_MAX)
    publisher.make(stream, PARTITIONS_MAX - 1, 255, b"", NOW_NS)
    message = publisher.make(stream, PARTITIONS_MAX - 1, 255, bytes(CONTENT_BYTES_MAX), NOW_NS)
    flood = Flood(255, 2**63 - 1, 2**63 - 1, message.signed)
    frame = StreamsCodec().encode(flood)
    assert len(frame) <= FRAME_BYTES_MAX
    assert StreamsCodec().decode(frame) == flood
    assert decode_body(message.signed).id == message.id


def test_a_chain_that_was_stamped_far_ahead_ends_when_the_clock_is_right_again() -> None:
    publisher = Publisher(ME, "c1", sign_as(ME))
    before = make(publisher)
    ahead = make(publisher, now_ns=NOW_NS + 3600 * S_NS)
    after = make(publisher, now_ns=NOW_NS + S_NS)
    assert [one.id.chain for one in (before, ahead, after)] == ["c1", "c1", "c1.2"]
    assert (after.id.timestamp_ms, after.previous) == ((NOW_NS + S_NS) // MS_NS, None)
    again = make(publisher, now_ns=NOW_NS + 2 * S_NS)
    assert again.id.chain == "c1.2"
    assert again.previous == Position(after.id.timestamp_ms, 0)


def test_a_chain_goes_on_while_the_clock_may_have_been_set_back_by_mistake() -> None:
    publisher = Publisher(ME, "c1", sign_as(ME))
    before = make(publisher)
    wrong_ns = NOW_NS - 600 * S_NS
    back = publisher.make(STREAM, 0, 0, b"{}", wrong_ns, None, NOW_NS + S_NS)
    assert (back.id.chain, back.id.timestamp_ms) == ("c1", before.id.timestamp_ms)
    assert back.previous == Position(before.id.timestamp_ms, 0)
