"""Any bytes are a message of the streams protocol or a RemoteError, and soon."""

from __future__ import annotations

import contextlib
from random import Random
from time import perf_counter
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from shoal.base.errors import MalformedMessage, RemoteError
from shoal.identity import SIGNATURE_BYTES
from shoal.identity.message_body import Body, decode_body, encode_body
from shoal.protocols.streams.config import FRAME_BYTES_MAX
from tests.strategies import bodies, signatures, stream_messages
from tests.support.stream_examples import EXAMPLES
from tests.support.streams import CODEC, body_of, flood_of, message_id


def decodes(frame: bytes) -> bool:
    try:
        message = CODEC.decode(frame)
    except RemoteError:
        return False
    assert type(message) in CODEC.messages
    assert CODEC.decode(CODEC.encode(message)) == message
    return True


@given(st.binary(max_size=300))
@example(b"\xc1")
def test_any_bytes_are_a_message_or_refused(frame: bytes) -> None:
    decodes(frame)


@given(st.integers(0, 12), st.binary(max_size=200), st.integers(0, 7))
def test_any_bytes_behind_a_message_number_are_a_message_or_refused(
    number: int, rest: bytes, fields: int
) -> None:
    decodes(bytes([0x90 + fields, number]) + rest)


@given(stream_messages, st.data())
def test_a_truncated_message_is_refused(message: Any, data: st.DataObject) -> None:
    frame = CODEC.encode(message)
    assert not decodes(frame[: data.draw(st.integers(0, len(frame) - 1))])


@given(stream_messages, st.lists(st.tuples(st.floats(0, 1), st.integers(0, 7)), min_size=1))
def test_flipped_bits_are_a_message_or_refused(
    message: Any, flips: list[tuple[float, int]]
) -> None:
    frame = bytearray(CODEC.encode(message))
    for where, bit in flips:
        frame[min(int(where * len(frame)), len(frame) - 1)] ^= 1 << bit
    decodes(bytes(frame))


@given(signatures, bodies, st.data())
def test_a_changed_body_is_a_body_or_refused(
    signature: bytes, body: Body, data: st.DataObject
) -> None:
    signed = bytearray(signature + encode_body(body))
    at = data.draw(st.integers(SIGNATURE_BYTES, len(signed) - 1))
    signed[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedMessage):
        decode_body(bytes(signed[: data.draw(st.integers(0, len(signed)))]))


def test_no_frame_takes_long_whatever_it_declares(seed: int) -> None:
    """No length that a frame declares, and no nesting, costs more than reading its bytes."""
    rng = Random(seed)
    heads = [CODEC.encode(message)[:-1] for message in EXAMPLES.values()]
    fillers = [b"\x91", b"\xdd\xff\xff\xff\xff", b"\x81\xa1k", b"\xc0", b"\xc4\x02xx", b"\xcf" * 9]
    size = FRAME_BYTES_MAX // 8
    slowest_s = 0.0
    for _ in range(300):
        head, filler = rng.choice(heads), rng.choice(fillers)
        cut = rng.randrange(1, len(head) + 1)
        frame = bytes([0x9F]) + head[1:cut] + filler * (size // len(filler))
        start_s = perf_counter()
        decodes(frame)
        slowest_s = max(slowest_s, perf_counter() - start_s)
    assert slowest_s < 1  # a millisecond, in fact; the rest is for a busy machine


def test_a_flood_of_real_size_goes_through(seed: int) -> None:
    content = Random(seed).randbytes(100_000)
    flood = flood_of(body_of(message_id(), content))
    assert CODEC.decode(CODEC.encode(flood)) == flood
    assert decode_body(flood.signed).content == content
